"""A comparison of runs for people: tables in the terminal, Markdown, CSV and one figure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from mbrl_hdp.data.atomic import atomic_path
from mbrl_hdp.experiments.studies.study import table
from mbrl_hdp.report.compare import Comparison, Curve, Pair, Row
from mbrl_hdp.report.palette import GREY, context_colours
from mbrl_hdp.report.tables import print_table

_STRIP = 14  # characters of the interval that is drawn in the terminal
_RETURN_HEADINGS = ("group", "seeds", "episodes", "mean", "std", "IQM", "95 % interval")
_RUN_HEADINGS = ("group", "contexts", "accuracy", "real episodes", "minutes")
ROW_HEADINGS = ("group", "env", *_RETURN_HEADINGS[1:], *_RUN_HEADINGS[1:])
PAIR_HEADINGS = ("env", "first", "second", "P(first better)", "95 % interval")
EXPLANATION = (
    "mean: over seeds, of the final evaluation; std: over all its episodes; IQM: mean of the middle half of them; "
    "interval: of the mean, hierarchical bootstrap (seeds, then episodes), too narrow with few seeds; contexts, "
    "accuracy, real episodes, minutes: of a run. P(first better): share of pairs of runs in which the first has the "
    "higher mean return, bootstrap over seeds within environments (rliable's probability of improvement)."
)


def row_cells(row: Row) -> list[str]:
    """Return a group's cells under `ROW_HEADINGS`."""
    contexts = sorted(set(row.num_contexts))
    found = "-" if not contexts else f"{contexts[0]}" if len(contexts) == 1 else f"{contexts[0]} to {contexts[-1]}"
    unfinished = f" ({len(row.unfinished)} unfinished)" if row.unfinished else ""
    interval = "-" if row.interval is None else f"{row.interval[0]:.2f} to {row.interval[1]:.2f}"
    numbers = [_shown(value, form) for value, form in ((row.mean, ".2f"), (row.std, ".2f"), (row.iqm, ".2f"))]
    last = ((row.accuracy, ".3f"), (row.real_episodes, ".0f"), (row.minutes, ".1f"))
    first = [row.name, row.env, f"{len(row.seeds)}{unfinished}", str(row.num_episodes)]
    return [*first, *numbers, interval, found, *(_shown(value, form) for value, form in last)]


def pair_cells(pair: Pair) -> list[str]:
    """Return a pair's cells under `PAIR_HEADINGS`."""
    interval = "-" if pair.interval is None else f"{pair.interval[0]:.2f} to {pair.interval[1]:.2f}"
    return [pair.env, pair.one, pair.other, f"{pair.probability:.2f}", interval]


def _shown(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def print_comparison(found: Comparison) -> None:
    """Print the tables of every environment, with each group's interval drawn on one scale."""
    for env in found.envs:
        rows = [row for row in found.rows if row.env == env]
        cells = {row.name: dict(zip(ROW_HEADINGS, row_cells(row), strict=True)) for row in rows}
        strips = _strips(rows)
        shown = [[*(own[key] for key in _RETURN_HEADINGS), strips.get(name, "")] for name, own in cells.items()]
        print_table(f"Returns on {env}", [*_RETURN_HEADINGS, "interval, mean"], shown)
        print_table(f"Runs on {env}", _RUN_HEADINGS, [[own[key] for key in _RUN_HEADINGS] for own in cells.values()])
    if found.pairs:
        print_table("Probability of improvement", PAIR_HEADINGS, [pair_cells(pair) for pair in found.pairs])


def _strips(rows: Sequence[Row]) -> dict[str, str]:
    """Draw intervals in characters, on one scale."""
    ends = [end for row in rows if row.interval for end in row.interval]
    if not ends:
        return {}
    low, width = min(ends), max(ends) - min(ends) or 1.0
    strips = {}
    for row in rows:
        if row.interval is None or row.mean is None:
            continue
        first, mean, last = (
            round((v - low) / width * (_STRIP - 1)) for v in (row.interval[0], row.mean, row.interval[1])
        )
        line = "".join("─" if first <= place <= last else " " for place in range(_STRIP))
        strips[row.name] = f"{line[:mean]}●{line[mean + 1 :]}"
    return strips


def write_comparison(found: Comparison, folder: str | Path) -> list[Path]:
    """Write comparison.csv, comparison.md and comparison.png; return their paths."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_path(folder / "comparison.csv") as path:
        _frame(found).to_csv(path, index=False)
    with atomic_path(folder / "comparison.md") as path:
        path.write_text(markdown(found), encoding="utf-8")
    with atomic_path(folder / "comparison.png") as path:
        comparison_figure(found).savefig(path, format="png", dpi=130)
    return [folder / f"comparison.{suffix}" for suffix in ("csv", "md", "png")]


def _frame(found: Comparison) -> pd.DataFrame:
    """Return one row a group, full precision, with the settings in which the groups differ at the end."""
    rows = []
    for row in found.rows:
        low, high = row.interval or (None, None)
        rows.append(
            {
                **{"group": row.name, "env": row.env, "num_seeds": len(row.seeds), "seeds": _listed(row.seeds)},
                **{"unfinished": _listed(row.unfinished), "num_episodes": row.num_episodes, "mean": row.mean},
                **{"std": row.std, "iqm": row.iqm, "low": low, "high": high, "contexts": _listed(row.num_contexts)},
                **{"accuracy": row.accuracy, "real_episodes": row.real_episodes, "minutes": row.minutes},
                **row.settings,
            }
        )
    return pd.DataFrame(rows)


def _listed(values: Sequence[int | None]) -> str:
    return " ".join("?" if value is None else str(value) for value in values)


def markdown(found: Comparison) -> str:
    """Return the comparison as Markdown."""
    parts = ["# Comparison of runs", table(ROW_HEADINGS, [row_cells(row) for row in found.rows])]
    if found.pairs:
        parts.append(table(PAIR_HEADINGS, [pair_cells(pair) for pair in found.pairs]))
    parts += [EXPLANATION, *(f"- {remark}" for remark in found.remarks), "![learning curves](comparison.png)"]
    return "\n\n".join(parts) + "\n"


def comparison_figure(found: Comparison) -> Figure:
    """Draw the learning curves, one panel an environment, and the final mean with its interval beside them."""
    names = list(dict.fromkeys(row.name for row in found.rows))
    colours = dict(zip(names, context_colours(len(names)), strict=True))
    figure = Figure(figsize=(9.5, 3.9 * len(found.envs) + 0.28 * len(names)), layout="constrained")
    axes = figure.subplots(len(found.envs), 2, squeeze=False, width_ratios=[3.2, 1.0])
    for (left, right), env in zip(axes, found.envs, strict=True):
        for curve in found.curves:
            if curve.env == env:
                _draw_curve(left, curve, colours[curve.name])
        _draw_finals(right, [row for row in found.rows if row.env == env], colours)
        left.set(xlabel="real episodes seen so far", ylabel="return of an episode")
        left.set_title(env, loc="left", fontsize=11, parse_math=False)
        words = "mean over seeds, 95 % interval, single seeds (thin)"
        left.set_title(words, loc="right", fontsize=8, color=GREY)
        right.sharey(left)
    handles, labels = [], []
    for ax in axes[:, 0]:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            if label not in labels:
                handles.append(handle)
                labels.append(label)
    figure.legend(handles, labels, loc="outside lower left", frameon=False, fontsize=9, ncols=1)
    return figure


def _draw_curve(ax: Any, curve: Curve, colour: str) -> None:
    label = curve.name.replace("$", r"\$")
    for episodes, returns in curve.seeds:
        ax.plot(episodes, returns, color=colour, linewidth=0.7, alpha=0.6)
    if curve.low:
        ax.fill_between(curve.episodes, curve.low, curve.high, color=colour, alpha=0.2, linewidth=0)
    ax.plot(curve.episodes, curve.mean, "o-", color=colour, markersize=3.5, linewidth=1.8, label=label)
    ax.spines[["top", "right"]].set_visible(False)
    ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))


def _draw_finals(ax: Any, rows: Sequence[Row], colours: dict[str, str]) -> None:
    """Draw mean and interval of each group's final evaluation."""
    for place, row in enumerate(rows):
        if row.mean is not None and row.interval is not None:
            low, high = row.interval
            ax.plot([place, place], [low, high], color=colours[row.name], linewidth=3.0, solid_capstyle="round")
            ax.plot(place, row.mean, "o", color=colours[row.name], markersize=7)
    ax.set_xlim(-0.7, len(rows) - 0.3)
    ax.set_xticks([])
    ax.set_title("final evaluation", loc="left", fontsize=10)
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelleft=False)
