"""Which plugins a model is made of, and how it came about: what is saved beside its numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Part:
    """Which plugin a part of the model is, with its settings, so that a saved model can be built again."""

    name: str
    config: Any


@dataclass(frozen=True)
class ModelParts:
    """The plugins that a model is made of; without a duration, contexts last as its chain says."""

    prior: Part
    dynamics: Part
    distillation: Part
    duration: Part | None = None


@dataclass
class FitReport:
    """How a model came about; saved with it.

    Attributes:
        num_episodes: episodes it was learned from.
        num_transitions: their transitions without missing values.
        seed: seed of the fit.
        runs: one entry a run: transition model, where it started, steps that it took, whether it ended before the last
            one, scores on held-out data, whether it was taken.
        polish: steps that the last phase took and whether early stopping ended it; empty where there was none.
        search: what the structure search found, and the runs that were left out because nothing was left to explain.
        levels: the tree of merges (`mbrl_hdp.inference.levels.MergeLevel`), the model's own contexts first; empty
            after a refit.
        duration: how long contexts last: name, number of phases of each, how episodes begin, what was compared.
        num_held_out: episodes that the runs were scored on and did not learn from; 0: scored on the data of learning.
        num_pieces: pieces that few long episodes were cut into, to hold some out; 0: episodes were left whole.
        fit_time_s: seconds that the fit took.
        num_steps: all their transitions; None in models of earlier versions.
    """

    num_episodes: int = 0
    num_transitions: int = 0
    seed: int = 0
    runs: list[dict[str, Any]] = field(default_factory=list)
    polish: dict[str, Any] = field(default_factory=dict)
    search: dict[str, Any] = field(default_factory=dict)
    levels: list[dict[str, Any]] = field(default_factory=list)
    duration: dict[str, Any] = field(default_factory=dict)
    num_held_out: int = 0
    num_pieces: int = 0
    fit_time_s: float = 0.0
    num_steps: int | None = None
