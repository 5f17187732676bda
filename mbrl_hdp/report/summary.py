"""What a fit found, how sure that is and what to change if it looks wrong: as text and as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mbrl_hdp.data.atomic import atomic_path
from mbrl_hdp.data.names import Names
from mbrl_hdp.data.past import past_width, with_past_names
from mbrl_hdp.experiments.summary import git_commit, versions
from mbrl_hdp.inference.analysis import Analysis
from mbrl_hdp.inference.model import ContextModel
from mbrl_hdp.inference.scoring import align, empirical_transition, switch_delays, transition_error
from mbrl_hdp.inference.verdict import facts
from mbrl_hdp.report.advice import Advice, advise
from mbrl_hdp.report.effects import Effect, effects
from mbrl_hdp.report.label_counts import Counted, count_labels
from mbrl_hdp.report.noise import correlated_noise, heavy_tails
from mbrl_hdp.report.sensor_noise import sensor_noise
from mbrl_hdp.report.sensor_spikes import sensor_spikes
from mbrl_hdp.report.stays import StayFit, stay_fits
from mbrl_hdp.report.summary_text import summary_text


@dataclass(frozen=True)
class Truth:
    """Scores against the true contexts of the data.

    Attributes:
        num_contexts: how many contexts the data has.
        accuracy: share of steps whose most likely context is right, after the best one-to-one matching.
        confusion: steps by learned (rows) and true (columns) context.
        to_true: true context matched to each learned one, -1 where none is left.
        transition: true moves, counted, in the true numbering.
        transition_error: largest absolute difference between matched entries of learned and counted matrix.
        switch_delay: mean steps from a true switch until the filter's largest entry is right.
    """

    num_contexts: int
    accuracy: float
    confusion: list[list[int]]
    to_true: list[int]
    transition: list[list[float]]
    transition_error: float
    switch_delay: float | None


@dataclass(frozen=True)
class FitSummary:
    """Everything that is reported about a fit.

    Attributes:
        num_contexts: contexts after distillation.
        max_contexts: slots that there were.
        slots: slot of every context, in order.
        stationary: long-run share of time of every context.
        initial: distribution of the first context.
        transition: p(next context | context).
        mean_dwell: expected steps until a context is left.
        slot_mass: long-run share of time of every slot before distillation.
        threshold: mass below which a slot is dropped at the end; None if the rule has no threshold.
        train_threshold: mass below which a slot is dropped while the model is learned; None likewise.
        certainty: mean over steps of the largest smoothed probability; None without data.
        log_likelihood: per observed transition, all data; None without data.
        runs: the runs with their held-out scores; `agreement`: adjusted Rand index with the labels of the one taken.
        half_agreement: adjusted Rand index with the labels found anew in each half of the episodes; empty: not made.
        regions: share of the entropy of leaving every context that state and action explain; None where unknown.
        levels: the tree of merges, the model's own contexts first: groups of contexts, evidence lost per step, its
            standard error; empty where none was computed.
        search: what the structure search found, and which runs were not needed; empty without a search.
        equations: what every context does to each column, where the transition model can be written down.
        num_episodes: episodes of the data.
        num_transitions: transitions of the data without missing values.
        num_steps: all transitions of the data; None where a model of an earlier version is asked without data.
        truth: scores against the truth; None where it is unknown.
        seed: seed of the fit.
        wall_time_s: seconds that it took.
        parts: name of prior, distillation rule and transition model.
        advice: verdict, and what to change.
        effects: what each context does; empty without data.
        remarks: what else a reader should know, a sentence each.
        names: names of the columns.
        counted: what was counted in the labels; None without data.
        is_held_out: whether the scores of `runs` are of episodes that they did not learn from.
        duration: how long contexts last: name, phases of every context, what was compared; empty where nothing was
            learned.
        stays: how long contexts stay in the labels and under the model; empty without data.
        row_concentration: pseudo-counts of the prior in every row of the chain; None where it has none.
        few_components: how many principal components hold almost all variance of many columns; None where few columns
            are given or they do not move together.
    """

    num_contexts: int
    max_contexts: int
    slots: list[int]
    stationary: list[float]
    initial: list[float]
    transition: list[list[float]]
    mean_dwell: list[float]
    slot_mass: list[float]
    threshold: float | None
    certainty: float | None
    log_likelihood: float | None
    runs: list[dict[str, Any]]
    half_agreement: list[float]
    regions: list[float | None]
    levels: list[dict[str, Any]]
    num_episodes: int
    num_transitions: int
    num_steps: int | None
    search: dict[str, Any]
    equations: list[list[str]]
    truth: Truth | None
    seed: int
    wall_time_s: float
    parts: dict[str, str]
    advice: Advice
    effects: list[Effect]
    remarks: list[str]
    names: Names
    counted: Counted | None
    train_threshold: float | None = None
    is_held_out: bool = False
    duration: dict[str, Any] = field(default_factory=dict)
    stays: list[StayFit] = field(default_factory=list)
    row_concentration: float | None = None
    few_components: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the content of summary.json; what is unknown is null."""
        truth = None if self.truth is None else asdict(self.truth)
        words = {
            **{key: value for key, value in asdict(self).items() if key not in {"truth", "advice"}},
            "context_accuracy": truth and truth["accuracy"],
            "transition_error": truth and truth["transition_error"],
            "switch_delay": truth and truth["switch_delay"],
            "truth": truth,
            **asdict(self.advice),
            "versions": versions(),
            "git_commit": git_commit(),
        }
        return _plain(words)

    def save(self, folder: Path) -> None:
        """Write summary.json and report.txt."""
        with atomic_path(folder / "summary.json") as path:
            path.write_text(json.dumps(self.as_dict(), indent=2) + "\n")
        with atomic_path(folder / "report.txt") as path:
            path.write_text(self.text() + "\n")

    def text(self) -> str:
        """Return the printed summary."""
        return summary_text(self)


def summarise(model: ContextModel, found: Analysis | None = None, names: Names | None = None) -> FitSummary:
    """Sum up a fitted model and what it says about the data it was learned from (or any other of the same columns).

    Args:
        model: the fitted model.
        found: `model.analyse(data)`; without it, what needs data is left out.
        names: names of the recorded columns; by default those of the data or the model, else numbers.
    """
    names = _with_past(model, names or _names(model, found))
    known = facts(model, found)
    truth = None if found is None else compare(model, found)
    return FitSummary(
        **known,
        initial=model.initial.tolist(),
        transition=model.transition.tolist(),
        log_likelihood=None if found is None else found.log_likelihood_per_step,
        levels=model.report.levels,
        num_steps=model.report.num_steps if found is None else int(found.data.is_step.sum()),
        equations=_equations(model, names),
        truth=truth,
        seed=model.report.seed,
        wall_time_s=model.report.fit_time_s,
        advice=advise(known),
        effects=[] if found is None else effects(model, found, names),
        remarks=_remarks(model, found, names),
        names=names,
        counted=None if found is None else count_labels(found, None if truth is None else truth.to_true),
        train_threshold=getattr(model.parts.distillation.config, "train_threshold", None),
        is_held_out=model.report.num_held_out > 0,
        duration=model.report.duration,
        stays=[] if found is None else stay_fits(model, found.most_likely),
    )


def _names(model: ContextModel, found: Analysis | None) -> Names:
    """Return the names of the data, else the model's; a model's own are better than numbers."""
    numbers = Names.numbered(model.task.obs_dim, model.task.act_dim)
    known = [names for names in (None if found is None else found.data.names, model.names) if names is not None]
    return next((names for names in known if tuple(names.obs) != numbers.obs), known[0] if known else numbers)


def _with_past(model: ContextModel, names: Names) -> Names:
    """Return the names of all inputs of the model; those of earlier steps are added to recorded ones."""
    is_recorded = past_width(len(names.obs), len(names.act), model.task.past) == model.task.act_dim
    return with_past_names(names, model.task.past) if is_recorded else names


def _equations(model: ContextModel, names: Names) -> list[list[str]]:
    """Return what the contexts do, where the transition model can say it in equations."""
    write = getattr(model.dynamics, "equations", None)
    return write(model.slots, [*names.obs, *names.act]) if callable(write) else []


def _remarks(model: ContextModel, found: Analysis | None, names: Names) -> list[str]:
    about_model = [*_past(model), *heavy_tails(model, names.obs), *correlated_noise(model, names.obs)]
    if found is None:
        return about_model
    about_sensors = (*sensor_noise(found, names.obs), *sensor_spikes(found.data, names.obs))
    return [*about_model, *_holes(found, model.task.past), *about_sensors]


def _past(model: ContextModel) -> Iterator[str]:
    """Yield what a model that looks at earlier steps was given, and why."""
    steps, gain = model.task.past, model.report.search.get("past_gain")
    if steps:
        last = "the last step" if steps == 1 else f"the last {steps} steps"
        why = "" if gain is None else (
            f": they gain {gain:.2f} nats a step, so a part of the state is not recorded, or an input acts late "
            "(past=0 leaves them out)"
        )  # fmt: skip
        yield f"changes and inputs of {last} are further inputs (*_ago_*){why}"


def _holes(found: Analysis, past: int = 0) -> Iterator[str]:
    """Yield how many transitions have missing values, and how many of these inform through the others.

    The first steps of an episode, which have no past, do not count.
    """
    data = found.data
    is_late = np.arange(data.max_steps) >= past
    num_holey = int((data.is_step & ~data.is_observed & is_late).sum())
    if num_holey:
        num_used = int(((found.log_lik != 0).any(-1).cpu().numpy() & ~data.is_observed & is_late).sum())
        steps = "1 step has" if num_holey == 1 else f"{num_holey} steps have"
        informs = f"{num_used} of them {'informs' if num_used == 1 else 'inform'}"
        yield f"{steps} missing values; {informs} through the values that are there"


def compare(model: ContextModel, found: Analysis) -> Truth | None:
    """Score a model against the true contexts of the data; None where they are unknown."""
    data = found.data
    if data.context is None or not (data.context >= 0).any():
        return None
    matched = align(found.most_likely, data.context)
    filtered = np.nan_to_num(found.filtered, nan=-1.0).argmax(-1)
    to_true = np.full(model.num_contexts, -1, dtype=np.int64)
    to_true[: len(matched.to_true)] = matched.to_true
    counted = empirical_transition(data.context)
    delays = switch_delays(np.where(data.is_step, to_true[filtered], -1), data.context)
    return Truth(
        num_contexts=len(np.unique(data.context[data.context >= 0])),
        accuracy=matched.accuracy,
        confusion=matched.confusion.tolist(),
        to_true=to_true.tolist(),
        transition=counted.tolist(),
        transition_error=transition_error(model.transition, counted, to_true),
        switch_delay=float(delays.mean()) if delays.size else None,
    )


def _plain(value: Any) -> Any:
    """Return what JSON can hold: numbers that are not finite become null."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
