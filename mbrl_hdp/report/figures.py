"""Figures of a fitted model: transition matrices, stationary distribution, contexts over time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from mbrl_hdp.data.atomic import atomic_path
from mbrl_hdp.errors import DataError, did_you_mean
from mbrl_hdp.inference.analysis import Analysis
from mbrl_hdp.inference.model import ContextModel
from mbrl_hdp.report.summary import FitSummary, Truth

# Okabe and Ito's colours, which colour-blind readers can tell apart; yellow, the faintest, comes late.
_COLOURS = (
    *("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442"),
    *("#332288", "#882255", "#000000"),  # three of Tol's, dark, for eight to ten contexts
)
_DROPPED, _UNKNOWN = "#BBBBBB", "#FFFFFF"
_MAX_ANNOTATED, _MAX_TICKS = 6, 20
_MAX_EPISODES, _MAX_STEPS, _MAX_COLUMNS = 3, 200, 4


def save_figures(model: ContextModel, found: Analysis, summary: FitSummary, folder: Path) -> list[Path]:
    """Write transition.png, stationary.png and contexts.png; return their paths."""
    figures = {
        "transition.png": transition_figure(model, summary),
        "stationary.png": stationary_figure(summary),
        "contexts.png": contexts_figure(found, summary),
    }
    for name, figure in figures.items():
        with atomic_path(folder / name) as path:
            figure.savefig(path, format="png", dpi=130, bbox_inches="tight")
    return [folder / name for name in figures]


def context_colours(num_contexts: int) -> list[Any]:
    """Return one colour a context: ten that everybody can tell apart, an even scale beyond."""
    if num_contexts <= len(_COLOURS):
        return list(_COLOURS[:num_contexts])
    return [colormaps["viridis"](value) for value in np.linspace(0.0, 1.0, num_contexts)]


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
    figure = Figure(figsize=(max(6.0, min(0.35 * summary.max_contexts + 3.0, 16.0)), 3.8), layout="constrained")
    ax = figure.subplots()
    mass = np.maximum(summary.slot_mass, 1e-12)
    palette = dict(zip(summary.slots, context_colours(summary.num_contexts), strict=True))
    bars = ax.bar(range(len(mass)), mass, color=[palette.get(slot, _DROPPED) for slot in range(len(mass))])
    if len(mass) <= _MAX_TICKS:
        ax.bar_label(bars, [_percent(value) for value in summary.slot_mass], padding=2, fontsize=8)
        ax.set_xticks(range(len(mass)), _slot_names(summary), rotation=90 if len(mass) > 12 else 0)
    handles: list[Any] = [*_context_handles(list(palette.values())), Patch(color=_DROPPED, label="dropped")]
    if summary.threshold:
        handles.append(ax.axhline(summary.threshold, color="black", linestyle="--", label=_threshold_name(summary)))
    lowest = max(min(float(mass.min()), summary.threshold or 1.0) / 3.0, 1e-8)
    ax.set(yscale="log", ylim=(lowest, 4.0), xlabel="slot (contexts in brackets)", ylabel="long-run share of time")
    ax.set_title(f"{summary.num_contexts} of {summary.max_contexts} slots are kept")
    figure.legend(handles=handles, loc="outside right upper", frameon=False)
    return figure


def _context_handles(colours: list[Any]) -> list[Any]:
    return [Patch(color=colour, label=f"context {k}") for k, colour in enumerate(colours[:_MAX_TICKS])]


def _percent(value: float) -> str:
    return f"{value:.1%}" if value >= 1e-3 else f"{value:.0e}"


def _threshold_name(summary: FitSummary) -> str:
    return f"threshold {summary.threshold:g}"


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
    data = found.data
    shown = _shown_episodes(data.lengths) if episodes is None else _checked(episodes, data.num_episodes)
    places = list(range(min(data.obs_dim, _MAX_COLUMNS))) if columns is None else _places(columns, summary.names.obs)
    names = [summary.names.obs[place] for place in places]
    figure = Figure(figsize=(11.0, 3.1 * len(shown) + 0.4), layout="constrained")
    axes = figure.subplots(2 * len(shown), 1, squeeze=False, height_ratios=[1.0, 1.2] * len(shown))[:, 0]
    colours = context_colours(summary.num_contexts)
    lines: list[Any] = []
    for row, number in enumerate(shown):
        steps = min(int(data.lengths[number]), _MAX_STEPS) if episodes is None else int(data.lengths[number])
        top, below = axes[2 * row], axes[2 * row + 1]
        lines = _draw_observations(top, data.obs[number, : steps + 1][:, places], names)
        top.set_title(f"episode {number}", loc="left", fontsize=10)
        _draw_probabilities(below, found.smoothed[number, :steps], colours)
        strips = {"most likely": found.most_likely[number, :steps]}
        if summary.truth is not None and data.context is not None:
            strips["truth"] = _in_learned_numbers(data.context[number, :steps], summary.truth)
        _draw_strips(below, strips, colours)
        top.sharex(below)
        top.tick_params(labelbottom=False)
    axes[-1].set_xlabel("step")
    figure.legend(handles=[*_context_handles(colours), *lines], loc="outside right upper", frameon=False)
    return figure


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


def _draw_observations(ax: Any, obs: Float[np.ndarray, "T S"], names: Sequence[str]) -> list[Any]:
    centre, spread = np.nanmean(obs, 0), np.nanstd(obs, 0)
    scaled = (obs - centre) / np.where(spread > 0, spread, 1.0)
    lines = []
    for column, name in enumerate(names):
        label = name.replace("$", r"\$")  # two of them would be a formula to matplotlib
        style = ("-", "--", ":", "-.")[column % 4]
        shade = str(0.6 * column / max(len(names), _MAX_COLUMNS))
        lines += ax.plot(scaled[:, column], style, color=shade, linewidth=0.9, label=label)
    ax.set_ylabel("observations\n(scaled)")
    ax.spines[["top", "right"]].set_visible(False)
    return lines


def _draw_probabilities(ax: Any, smoothed: Float[np.ndarray, "T k"], colours: list[Any]) -> None:
    # Steps are drawn as columns of width one: step t acts from observation t to t+1.
    edges = np.repeat(np.arange(len(smoothed) + 1), 2)[1:-1]
    ax.stackplot(edges, np.repeat(smoothed, 2, axis=0).T, colors=colours, linewidth=0)
    ax.set(ylabel="smoothed\nprobability", xlim=(0, len(smoothed)), ylim=(0.0, 1.6))
    ax.set_yticks([0.0, 0.5, 1.0])
    ax.spines[["top", "right"]].set_visible(False)


def _draw_strips(ax: Any, strips: dict[str, Int[np.ndarray, " T"]], colours: list[Any]) -> None:
    places = []
    for number, labels in enumerate(strips.values()):
        bottom = 1.12 + 0.26 * number
        places.append(bottom + 0.1)
        shades = [colours[label] if 0 <= label < len(colours) else _UNKNOWN for label in labels]
        ax.bar(np.arange(len(labels)), 0.2, width=1.0, bottom=bottom, align="edge", color=shades, linewidth=0)
    ax.set_yticks([0.0, 0.5, 1.0, *places], ["0", "0.5", "1", *strips])


def _in_learned_numbers(context: Int[np.ndarray, " T"], truth: Truth) -> Int[np.ndarray, " T"]:
    learned = {label: k for k, label in enumerate(truth.to_true) if label >= 0}
    return np.array([learned.get(int(label), -1) for label in context])
