"""How long contexts last: geometric, a minimum stay, negative binomial; M steps in closed form."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mbrl_hdp.inference.duration import ContextDuration, Phases, Stays
from mbrl_hdp.settings import check_settings, setting
from mbrl_hdp.types import TaskSpec

# Pseudo-counts of leaving and of not leaving: the mode of Beta(1.5, 1.5).
_PSEUDO = 0.5


@dataclass
class GeometricConfig:
    """Settings of `geometric`: there are none."""


@dataclass
class _EarlyConfig:
    early_probability: float = setting(
        1e-4, "prior mean of the probability that a context is left before its last phase", above=0.0, below=0.5
    )
    early_strength: float = setting(100.0, "steps that this prior mean counts for", above=0.0)


@dataclass
class MinimumConfig(_EarlyConfig):
    """Settings of `minimum`."""

    max_steps: int = setting(60, "largest minimum number of steps that is tried", at_least=1, at_most=10_000)


@dataclass
class NegativeBinomialConfig(_EarlyConfig):
    """Settings of `negative_binomial`."""

    max_phases: int = setting(20, "largest number of phases that is tried", at_least=1, at_most=1000)


class Geometric(ContextDuration):
    """One phase: a context is left with the same probability in every step."""

    max_phases = 1

    def start(self, num_phases: int, stays: Stays) -> Phases:  # noqa: ARG002 - there is one
        """Return the estimate from whole stays, which is exact."""
        num_left = float(stays.is_ended.sum())
        return self.update(_one(float(stays.lengths.sum() - len(stays.lengths)), num_left))

    def update(self, counts: Phases) -> Phases:
        """Return the mode of the Beta posterior."""
        leave = _mode(counts.leave[0], counts.stay[0])
        return _one(1.0 - leave, leave)

    def log_prior(self, phases: Phases) -> float:
        """Return the log density of the Beta prior."""
        return _log_beta(phases.leave[-1])


class _Early(ContextDuration):
    """Phases before the last one may be left, rarely: with the same probability, which has a prior."""

    def __init__(self, max_phases: int, config: _EarlyConfig) -> None:
        self.max_phases = max_phases
        self._early = config.early_probability * config.early_strength
        self._late = (1.0 - config.early_probability) * config.early_strength

    def _early_probability(self, counts: Phases) -> float:
        left, kept = counts.leave[:-1].sum(), (counts.stay[:-1] + counts.advance[:-1]).sum()
        return float((left + self._early) / (left + kept + self._early + self._late))

    def _log_early(self, phases: Phases) -> float:
        if len(phases.leave) == 1:
            return 0.0
        early, peak = phases.leave[0], self._early / (self._early + self._late)
        # Relative to its mode: the prior must not reward or punish having early phases at all.
        height = self._early * np.log(early / peak) + self._late * np.log((1.0 - early) / (1.0 - peak))
        return float(height)


class Minimum(_Early):
    """A minimum number of steps, then geometric: one phase a step, of which only the last one stays."""

    def __init__(self, config: MinimumConfig) -> None:
        super().__init__(config.max_steps, config)

    def start(self, num_phases: int, stays: Stays) -> Phases:
        """Return the estimate from whole stays, which is exact: the phase of a step is the number of steps so far."""
        before, rest = num_phases - 1, stays.lengths - 1
        is_late = stays.lengths >= num_phases
        advance, leave, stay = (np.zeros(num_phases) for _ in range(3))
        # All phases before the last one share their probabilities, so it does not matter which of them is counted.
        advance[:before] = np.minimum(rest, before).sum() / max(before, 1)
        leave[:before] = (stays.is_ended & ~is_late).sum() / max(before, 1)
        stay[-1], leave[-1] = np.maximum(rest - before, 0).sum(), (stays.is_ended & is_late).sum()
        return self.update(Phases(stay, advance, leave))

    def update(self, counts: Phases) -> Phases:
        """Return the modes of the two Beta posteriors: leaving early, and leaving the last phase."""
        leave = np.full(len(counts.leave), self._early_probability(counts))
        leave[-1] = _mode(counts.leave[-1], counts.stay[-1])
        is_last = np.arange(len(leave)) == len(leave) - 1
        return Phases(np.where(is_last, 1.0 - leave, 0.0), np.where(is_last, 0.0, 1.0 - leave), leave)

    def log_prior(self, phases: Phases) -> float:
        """Return the log density of the Beta priors."""
        return _log_beta(phases.leave[-1]) + self._log_early(phases)


class NegativeBinomial(_Early):
    """Phases in a row that are all passed with the same probability; the last one by leaving the context."""

    def __init__(self, config: NegativeBinomialConfig) -> None:
        super().__init__(config.max_phases, config)

    def start(self, num_phases: int, stays: Stays) -> Phases:
        """Return phases whose mean is that of the stays."""
        num_left = float(stays.is_ended.sum()) * num_phases
        steps = float(stays.lengths.sum() - (~stays.is_ended).sum())
        passing = min(_mode(num_left, max(steps - num_left, 0.0)), 0.99)
        return self._made(num_phases, passing, self._early / (self._early + self._late))

    def update(self, counts: Phases) -> Phases:
        """Return the modes of the two Beta posteriors: leaving early, and passing a phase."""
        passed = counts.advance[:-1].sum() + counts.leave[-1]
        passing = min(_mode(float(passed), float(counts.stay.sum())), 1.0 - 1e-9)
        return self._made(len(counts.leave), passing, self._early_probability(counts))

    def log_prior(self, phases: Phases) -> float:
        """Return the log density of the Beta priors."""
        return _log_beta(phases.leave[-1]) + self._log_early(phases)

    def _made(self, num_phases: int, passing: float, early: float) -> Phases:
        leave = np.full(num_phases, early)
        leave[-1] = passing
        advance = np.full(num_phases, (1.0 - early) * passing)
        advance[-1] = 0.0
        return Phases(1.0 - advance - leave, advance, leave)


def _one(stay: float, leave: float) -> Phases:
    return Phases(np.array([stay]), np.zeros(1), np.array([leave]))


def _mode(left: float, kept: float) -> float:
    return float((left + _PSEUDO) / (left + kept + 2.0 * _PSEUDO))


def _log_beta(leave: float) -> float:
    return float(_PSEUDO * (np.log(leave) + np.log1p(-leave)))


def build_geometric(config: GeometricConfig, task: TaskSpec) -> ContextDuration:  # noqa: ARG001
    """Build `geometric`."""
    return Geometric()


def build_minimum(config: MinimumConfig, task: TaskSpec) -> ContextDuration:  # noqa: ARG001
    """Build `minimum`."""
    check_settings(config, "duration")
    return Minimum(config)


def build_negative_binomial(config: NegativeBinomialConfig, task: TaskSpec) -> ContextDuration:  # noqa: ARG001
    """Build `negative_binomial`."""
    check_settings(config, "duration")
    return NegativeBinomial(config)
