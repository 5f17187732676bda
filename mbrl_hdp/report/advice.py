"""What is reported about a fit: how sure its contexts are (`inference.verdict`), and what to change."""

from __future__ import annotations

from dataclasses import dataclass

from mbrl_hdp.inference.verdict import SURE, Found, judge, rounded


@dataclass(frozen=True)
class Advice:
    """A judgement.

    Attributes:
        level: sure, fairly sure or unsure; what these mean stands in `inference.verdict`.
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
        found: `inference.verdict.facts` of the model.
    """
    judged = judge(found)
    suggestions = list(dict.fromkeys(f"{doubt}: {remedy}" for doubt, remedy in judged.doubts))
    return Advice(
        judged.level,
        f"{judged.level}, {judged.reason}",
        judged.level == SURE,
        [doubt for doubt, _ in judged.doubts],
        suggestions + _usual(found),
    )


def _usual(found: Found) -> list[str]:
    """Return the settings that matter most, with the direction they work in."""
    return [*_thresholds(found), *_pull(found), *_inputs(found)]


def _inputs(found: Found) -> list[str]:
    """Return how to treat a column that drives the system: its own unexplained changes would be contexts."""
    if found["num_contexts"] == 1:
        return []
    return [
        "a context only says how one column moves, and nothing recorded influences that column (weather, load, a "
        "set-point): make it an input, act=[COLUMN], so that contexts explain the other columns"
    ]


def _thresholds(found: Found) -> list[str]:
    threshold = found["threshold"]
    if threshold is None:
        return [f"too many or too few contexts: the settings of distillation={found['parts']['distillation']}"]
    smallest, lower = min(found["stationary"]), rounded(threshold / 4)
    drop = rounded(max(1.2 * smallest, 2 * threshold))
    fewer = [f"distillation.test_threshold={drop} (now {threshold:g}) drops the rarest"] if smallest < 0.25 else []
    fewer += [
        "fit.num_steps=1000 lets duplicate contexts merge",
        f"distillation.train_threshold={max(0.1, drop / 2):.1g} masks more",
    ]
    return [
        *([f"too many contexts: {'; '.join(fewer)}"] if found["num_contexts"] > 1 else []),
        f"too few: distillation.train_threshold={lower} distillation.test_threshold={lower} fit.num_steps=1000",
    ]


def _pull(found: Found) -> list[str]:
    """Return advice if the prior's pull on the rows is not small against the data."""
    pull, fewest = found["row_concentration"], min(found["stationary"]) * found["num_transitions"]
    if pull is None or found["num_contexts"] == 1 or pull < 0.02 * fewest:
        return []
    return [
        "contexts seem to last too short a time: duration=auto estimates their stays without the prior's pull, or "
        f"prior.row_concentration={rounded(0.01 * fewest, 1e6):g} (the prior weighs as much as {pull:g} steps a "
        f"context, and the rarest one has {fewest:.0f})"
    ]
