"""How sure the contexts of a fit are: one judgement for reports and for the study that measures how often it is right.

Three levels, by agreement on the labels of the steps (adjusted Rand index, 1 is the same labels):

- sure: nothing speaks against the contexts; in both halves of the episodes the same contexts are found anew (index of
  at least .9, each time by the way that led to the model: a structure search, or training from random heads where that
  did better), and so they are in every run that held-out episodes do not tell apart from the best one.
- fairly sure: nothing speaks against them, but halves were not looked at, or a context looks like a region.
- unsure: something speaks against them, or labels differ between halves or between runs that are equally good.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from mbrl_hdp.data.reduction import ENOUGH, few_components
from mbrl_hdp.inference.agreement import FEWEST_EPISODES, REGION, SAME_LABELS
from mbrl_hdp.inference.analysis import Analysis
from mbrl_hdp.inference.model import ContextModel
from mbrl_hdp.probability.markov import stationary

_FEW_STEPS = 5000
_FEW_STEPS_A_CONTEXT = 100
_CLEAR_FACTOR = 2.0
_SHORT_DWELL = 2.0
_UNCLEAR_LABELS = 0.9

LEVELS = SURE, FAIRLY_SURE, UNSURE = "sure", "fairly sure", "unsure"

Found = dict[str, Any]


@dataclass(frozen=True)
class Judgement:
    """A judgement.

    Attributes:
        level: sure, fairly sure or unsure; what these mean stands at the top of this module.
        reason: why, the end of a sentence.
        doubts: what speaks against the contexts, each with the setting that answers it.
    """

    level: str
    reason: str
    doubts: list[tuple[str, str]]


def facts(model: ContextModel, found: Analysis | None = None) -> Found:
    """Return what a judgement looks at, under the names of `report.summary.FitSummary`.

    Args:
        model: the fitted model.
        found: `model.analyse(data)`; without it, what needs data is left out.
    """
    stay = np.diag(model.transition)
    pull = getattr(model.parts.prior.config, "row_concentration", None)
    return {
        "num_contexts": model.num_contexts,
        "max_contexts": model.task.max_contexts,
        "slots": np.flatnonzero(model.kept).tolist(),
        "stationary": model.stationary.tolist(),
        "slot_mass": slot_mass(model).tolist(),
        "threshold": threshold_of(model),
        "mean_dwell": [1.0 / max(1.0 - share, 1e-9) for share in stay],
        "certainty": None if found is None else float(found.smoothed[found.data.is_step].max(-1).mean()),
        "runs": model.report.runs,
        "half_agreement": model.report.search.get("half_agreement", []),
        "search": model.report.search,
        # A learned duration replaces the prior's chain, and with it the prior's pull.
        "row_concentration": None if model.phases is not None else pull,
        "few_components": None if found is None else few_components(found.data),
        "num_episodes": model.report.num_episodes if found is None else found.data.num_episodes,
        "regions": model.report.search.get("context_regions", [None] * model.num_contexts),
        "num_transitions": model.report.num_transitions if found is None else int(found.data.is_observed.sum()),
        "parts": {kind: getattr(model.parts, kind).name for kind in ("prior", "distillation", "dynamics")},
    }


def slot_mass(model: ContextModel) -> Float[np.ndarray, " K"]:
    """Return the stationary distribution of all slots, before distillation."""
    chain = model.posterior().chain
    return stationary(chain.transition, chain.initial).double().numpy()


def threshold_of(model: ContextModel) -> float | None:
    """Return the mass below which the distillation rule drops a slot, where it has such a threshold."""
    value = getattr(model.parts.distillation.config, "test_threshold", None)
    return None if value is None else float(value)


def judge(found: Found) -> Judgement:
    """Judge a fit by its `facts`."""
    doubts = [pair for check in _CHECKS for pair in check(found)]
    if doubts:
        return Judgement(UNSURE, f"since {'; '.join(doubt for doubt, _ in doubts)}", doubts)
    return Judgement(*_assurance(found), [])


def _assurance(found: Found) -> tuple[str, str]:
    """Return level and reason where nothing speaks against the contexts."""
    halves = found["half_agreement"]
    if len(halves) < 2:
        return FAIRLY_SURE, f"but this was not checked on halves of the data: {_no_halves(found)}"
    regions = [share for share in found["regions"] if share is not None and share > REGION]
    if regions:
        return FAIRLY_SURE, (
            f"but state and action explain {max(regions):.0%} of when a context is left: it may be a region"
        )
    num_good = len(_good_runs(found))
    return SURE, (
        f"since models learned from either half of the data alone label the steps alike (adjusted Rand index at "
        f"least {min(halves):.2f})" + ("" if num_good == 1 else f", and so do the {num_good} best runs")
    )


def _no_halves(found: Found) -> str:
    """Return why contexts were not searched for in halves of the data."""
    count = found["num_episodes"]
    if count < FEWEST_EPISODES:
        return f"{'1 episode is' if count == 1 else f'{count} episodes are'} too few (it takes {FEWEST_EPISODES})"
    if "num_contexts" not in found["search"]:
        return "that takes a new fit with fit.start=search"
    return "fit.halves_within_s=600 allows more time for it"


def _all_slots(found: Found) -> Iterator[tuple[str, str]]:
    if found["num_contexts"] == found["max_contexts"] > 1:
        yield (
            f"all {found['max_contexts']} contexts that were allowed are in use, so there may be more",
            f"max_contexts={2 * found['max_contexts']}",
        )


def _near_threshold(found: Found) -> Iterator[tuple[str, str]]:
    threshold = found["threshold"]
    if not threshold:
        return
    smallest = min(found["stationary"])
    if found["num_contexts"] > 1 and smallest < _CLEAR_FACTOR * threshold:
        yield (
            f"a context that is active {smallest:.1%} of the time is barely above the threshold of {threshold:.1%}",
            f"if it is not a real context, distillation.test_threshold={rounded(1.5 * smallest)}",
        )
    dropped = [mass for slot, mass in enumerate(found["slot_mass"]) if slot not in found["slots"]]
    # Slots without data share what the prior expects of contexts not yet seen: on a short log, several per cent each.
    alone = len(dropped) == 1 and dropped[0] > _prior_share(found)
    stands_out = alone or (len(dropped) > 1 and max(dropped) > _CLEAR_FACTOR * min(dropped))
    if stands_out and max(dropped) > threshold / _CLEAR_FACTOR:
        largest = max(dropped)
        lower = rounded(largest / 2)
        yield (
            f"a candidate context, dropped, still holds {largest:.1%}, close to the threshold of {threshold:.1%}",
            f"if a rare context is missing, distillation.train_threshold={lower} distillation.test_threshold={lower}",
        )


def _prior_share(found: Found) -> float:
    """Return the long-run share that the prior's pseudo-counts can give to a slot without any data."""
    pull = (found["row_concentration"] or 0.0) * found["num_contexts"]
    return float(pull / (pull + found["num_transitions"]) / (found["num_contexts"] + 1))


def _wide(found: Found) -> Iterator[tuple[str, str]]:
    count = found["few_components"]
    if found["num_contexts"] == 1 and count is not None:
        hold = "1 principal component holds" if count == 1 else f"{count} principal components hold"
        yield (
            f"the many columns move together ({hold} {ENOUGH:.1%} of their variance), which hides contexts",
            f"pca={count}, or fewer columns",
        )


def _runs_differ(found: Found) -> Iterator[tuple[str, str]]:
    good = _good_runs(found)
    counts = [run["num_contexts"] for run in good]
    labels = [run["agreement"] for run in good if run.get("agreement") is not None]
    remedy = "fit.num_steps=1000 fit.num_restarts=6, and compare another seed"
    if len(set(counts)) > 1:
        yield f"runs that predict equally well found {', '.join(map(str, counts))} contexts", remedy
    elif labels and min(labels) < SAME_LABELS:
        yield f"runs that predict equally well label the steps differently (index {min(labels):.2f})", remedy


def _halves_differ(found: Found) -> Iterator[tuple[str, str]]:
    halves = found["half_agreement"]
    if halves and min(halves) < SAME_LABELS:
        yield (
            f"a model learned from half of the data labels the steps differently (adjusted Rand index "
            f"{min(halves):.2f})",
            "record more, or look at the levels below",
        )


def _little_data(found: Found) -> Iterator[tuple[str, str]]:
    steps = found["num_transitions"]
    fewest = min(found["stationary"]) * steps
    has_networks = found["parts"]["dynamics"] not in ("linear", "sparse")
    remedy = "record more" + ("" if not has_networks else ", or dynamics=linear for a small log")
    if fewest < _FEW_STEPS_A_CONTEXT:
        yield f"some context has only about {fewest:.0f} steps of data", remedy
    elif steps < _FEW_STEPS and has_networks:
        yield f"{steps} steps are few for networks", "dynamics=linear"


def _flips(found: Found) -> Iterator[tuple[str, str]]:
    if found["num_contexts"] > 1 and min(found["mean_dwell"]) < _SHORT_DWELL:
        yield (
            f"a context lasts only {min(found['mean_dwell']):.1f} steps on average, which may be noise",
            "fit.num_restarts=6, another seed, or a richer or poorer dynamics",
        )


def _unclear(found: Found) -> Iterator[tuple[str, str]]:
    if found["certainty"] is not None and found["certainty"] < _UNCLEAR_LABELS:
        yield (
            f"the most likely context has mean probability {found['certainty']:.2f} only, so contexts look alike",
            "fit.num_steps=1000, or add columns in which they differ",
        )


_CHECKS: tuple[Callable[[Found], Iterator[tuple[str, str]]], ...] = (
    _all_slots, _near_threshold, _runs_differ, _halves_differ, _little_data, _wide, _flips, _unclear
)  # fmt: skip


def _good_runs(found: Found) -> list[dict[str, Any]]:
    """Return the runs that held-out episodes do not tell apart from the best one."""
    return [run for run in found["runs"] if run.get("equally_good", run["taken"])]


def rounded(value: float, largest: float = 0.9) -> float:
    """Return one digit, as a person would type it."""
    return float(f"{min(value, largest):.1g}")
