"""Figures of a fitted model: transition matrices, stationary distribution, contexts over time."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from mbrl_hdp.data.atomic import atomic_path
from mbrl_hdp.data.names import Names
from mbrl_hdp.errors import DataError, did_you_mean
from mbrl_hdp.inference.analysis import Analysis
from mbrl_hdp.inference.model import ContextModel
from mbrl_hdp.report.palette import DROPPED, UNKNOWN, context_colours
from mbrl_hdp.report.stays import stays_figure
from mbrl_hdp.report.summary import FitSummary, Truth

_MAX_ANNOTATED, _MAX_TICKS = 6, 20
_MAX_EPISODES, _MAX_STEPS, _MAX_COLUMNS = 3, 1000, 4


def save_figures(model: ContextModel, found: Analysis, summary: FitSummary, folder: Path) -> list[Path]:
    """Write transition.png, stationary.png, contexts.png and stays.png; return their paths."""
    figures = {
        "transition.png": transition_figure(model, summary),
        "stationary.png": stationary_figure(summary),
        "contexts.png": contexts_figure(found, summary),
        "stays.png": stays_figure(summary.stays),
    }
    for name, figure in figures.items():
        with atomic_path(folder / name) as path:
            figure.savefig(path, format="png", dpi=130, bbox_inches="tight")
    return [folder / name for name in figures]


def transition_figure(model: ContextModel, summary: FitSummary) -> Figure:
    """Show the transition matrix of all slots, after distillation and, where known, the true one."""
    panels = [
        ("all slots, as learned", model.posterior().chain.transition.double().numpy(), _slot_names(summary)),
        ("after distillation", model.transition, [str(k) for k in range(summary.num_contexts)]),
    ]
    if summary.truth is not None:
        panels.append(("true moves, counted", *_true_matrix(summary.truth)))
    figure = Figure(figsize=(4.4 * len(panels) + 0.8, 4.4), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for ax, (title, matrix, names) in zip(axes, panels, strict=True):
        image = _heat_map(ax, matrix, names)
        ax.set_title(title)
    axes[0].set(xlabel="next slot (contexts in brackets)", ylabel="slot now")
    figure.colorbar(image, ax=list(axes), label="probability", shrink=0.8)
    return figure


def _heat_map(ax: Any, matrix: Float[np.ndarray, "k k"], names: list[str]) -> Any:
    image = ax.imshow(matrix, vmin=0.0, vmax=1.0, cmap="cividis")
    every = -(-len(names) // _MAX_TICKS)
    places = range(0, len(names), every)
    ax.set_xticks(places, [names[place] for place in places], rotation=90 if max(map(len, names)) > 3 else 0)
    ax.set_yticks(places, [names[place] for place in places])
    ax.set(xlabel="next context", ylabel="context now")
    if len(matrix) <= _MAX_ANNOTATED:
        for (row, column), value in np.ndenumerate(matrix):
            ink = "black" if value > 0.5 else "white"
            ax.text(column, row, f"{value:.3f}", ha="center", va="center", color=ink)
    return image


def _slot_names(summary: FitSummary) -> list[str]:
    names = [str(slot) for slot in range(summary.max_contexts)]
    for context, slot in enumerate(summary.slots):
        names[slot] = f"{slot} ({context})"
    return names


def _true_matrix(truth: Truth) -> tuple[Float[np.ndarray, "c c"], list[str]]:
    """Put the true contexts into the order of the learned ones they were matched to; the unmatched come last."""
    matched = [label for label in truth.to_true if label >= 0]
    order = matched + [label for label in range(len(truth.transition)) if label not in matched]
    learned = {label: str(k) for k, label in enumerate(truth.to_true) if label >= 0}
    matrix = np.asarray(truth.transition)[np.ix_(order, order)]
    return matrix, [learned.get(label, f"true {label}") for label in order]


def stationary_figure(summary: FitSummary) -> Figure:
    """Show every slot's long-run share of time against the threshold of distillation."""
    figure = Figure(figsize=(max(6.0, min(0.35 * summary.max_contexts + 3.0, 16.0)), 4.6), layout="constrained")
    ax = figure.subplots()
    mass = np.maximum(summary.slot_mass, 1e-12)
    palette = dict(zip(summary.slots, context_colours(summary.num_contexts), strict=True))
    bars = ax.bar(range(len(mass)), mass, color=[palette.get(slot, DROPPED) for slot in range(len(mass))])
    if len(mass) <= _MAX_TICKS:
        ax.bar_label(bars, [_percent(value) for value in summary.slot_mass], padding=2, fontsize=8)
        ax.set_xticks(range(len(mass)), _slot_names(summary), rotation=90 if len(mass) > 12 else 0)
    handles: list[Any] = [*_context_handles(list(palette.values())), Patch(color=DROPPED, label="dropped")]
    cuts = (summary.train_threshold, ":", "while learning"), (summary.threshold, "--", "at the end")
    for mass_below, style, when in cuts:
        if mass_below:
            label = f"dropped below {mass_below:g} {when}"
            handles.append(ax.axhline(mass_below, color="black", linestyle=style, linewidth=1.2, label=label))
    lowest = max(min(float(mass.min()), summary.threshold or 1.0) / 3.0, 1e-8)
    ax.set(yscale="log", ylim=(lowest, 4.0), xlabel="slot (contexts in brackets)", ylabel="long-run share of time")
    slots = "slot is" if summary.num_contexts == 1 else "slots are"
    ax.set_title(f"{summary.num_contexts} of {summary.max_contexts} {slots} kept")
    figure.legend(handles=handles, loc="outside lower left", ncols=2, frameon=False)
    return figure


def _context_handles(colours: list[Any]) -> list[Any]:
    return [Patch(color=colour, label=f"context {k}") for k, colour in enumerate(colours[:_MAX_TICKS])]


def _percent(value: float) -> str:
    return f"{value:.1%}" if value >= 1e-3 else f"{value:.0e}"


def contexts_figure(
    found: Analysis,
    summary: FitSummary,
    episodes: Sequence[int] | None = None,
    columns: Sequence[int | str] | None = None,
) -> Figure:
    """Show observations and smoothed contexts over time, and the truth.

    Args:
        found: what the model says about the data.
        summary: the fit's summary, with the columns' names.
        episodes: episodes to show, whole; by default the first steps of the longest of the first ones.
        columns: observation columns to show, by number or name; by default the first ones.

    Raises:
        DataError: naming an episode or column that the data does not have.
    """
    data, names = found.data, summary.names
    shown = _shown_episodes(data.lengths) if episodes is None else _checked(episodes, data.num_episodes)
    places = list(range(min(data.obs_dim, _MAX_COLUMNS))) if columns is None else _places(columns, names.obs)
    figure = Figure(figsize=(11.0, 3.1 * len(shown) + 0.4), layout="constrained")
    axes = figure.subplots(2 * len(shown), 1, squeeze=False, height_ratios=[1.0, 1.2] * len(shown))[:, 0]
    colours = context_colours(summary.num_contexts)
    steps = [min(int(data.lengths[n]), _MAX_STEPS) if episodes is None else int(data.lengths[n]) for n in shown]
    unit, width = _time_unit(names.dt, max(steps))
    rows = np.concatenate([data.obs[n, : length + 1] for n, length in enumerate(data.lengths)])
    scale = _ColumnScale.of(rows[:, places])
    lines: list[Any] = []
    for row, (number, length) in enumerate(zip(shown, steps, strict=True)):
        top, below = axes[2 * row], axes[2 * row + 1]
        labels = [_column_label(names, place, scale, column) for column, place in enumerate(places)]
        lines = _draw_observations(top, scale.apply(data.obs[number, : length + 1][:, places]), labels, width)
        top.set_title(_episode_title(number, names, length, int(data.lengths[number])), loc="left", fontsize=10)
        _draw_probabilities(below, found.smoothed[number, :length], colours, width)
        strips = {"most likely": found.most_likely[number, :length]}
        if summary.truth is not None and data.context is not None:
            strips["truth"] = _in_learned_numbers(data.context[number, :length], summary.truth)
        _draw_strips(below, strips, colours, width)
        top.sharex(below)
        top.tick_params(labelbottom=False)
    axes[-1].set_xlabel(unit)
    figure.legend(handles=[*_context_handles(colours), *lines], loc="outside right upper", frameon=False)
    return figure


@dataclass(frozen=True)
class _ColumnScale:
    """Centre and spread of the columns shown, the same for all episodes, and the range of their values."""

    centre: Float[np.ndarray, " S"]
    spread: Float[np.ndarray, " S"]
    ends: Float[np.ndarray, "2 S"]

    @staticmethod
    def of(rows: Float[np.ndarray, "R S"]) -> _ColumnScale:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # a column without a single value
            spread = np.nanstd(rows, 0)
            ends = np.stack((np.nanmin(rows, 0), np.nanmax(rows, 0)))
            return _ColumnScale(np.nanmean(rows, 0), np.where(spread > 0, spread, 1.0), ends)

    def apply(self, obs: Float[np.ndarray, "T S"]) -> Float[np.ndarray, "T S"]:
        return (obs - self.centre) / self.spread


def _time_unit(dt: float | None, num_steps: int) -> tuple[str, float]:
    """Return the label of the time axis and the length of a step on it."""
    if dt is None:
        return "step", 1.0
    for seconds, unit in ((3 * 86400.0, "days"), (3 * 3600.0, "hours"), (600.0, "minutes")):
        if dt * num_steps >= seconds:
            return f"time in {unit} (a step is {dt:.4g} s)", dt / {"days": 86400, "hours": 3600, "minutes": 60}[unit]
    return f"time in seconds (a step is {dt:.4g} s)", dt


def _column_label(names: Names, place: int, scale: _ColumnScale, column: int) -> str:
    """Return a column's name, unit and range; the curves are scaled."""
    unit = names.units.get(names.obs[place], "")
    low, high = scale.ends[:, column]
    words = f"{names.obs[place]}\n{low:.4g} to {high:.4g}{f' {unit}' if unit else ''}"
    return words.replace("$", r"\$")  # two of them would be a formula to matplotlib


def _episode_title(number: int, names: Names, shown: int, length: int) -> str:
    name = f" ({names.episodes[number]})" if number < len(names.episodes) else ""
    part = "" if shown == length else f": the first {shown} of {length} steps"
    return f"episode {number}{name}{part}".replace("$", r"\$")


def _shown_episodes(lengths: Int[np.ndarray, " N"]) -> list[int]:
    longest = np.argsort(-lengths[: 10 * _MAX_EPISODES], kind="stable")[:_MAX_EPISODES]
    return [int(number) for number in np.sort(longest)]


def _checked(episodes: Sequence[int], count: int) -> list[int]:
    bad = [number for number in episodes if not 0 <= number < count]
    if bad or not len(episodes):
        raise DataError(f"episodes={list(episodes)}: the data has episodes 0 to {count - 1}")
    return [int(number) for number in episodes]


def _places(columns: Sequence[int | str], names: Sequence[str]) -> list[int]:
    places = []
    for column in columns:
        if isinstance(column, str) and column not in names:
            raise DataError(f"there is no column {column!r}; {did_you_mean(column, names)}")
        places.append(list(names).index(column) if isinstance(column, str) else int(column))
    bad = [place for place in places if not 0 <= place < len(names)]
    if bad:
        raise DataError(f"there is no column {bad[0]}; the data has columns 0 to {len(names) - 1}")
    return places


def _draw_observations(ax: Any, obs: Float[np.ndarray, "T S"], labels: Sequence[str], width: float) -> list[Any]:
    lines = []
    for column, label in enumerate(labels):
        style = ("-", "--", ":", "-.")[column % 4]
        shade = str(0.6 * column / max(len(labels), _MAX_COLUMNS))
        times = width * np.arange(len(obs))
        lines += ax.plot(times, obs[:, column], style, color=shade, linewidth=0.9, label=label)
    ax.set_ylabel("observations\n(scaled)")
    ax.spines[["top", "right"]].set_visible(False)
    return lines


def _draw_probabilities(ax: Any, smoothed: Float[np.ndarray, "T k"], colours: list[Any], width: float) -> None:
    # Steps are drawn as columns: step t acts from observation t to t+1.
    edges = width * np.repeat(np.arange(len(smoothed) + 1), 2)[1:-1]
    ax.stackplot(edges, np.repeat(smoothed, 2, axis=0).T, colors=colours, linewidth=0)
    ax.set(ylabel="smoothed\nprobability", xlim=(0, width * len(smoothed)), ylim=(0.0, 1.6))
    ax.set_yticks([0.0, 0.5, 1.0])
    ax.spines[["top", "right"]].set_visible(False)


def _draw_strips(ax: Any, strips: dict[str, Int[np.ndarray, " T"]], colours: list[Any], width: float) -> None:
    places = []
    for number, labels in enumerate(strips.values()):
        bottom = 1.12 + 0.26 * number
        places.append(bottom + 0.1)
        shades = [colours[label] if 0 <= label < len(colours) else UNKNOWN for label in labels]
        picture = np.array([to_rgb(shade) for shade in shades])[None]
        box = (0, width * len(labels), bottom, bottom + 0.2)
        ax.imshow(picture, extent=box, aspect="auto", interpolation="nearest", origin="lower")
    ax.set(xlim=(0, width * len(labels)), ylim=(0.0, 1.6))  # imshow sets them to its own extent
    ax.set_yticks([0.0, 0.5, 1.0, *places], ["0", "0.5", "1", *strips])


def _in_learned_numbers(context: Int[np.ndarray, " T"], truth: Truth) -> Int[np.ndarray, " T"]:
    learned = {label: k for k, label in enumerate(truth.to_true) if label >= 0}
    return np.array([learned.get(int(label), -1) for label in context])
