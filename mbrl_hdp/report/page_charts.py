"""The charts of a page, from what was gathered: learning curves, lengths of stays, reliability."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup

from mbrl_hdp.report.curves import PAPER_RETURNS, RunHistory
from mbrl_hdp.report.svg import Axes, Line, chart

if TYPE_CHECKING:
    from mbrl_hdp.report.compare import Comparison

_WIDE, _HIGH = 680, 300
_EPISODES = "real episodes seen so far"


def context(number: int) -> str:
    """Return the colour of a context, which the style sheet knows."""
    return f"var(--c{number})"


def learning_curve(history: RunHistory) -> tuple[Markup, list[Line]]:
    """Draw the evaluations of one run, with the paper's return and that of random actions where known."""
    episodes, mean, std = history.evaluations
    band = (mean - std).tolist(), (mean + std).tolist()
    lines = [Line("evaluation: mean and standard deviation over its episodes", episodes.tolist(), mean.tolist(),
                  context(0), *band)]  # fmt: skip
    seen = history.columns["num_real_episodes"].tolist()
    lines.append(Line("training episodes", seen, history.columns["train_return"].tolist(), "var(--soft)", width=1.0))
    ends = [0.0, max(seen)]
    paper = PAPER_RETURNS.get((history.env, history.agent))
    if paper is not None:
        lines.append(Line(f"the paper: {paper:g}", ends, [paper] * 2, context(0), style="dashed", width=1.2))
    if history.random_return is not None:
        value = history.random_return
        lines.append(Line(f"random actions: {value:.4g}", ends, [value] * 2, "var(--soft)", style="dashed", width=1.2))
    axes = Axes(
        "real episodes seen so far", "return", "learning curve", _WIDE, _HIGH, (0.0, max(*ends, 1.0)), whole_x=True
    )
    return chart(lines, axes), lines


def metric_curve(history: RunHistory, key: str, label: str) -> Markup:
    """Draw one column of metrics.csv over the real episodes; empty where it has no value."""
    values = history.columns.get(key)
    if values is None or not np.isfinite(values).any():
        return Markup("")
    places = history.columns["num_real_episodes"]
    known = np.isfinite(values)
    top = max(float(values[known].max()) * 1.15, 1.0)
    axes = Axes(
        _EPISODES, label, label, 340, 200, (0.0, float(places.max())), (0.0, top), True, _is_whole(values[known])
    )
    return chart([Line(label, places[known].tolist(), values[known].tolist(), context(2))], axes)


def _is_whole(values: np.ndarray[Any, Any]) -> bool:
    return bool((values % 1 == 0).all() and values.max() > 1)


def group_curves(comparison: Comparison, env: str) -> tuple[Markup, list[Line]]:
    """Draw the groups of runs of one environment: mean over seeds, 95 % interval, every seed as a thin line."""
    lines, thin = list[Line](), list[Line]()
    for number, (row, curve) in enumerate(zip(comparison.rows, comparison.curves, strict=True)):
        if curve.env != env:
            continue
        num_seeds = len(row.seeds) + len(row.unfinished)
        name = f"{curve.name} ({'1 seed' if num_seeds == 1 else f'{num_seeds} seeds'})"
        band = (curve.low, curve.high) if curve.low else (None, None)
        lines.append(Line(name, curve.episodes, curve.mean, context(number), *band))
        thin += [Line("", x, y, context(number), width=0.6) for x, y in curve.seeds]
    last = max([place for line in thin for place in line.x], default=1.0)
    axes = Axes(
        "real episodes seen so far", "return", f"learning curves on {env}", _WIDE, _HIGH, (0.0, last), whole_x=True
    )
    return chart([*thin, *lines], axes), lines


def survival(dwell: Mapping[str, Any], stay: float, number: int, fitted: Mapping[str, Any] | None = None) -> Markup:
    """Draw the share of stays in a context that last longer: counted in the labels, and by the model.

    Args:
        dwell: what was counted.
        stay: probability of staying, for a model without phases.
        number: which context.
        fitted: `steps` and `survival` of the model, where they were written.
    """
    last = max(*dwell["steps"], 1)
    if fitted is None and stay < 1.0:
        last = max(last, min(4.0 / max(1.0 - stay, 1e-6), 3.0 * last))
    places = np.linspace(0.0, last, 60)
    curve = places.tolist(), (max(stay, 0.0) ** places).tolist()
    if fitted is not None:
        curve = fitted["steps"], fitted["survival"]
        last = max(last, *fitted["steps"])
    counted = [*zip(dwell["steps"], dwell["survival"], strict=True)]
    steps, shares = [x for x, _ in counted], [y for _, y in counted]
    lines = [
        Line("model", *curve, "var(--ink)", style="dashed", width=1.2),
        Line("labels", steps, shares, context(number), style="step"),
    ]
    title = f"share of stays in context {number} that last longer than so many steps"
    return chart(lines, Axes("steps", "share that lasts longer", title, 300, 190, (0.0, last), (0.0, 1.02)))


def stays(fit: Mapping[str, Any], number: int) -> Markup:
    """Draw how many stays ended after so many steps: counted in the labels, and as the model expects."""
    edges = [edge + 0.5 for edge in fit["edges"]]
    lines = [
        Line("labels", edges, [*fit["counted"], 0], context(number), style="step"),
        Line("model", edges, [*fit["expected"], 0], "var(--ink)", style="step", width=1.2),
    ]
    title = f"stays in context {number} that ended after so many steps"
    top = 1.08 * max(*fit["counted"], *fit["expected"], 1.0)
    return chart(lines, Axes("steps", "stays that ended", title, 300, 190, (0.0, edges[-1]), (0.0, top)))


def reliability(summary: Mapping[str, Any]) -> tuple[Markup, list[Line]]:
    """Draw predicted probability against how often it is right."""
    lines = [Line("as often right as it says", [0.0, 1.0], [0.0, 1.0], "var(--soft)", style="dashed", width=1.2)]
    for number, (key, name) in enumerate(CALIBRATIONS):
        found = summary["counted"][key]
        if found is not None:
            bins = found["bins"]
            column = {name: [each[name] for each in bins] for name in ("predicted", "right", "low", "high")}
            lines.append(Line(name, column["predicted"], column["right"], context(number), column["low"],
                              column["high"], style="points"))  # fmt: skip
    title = "frequency of being right against predicted probability"
    axes = Axes("probability of the most likely context", "share of steps in which it is right", title, 340, 320,
                (0.0, 1.0), (0.0, 1.02))  # fmt: skip
    return chart(lines, axes), lines


CALIBRATIONS = (
    ("calibration_before", "before the step is seen (what a controller has)"),
    ("calibration_after", "once the step is seen"),
)


def matrix_shares(counts: Sequence[Sequence[float]]) -> list[list[float | None]]:
    """Return the rows of a matrix of counts as shares; None in rows without any."""
    return [[value / sum(row) if sum(row) else None for value in row] for row in counts]


def true_order(truth: Mapping[str, Any]) -> list[int]:
    """Return the true contexts in the order of the learned ones that they were matched to; the unmatched come last."""
    matched = [label for label in truth["to_true"] if label >= 0]
    return matched + [label for label in range(len(truth["transition"])) if label not in matched]


def taken(rows: Sequence[Sequence[Any]], which: Sequence[int], columns: Sequence[int]) -> list[list[Any]]:
    """Return some rows and columns of a matrix, in this order; columns that it does not have are 0."""
    return [[rows[row][column] if column < len(rows[row]) else 0 for column in columns] for row in which]


def log_width(value: float, smallest: float) -> float:
    """Return the length of a bar on a logarithmic scale from `smallest` to 1, 0 to 100."""
    floor = math.log(max(smallest, 1e-9))
    return 100.0 * min(max(1.0 - math.log(max(value, 1e-12)) / floor, 0.0), 1.0)
