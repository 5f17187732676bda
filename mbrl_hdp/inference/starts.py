"""The candidates of a fit: which transition models are trained, and what each training starts from."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mbrl_hdp.inference.model import ContextModel, Part
from mbrl_hdp.inference.schedule import SEARCHED, TEMPERED, FitConfig, Schedule
from mbrl_hdp.inference.search import Structure
from mbrl_hdp.inference.terms import term_texts
from mbrl_hdp.types import ContextChain

# Name of the start from calm and rough times of one context.
NOISE_LEVELS = "noise levels"
# Name of the start from the contexts of the search with thresholds that keep the rarest.
RARE = "search, rare contexts"
# Name of the start from contexts of a model that were divided by its residuals.
DIVIDED = "divided"
# Noise with heavy tails and noise that is correlated, in the settings of a transition model and in reports.
STUDENT, FULL = "student", "full"
# Sines of a column at these frequencies, in its own units, make it an angle in radians.
_ANGLE_TURNS = (1.0, 2.0)
# A share beyond this many times a threshold stays beyond it while the chain is learned.
_CLEARLY_KEPT = 2.0


@runtime_checkable
class SeveralDynamics(Protocol):
    """Settings that stand for several transition models, of which the data decides."""

    def candidates(self) -> Sequence[tuple[str, Any]]:
        """Return name and settings of every model."""


@runtime_checkable
class NoiseDynamics(Protocol):
    """Settings that stand for further transition models where noise has heavy tails or is correlated."""

    def for_noise(self, kind: str) -> Sequence[tuple[str, Any]]:
        """Return name and settings of the models for `STUDENT` or `FULL` noise."""


@runtime_checkable
class ThresholdSettings(Protocol):
    """Settings of a distillation rule that drops contexts whose mass is below a threshold."""

    train_threshold: float
    test_threshold: float


@dataclass(frozen=True)
class Contexts:
    """Contexts to start from.

    Attributes:
        probability: probability of every context at every step, `N T k`.
        transition: chain, `k k`.
        places: slot of every context; None takes the first slots.
    """

    probability: Float[np.ndarray, "N T k"]
    transition: Float[np.ndarray, "k k"]
    places: Int[np.ndarray, " k"] | None = None

    @property
    def num_contexts(self) -> int:
        """Number of contexts."""
        return len(self.transition)

    def is_used(self, max_contexts: int, device: torch.device) -> Bool[Tensor, " K"]:
        """Return which slots the contexts take."""
        used = torch.zeros(max_contexts, dtype=torch.bool, device=device)
        used[torch.as_tensor(self._places, device=device)] = True
        return used

    def slots(self, max_contexts: int, device: torch.device) -> Float[Tensor, "N T K"]:
        """Return the probabilities in their slots of a model."""
        padded = np.zeros((*self.probability.shape[:2], max_contexts), np.float32)
        padded[..., self._places] = self.probability
        return torch.as_tensor(padded, device=device)

    def chain(self, max_contexts: int, device: torch.device) -> ContextChain:
        """Return the chain in its slots; the other slots are never entered, and left for any."""
        first = np.full(self.num_contexts, 1.0 / self.num_contexts)
        own = ContextChain(*(torch.as_tensor(x, dtype=torch.float32, device=device) for x in (first, self.transition)))
        return placed_chain(own, torch.as_tensor(self._places, device=device), max_contexts)

    @property
    def _places(self) -> Int[np.ndarray, " k"]:
        return np.arange(self.num_contexts) if self.places is None else self.places


def placed_chain(chain: ContextChain, places: Int[Tensor, " k"], max_contexts: int) -> ContextChain:
    """Return a chain in given slots; the other slots are never entered, and left for any."""
    initial = chain.initial.new_zeros(max_contexts)
    transition = chain.initial.new_full((max_contexts, max_contexts), 1.0 / max_contexts)
    initial[places] = chain.initial
    transition[places] = 0.0
    transition[places[:, None], places] = chain.transition
    return ContextChain(initial, transition)


@dataclass(frozen=True)
class Start:
    """One candidate.

    Attributes:
        name: where it starts, for reports.
        dynamics: the transition model.
        schedule: when what happens in a training by gradients.
        contexts: contexts to start from; None starts from random heads, or from those of a model that is refitted.
        model: model to go on from in place of a fresh one.
        is_refit: go on from a model as it is.
        distillation: distillation rule in place of the fit's.
    """

    name: str
    dynamics: Part
    schedule: Schedule
    contexts: Contexts | None = None
    model: ContextModel | None = None
    is_refit: bool = False
    distillation: Part | None = None

    @property
    def num_searched(self) -> int:
        """Number of contexts that the structure search accepted, where it starts from these; else 0."""
        return self.contexts.num_contexts if self.contexts is not None and self.name in (SEARCHED.name, RARE) else 0


def rule_for_rare(rule: Part, structure: Structure) -> Part | None:
    """Return a distillation rule that keeps the rarest context of the search.

    None where the rule does so already, has no thresholds, or has some that the user chose.
    """
    config = rule.config
    if not isinstance(config, ThresholdSettings) or config != type(config)():
        return None
    rarest = float(structure.probability.sum((0, 1)).min() / structure.probability.sum())
    if rarest >= _CLEARLY_KEPT * max(config.train_threshold, config.test_threshold):
        return None
    lower = rarest / _CLEARLY_KEPT**2
    changed = copy.copy(config)
    changed.train_threshold, changed.test_threshold = (
        min(threshold, lower) for threshold in (config.train_threshold, config.test_threshold)
    )
    return Part(rule.name, changed)


def informed(part: Part, structure: Structure | None, obs_dim: int, angles: Sequence[int] = ()) -> Part:
    """Return a transition model's settings with what the search says and the user left open: features, angles."""
    known = {field.name for field in dataclasses.fields(part.config)}
    changes: dict[str, Any] = {}
    if structure is not None and "terms" in known and not part.config.terms:
        changes["terms"] = term_texts(structure.features)
    if "angle_columns" in known and not part.config.angle_columns:
        found = [] if structure is None else angle_columns(structure, obs_dim)
        changes["angle_columns"] = sorted({*angles, *found})
    return Part(part.name, dataclasses.replace(part.config, **changes)) if changes else part


def angle_columns(structure: Structure, obs_dim: int) -> list[int]:
    """Return the observation columns that the chosen features treat as angles in radians."""
    rows = structure.features.library.rows
    columns = set()
    for factor in {factor for term in structure.features.terms for factor in term}:
        is_turn = factor.kind in ("sin", "cos") and factor.number in _ANGLE_TURNS
        if is_turn and np.ptp(rows.raw_inputs[:, factor.column]) > np.pi:
            columns.add(int(rows.input_columns[factor.column]))
    return sorted(column for column in columns if column < obs_dim)


def plan_starts(
    part: Part, has_closed_form: bool, structure: Structure | None, config: FitConfig, is_alone: bool = True
) -> list[Start]:
    """Return the candidates of one transition model.

    Heads with a closed form start from the contexts of the search, as one context or from the levels of noise of the
    only one, and `fit.num_restarts` times from
    random heads; where several transition models are compared, those with chosen features leave the last out, which
    would take long. Other heads start from the contexts of the search and from random heads, `fit.num_restarts`
    runs in all. Without a search all start from random heads.
    """
    schedules = [config.schedules[run % len(config.schedules)] for run in range(config.num_restarts)]
    at_random = [Start(schedule.name, part, schedule) for schedule in schedules]
    if structure is None:
        return at_random
    found = Start("search", part, SEARCHED, Contexts(structure.probability, structure.transition))
    if config.num_contexts is not None:
        return [found]
    if not has_closed_form:
        return [found, *at_random[: config.num_restarts - 1]]
    starts = [found]
    if structure.noise_levels is not None:
        levels = structure.noise_levels
        starts.append(Start(NOISE_LEVELS, part, SEARCHED, Contexts(levels.probability, levels.transition)))
    if structure.num_contexts > 1:
        everywhere = structure.probability.sum(-1, keepdims=True)
        starts.append(Start("one context", part, SEARCHED, Contexts(everywhere, np.ones((1, 1)))))
    if is_alone or not hasattr(part.config, "terms"):
        starts += [Start("tempered", part, TEMPERED)] * config.num_restarts
    return starts
