"""Figures of the studies: learned chains, contexts over time, curves (`mbrl_hdp.experiments.studies.drawings`)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import singledispatch
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from mbrl_hdp.data.atomic import atomic_path
from mbrl_hdp.experiments.studies.drawings import (
    BeliefPanel,
    ChainPanel,
    CoursePanel,
    CurvePanel,
    Drawing,
    Panel,
)
from mbrl_hdp.report.palette import context_colours

_PANELS_A_ROW = 3
_MOST_ANNOTATED = 6
_MOST_INSIDE = 6  # names in a legend that still fit beside the lines
_LINE_STYLES = ("-", "--", ":", "-.")


def save_drawings(drawings: Sequence[Drawing], folder: Path) -> list[Path]:
    """Draw figures into a folder, as PNG files; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{drawing.name}.png" for drawing in drawings]
    for drawing, path in zip(drawings, paths, strict=True):
        with atomic_path(path) as temporary:
            draw(drawing).savefig(temporary, format="png", dpi=110, bbox_inches="tight")
    return paths


def draw(drawing: Drawing) -> Figure:
    """Draw the panels of one figure, at most three in a row."""
    columns = min(len(drawing.panels), _PANELS_A_ROW)
    rows = -(-len(drawing.panels) // columns)
    height = max(_height(panel) for panel in drawing.panels)
    figure = Figure(figsize=(4.6 * columns + 0.4, height * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for ax, panel in zip(axes, drawing.panels, strict=False):
        _draw(panel, ax)
        ax.set_title(panel.title, fontsize=10)
    for ax in axes[len(drawing.panels) :]:
        ax.set_visible(False)
    return figure


def _height(panel: Panel) -> float:
    return 2.2 if isinstance(panel, CoursePanel | BeliefPanel) else 4.2


@singledispatch
def _draw(panel: Panel, ax: Any) -> None:
    raise TypeError(f"no drawing of {type(panel).__name__} on {ax}")


@_draw.register
def _(panel: ChainPanel, ax: Any) -> None:
    """Draw initial probabilities, transition matrix and stationary shares as rows of one heat map, with gaps."""
    size = len(panel.initial)
    gap = np.full((1, size), np.nan)
    parts = [np.atleast_2d(part) for part in (panel.initial, panel.transition, panel.stationary)]
    rows = np.concatenate([parts[0], gap, parts[1], gap, parts[2]])
    ax.imshow(np.ma.masked_invalid(rows), vmin=0.0, vmax=1.0, cmap="cividis", aspect="auto")
    names = [f"Z{slot}" for slot in range(size)]
    ax.set_xticks(range(size), names, fontsize=8)
    ax.set_yticks([0, *range(2, size + 2), size + 3], ["initial", *names, "long run"], fontsize=8)
    if size <= _MOST_ANNOTATED:
        for (row, column), value in np.ndenumerate(rows):
            if np.isfinite(value):
                ink = "black" if value > 0.5 else "white"
                ax.text(column, row, f"{value:.3f}", ha="center", va="center", color=ink, fontsize=7)
    ax.spines[:].set_visible(False)


@_draw.register
def _(panel: CoursePanel, ax: Any) -> None:
    """Draw true contexts above learned ones; a learned context has the colour of the true one it was matched to."""
    learned = _colour_numbers(panel)
    colours = context_colours(max([*panel.truth, *learned.values()]) + 1)
    for bottom, (letter, contexts) in enumerate((("Z", panel.labels), ("C", panel.truth))):
        starts = [0, *(t for t in range(1, len(contexts)) if contexts[t] != contexts[t - 1])]
        for start, end in zip(starts, [*starts[1:], len(contexts)], strict=True):
            context = contexts[start]
            number = learned[context] if letter == "Z" else context
            ax.barh(bottom, end - start, left=start, height=0.7, color=colours[number])
            if end - start >= 0.03 * len(contexts):
                ax.text(0.5 * (start + end), bottom + 0.42, f"{letter}{context}", ha="center", va="bottom", fontsize=7)
    ax.set(xlabel="step", xlim=(0, len(panel.truth)), ylim=(-0.5, 1.8))
    ax.set_yticks([0, 1], ["learned", "true"])
    ax.spines[["top", "right"]].set_visible(False)


@_draw.register
def _(panel: BeliefPanel, ax: Any) -> None:
    """Draw the probability of every context as a line; a strip above shows which context was active."""
    columns = list(zip(*panel.belief, strict=True))
    colours = context_colours(max(len(columns), max(panel.truth) + 1))
    for number, line in enumerate(columns):
        ax.plot(line, color=colours[number], linewidth=1.2, label=f"b{number}")
    starts = [0, *(t for t in range(1, len(panel.truth)) if panel.truth[t] != panel.truth[t - 1])]
    for start, end in zip(starts, [*starts[1:], len(panel.truth)], strict=True):
        ax.barh(1.12, end - start, left=start, height=0.12, color=colours[panel.truth[start]])
    ax.set(xlabel="step", xlim=(0, len(panel.truth)), ylim=(0.0, 1.25))
    ax.set_yticks([0.0, 0.5, 1.0, 1.12], ["0", "0.5", "1", "true"])
    ax.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    ax.spines[["top", "right"]].set_visible(False)


def _colour_numbers(panel: CoursePanel) -> dict[int, int]:
    """Return the colour of every learned context: that of its true one; unmatched ones have colours of their own."""
    matched = dict(enumerate(panel.to_true))
    free = iter(range(max(panel.truth) + 1, max(panel.truth) + len(set(panel.labels)) + 2))
    return {label: own if (own := matched.get(label, -1)) >= 0 else next(free) for label in sorted(set(panel.labels))}


@_draw.register
def _(panel: CurvePanel, ax: Any) -> None:
    """Draw lines; those of one name share colour and style."""
    names = list(dict.fromkeys(name for name, _ in panel.lines))
    colours = context_colours(len(names))
    for number, name in enumerate(names):
        style = _LINE_STYLES[number % len(_LINE_STYLES)]
        for line, points in enumerate(points for own, points in panel.lines if own == name):
            x, y = zip(*points, strict=True)
            label = name if line == 0 else None
            ax.plot(x, y, style, color=colours[number], marker="." if len(x) < 40 else None, label=label)
    for name, level in panel.levels:
        ax.axhline(level, color="0.5", linewidth=0.8)
        ax.annotate(name, (1.0, level), xycoords=("axes fraction", "data"), ha="right", va="bottom", fontsize=8)
    ax.set(xlabel=panel.x_label, ylabel=panel.y_label)
    if panel.has_log_x:
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter("{x:g}")
        places = [x for _, points in panel.lines for x, _ in points]
        is_narrow = max(places) < 10 * min(places)  # then there is at most one power of ten to write
        ax.xaxis.set_minor_formatter("{x:g}" if is_narrow else "")
    if len(names) > _MOST_INSIDE:
        ax.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    else:
        ax.legend(frameon=False, fontsize=8)
    ax.spines[["top", "right"]].set_visible(False)
