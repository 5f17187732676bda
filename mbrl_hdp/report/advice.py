"""Judge a fit from its own numbers: how sure its contexts are, and what to change.

Three levels, by agreement on the labels of the steps (adjusted Rand index, 1 is the same labels):

- sure: nothing speaks against the contexts; searches on both halves of the episodes, begun anew, label the steps as the
  model does (index of at least .9), and so does every run that held-out episodes do not tell apart from the best one.
- fairly sure: nothing speaks against them, but no such searches were made, or a context looks like a region.
- unsure: something speaks against them, or labels differ between halves or between runs that are equally good.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

_FEW_STEPS = 5000
_FEW_STEPS_A_CONTEXT = 100
_CLEAR_FACTOR = 2.0
_SHORT_DWELL = 2.0
_UNCLEAR_LABELS = 0.9
# Labels with a smaller adjusted Rand index are not the same.
SAME_LABELS = 0.9
# A context with a larger share of its switching explained by state and action looks like a region.
_REGION = 0.3

SURE, FAIRLY_SURE, UNSURE = "sure", "fairly sure", "unsure"

Found = dict[str, Any]


@dataclass(frozen=True)
class Advice:
    """A judgement.

    Attributes:
        level: sure, fairly sure or unsure; what these mean stands at the top of this module.
        verdict: the level and its reason, one line.
        is_sure: whether the level is `sure`.
        doubts: what speaks against the contexts.
        suggestions: settings to change, the ones that answer a doubt first.
    """

    level: str
    verdict: str
    is_sure: bool
    doubts: list[str]
    suggestions: list[str]


def advise(found: Found) -> Advice:
    """Judge a fit.

    Args:
        found: fields of `FitSummary` by name: num_contexts, max_contexts, slots, stationary, slot_mass, threshold,
            mean_dwell, certainty, runs, half_agreement, regions, num_transitions, parts.
    """
    pairs = [pair for check in _CHECKS for pair in check(found)]
    doubts = [doubt for doubt, _ in pairs]
    suggestions = list(dict.fromkeys(f"{doubt}: {remedy}" for doubt, remedy in pairs))
    level, reason = (UNSURE, f"since {'; '.join(doubts)}") if doubts else _assurance(found)
    return Advice(level, f"{level}, {reason}", level == SURE, doubts, suggestions + _usual(found))


def _assurance(found: Found) -> tuple[str, str]:
    """Return level and reason where nothing speaks against the contexts."""
    halves = found["half_agreement"]
    if len(halves) < 2:
        return FAIRLY_SURE, "but the search was not repeated on halves of the episodes (fit.halves_within_s)"
    regions = [share for share in found["regions"] if share is not None and share > _REGION]
    if regions:
        return FAIRLY_SURE, (
            f"but state and action explain {max(regions):.0%} of when a context is left: it may be a region"
        )
    num_good = len(_good_runs(found))
    return SURE, (
        f"since searches on both halves of the episodes label the steps alike (adjusted Rand index "
        f"{min(halves):.2f} or more), and so {'does the best run' if num_good == 1 else f'do the {num_good} best runs'}"
    )


def _all_slots(found: Found) -> Iterator[tuple[str, str]]:
    if found["num_contexts"] == found["max_contexts"] > 1:
        yield (
            f"all {found['max_contexts']} slots are in use, so there may be more contexts",
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
            f"if it is not a real context, distillation.test_threshold={_rounded(1.5 * smallest)}",
        )
    dropped = [mass for slot, mass in enumerate(found["slot_mass"]) if slot not in found["slots"]]
    if dropped and max(dropped) > threshold / _CLEAR_FACTOR:
        largest = max(dropped)
        lower = _rounded(largest / 2)
        yield (
            f"a dropped slot still holds {largest:.1%}, close to the threshold of {threshold:.1%}",
            f"if a rare context is missing, distillation.train_threshold={lower} distillation.test_threshold={lower}",
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
            f"a search on half of the episodes labels the steps differently (adjusted Rand index {min(halves):.2f})",
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
    _all_slots, _near_threshold, _runs_differ, _halves_differ, _little_data, _flips, _unclear
)  # fmt: skip


def _good_runs(found: Found) -> list[dict[str, Any]]:
    """Return the runs that held-out episodes do not tell apart from the best one."""
    return [run for run in found["runs"] if run.get("equally_good", run["taken"])]


def _usual(found: Found) -> list[str]:
    """Return the settings that matter most, with the direction they work in."""
    return [*_thresholds(found), *_pull(found)]


def _thresholds(found: Found) -> list[str]:
    threshold = found["threshold"]
    if threshold is None:
        return [f"too many or too few contexts: the settings of distillation={found['parts']['distillation']}"]
    smallest, lower = min(found["stationary"]), _rounded(threshold / 4)
    drop = _rounded(max(1.2 * smallest, 2 * threshold))
    fewer = [f"distillation.test_threshold={drop} (now {threshold:g}) drops the rarest"] if smallest < 0.25 else []
    fewer += [
        "fit.num_steps=1000 lets duplicate contexts merge",
        f"distillation.train_threshold={max(0.1, drop / 2):.1g} masks more",
    ]
    return [
        f"too many contexts: {'; '.join(fewer)}",
        f"too few: distillation.train_threshold={lower} distillation.test_threshold={lower} fit.num_steps=1000",
    ]


def _pull(found: Found) -> list[str]:
    """Return advice if the prior's pull on the rows is not small against the data."""
    pull, fewest = found.get("row_concentration"), min(found["stationary"]) * found["num_transitions"]
    if pull is None or found["num_contexts"] == 1 or pull < 0.02 * fewest:
        return []
    return [
        f"contexts seem to last too short a time: prior.row_concentration={_rounded(0.01 * fewest, 1e6):g} (the prior "
        f"weighs as much as {pull:g} steps a context, and the rarest one has {fewest:.0f})"
    ]


def _rounded(value: float, largest: float = 0.9) -> float:
    """Return one digit, as a person would type it."""
    return float(f"{min(value, largest):.1g}")
