"""What a duration is: how the phases of a context follow from what was counted, with a prior of their own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Int

from mbrl_hdp.probability.phase_paths import survival_loops
from mbrl_hdp.types import PhaseChain

_TINY = 1e-300


class Phases(NamedTuple):
    """The phases of one context: probabilities, or expected numbers of steps.

    Attributes:
        stay: a step stays in the phase.
        advance: it leads to the next phase; 0 in the last one.
        leave: it leaves the context.
    """

    stay: Float[np.ndarray, " n"]
    advance: Float[np.ndarray, " n"]
    leave: Float[np.ndarray, " n"]

    def survival(self, num_steps: int) -> Float[np.ndarray, " n1"]:
        """Return the probability that a stay lasts longer than n steps, for n = 0, ..., `num_steps`."""
        found = np.empty(num_steps + 1)
        survival_loops(self.stay, self.advance, found)
        return found


def split_phases(chain: PhaseChain) -> list[Phases]:
    """Return the phases of every context of a chain."""
    ends = np.cumsum(chain.sizes)
    stay, advance, leave = (value.detach().double().cpu().numpy() for value in (chain.stay, chain.advance, chain.leave))
    parts = [slice(end - size, end) for size, end in zip(chain.sizes, ends, strict=True)]
    return [Phases(stay[part], advance[part], leave[part]) for part in parts]


class Stays(NamedTuple):
    """Stays in one context, read off labels.

    Attributes:
        lengths: steps of every stay.
        is_ended: whether the context was left; False where the episode ended first.
    """

    lengths: Int[np.ndarray, " n"]
    is_ended: Bool[np.ndarray, " n"]

    def log_likelihood(self, phases: Phases) -> float:
        """Return log p(stays): of ended ones the length, of cut ones that they last at least as long."""
        if not len(self.lengths):
            return 0.0
        survival = phases.survival(int(self.lengths.max()))
        reached = survival[self.lengths - 1]
        chance = np.where(self.is_ended, reached - survival[self.lengths], reached)
        return float(np.log(np.maximum(chance, _TINY)).sum())


class ContextDuration(ABC):
    """How long contexts last: a family of phases with its prior.

    The number of phases of every context is found by `fit`, up to `max_phases`. A phase that can be left with a small
    probability, however early, keeps filters alive when a context is left sooner than it ever was in the data, and
    keeps the messages fast (`mbrl_hdp.probability.semi_markov`).

        class Geometric(ContextDuration):
            max_phases = 1

            def start(self, num_phases, stays):
                ended = stays.is_ended.sum()
                return self.update(Phases(np.array([stays.lengths.sum() - ended]), np.zeros(1), np.array([ended])))

            def update(self, counts):
                leave = (counts.leave + 1.0) / (counts.stay + counts.leave + 2.0)
                return Phases(1.0 - leave, np.zeros(1), leave)

            def log_prior(self, phases):
                return float(np.log(phases.leave * phases.stay).sum())

    Attributes:
        max_phases: largest number of phases of a context.
    """

    max_phases: int

    @abstractmethod
    def start(self, num_phases: int, stays: Stays) -> Phases:
        """Return phases that suit given stays, to start learning from."""

    @abstractmethod
    def update(self, counts: Phases) -> Phases:
        """Return the phases that maximise sum(counts * log(phases)) + log_prior(phases): the M step of EM.

        Args:
            counts: expected numbers of steps of one context, from the messages.
        """

    @abstractmethod
    def log_prior(self, phases: Phases) -> float:
        """Return the log density of the prior at the phases of one context, up to a constant."""


@runtime_checkable
class SeveralDurations(Protocol):
    """Settings that stand for several durations, of which held-out episodes decide."""

    def candidates(self) -> Sequence[tuple[str, Any]]:
        """Return name and settings of every duration, the one that is preferred where nothing is clear first."""


class LabelledStays(NamedTuple):
    """Every stay in the labels of some episodes.

    Attributes:
        context: which context.
        lengths: its steps.
        is_cut: whether the end of the episode came first.
        is_first: whether it began with the episode: it may have begun earlier than that.
    """

    context: Int[np.ndarray, " n"]
    lengths: Int[np.ndarray, " n"]
    is_cut: Bool[np.ndarray, " n"]
    is_first: Bool[np.ndarray, " n"]

    def of(self, context: int, has_first: bool) -> Stays:
        """Return the stays in a context; those that begin with an episode only if asked, or if there are no others."""
        is_own = self.context == context
        chosen = is_own if has_first else is_own & ~self.is_first
        if not chosen.any():
            chosen = is_own
        return Stays(self.lengths[chosen], ~self.is_cut[chosen])


def labelled_stays(labels: Int[np.ndarray, "N T"]) -> LabelledStays:
    """Measure the stays in labels; -1 ends an episode.

    Example:
        >>> labelled_stays(np.array([[0, 0, 1], [1, -1, -1]])).lengths
        array([2, 1, 1])
    """
    padded = np.concatenate([labels, np.full((len(labels), 1), -1, dtype=labels.dtype)], axis=1)
    flat = padded.reshape(-1)
    # The column of -1 keeps episodes apart: a run never reaches from one into the next.
    starts = np.append(0, np.flatnonzero(np.diff(flat)) + 1)
    lengths, values = np.diff(np.append(starts, len(flat))), flat[starts]
    is_cut, is_first = np.append(values[1:], -1) < 0, starts % padded.shape[1] == 0
    inside = values >= 0
    return LabelledStays(values[inside], lengths[inside], is_cut[inside], is_first[inside])
