"""Tables of returns: every agent on every task with all its statistics, and which of two agents is better; with n."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from mbrl_hdp.experiments.statistics import Improvement, improvement, return_statistics
from mbrl_hdp.experiments.studies.study import CellRecord, table

Returns = np.ndarray[Any, Any]

# Seeds of every study of whole runs.
SEEDS = range(100, 103)
LEGEND = (
    "Return over separate evaluation episodes: mean over seeds ± standard deviation over all episodes, IQM (mean of "
    "the middle half of all episodes), [95 % interval of the mean, hierarchical bootstrap: seeds, then episodes; with "
    "three seeds still too narrow], n = seeds x episodes a seed."
)
_IMPROVEMENT_LEGEND = (
    "Probability of improvement: share of pairs of runs in which the first agent has the higher mean return, [95 % "
    "interval, bootstrap over seeds], n = runs of the first x runs of the second. With three seeds only 0 and 1 say "
    "much."
)


def place_of(record: CellRecord) -> str:
    """Return the failure or the task of a cell."""
    settings = record.settings
    return str(settings["failure"] if "failure" in settings else settings["task"])


def name_of(record: CellRecord) -> str:
    """Return the agent of a cell, with the variant where it has one."""
    variant = record.settings.get("variant")
    return record.settings["agent"] + (f", {variant}" if variant else "")


def group_of(records: Iterable[CellRecord], agent: str, place: str) -> list[CellRecord]:
    """Return the cells of an agent (with its variant) on a failure or task."""
    return [record for record in records if name_of(record) == agent and place_of(record) == place]


def returns_of(records: Iterable[CellRecord]) -> list[Returns]:
    """Return the returns of the evaluation episodes, one array a cell."""
    return [np.array(record.results["summary"]["returns"]) for record in records]


def return_cell(returns: list[Returns]) -> str:
    """Return a cell of a table in the words of `LEGEND`; a dash where nothing has run."""
    if not returns:
        return "-"
    found = return_statistics(returns)
    low, high = found.interval
    episodes = sorted({len(own) for own in returns})
    num = f"{found.num_seeds}x{episodes[0]}" if len(episodes) == 1 else f"{found.num_seeds} seeds, {found.num_episodes}"
    return f"{found.mean:.2f} ± {found.std:.2f}, IQM {found.iqm:.2f} [{low:.2f}, {high:.2f}], n={num}"


def return_rows(agent: str, records: list[CellRecord], paper: Sequence[str], places: Iterable[str]) -> list[list[str]]:
    """Return our returns of an agent on every failure or task and, where the paper has any, its own."""
    ours = [f"{agent}, ours", *(return_cell(returns_of(group_of(records, agent, place))) for place in places)]
    return [ours, [f"{agent}, paper", *(words or "-" for words in paper)]] if any(paper) else [ours]


def improvement_table(records: list[CellRecord], firsts: Sequence[str], places: Sequence[str]) -> str:
    """Compare some agents with every other one that has run there; the legend stands above the table."""
    others = list(dict.fromkeys(map(name_of, records)))
    rows = []
    for first in firsts:
        for other in others:
            if other == first or (other in firsts and firsts.index(other) < firsts.index(first)):
                continue
            cells = [improvement_cell(records, first, other, place) for place in places]
            if any(cell != "-" for cell in cells):
                rows.append([f"{first} against {other}", *cells])
    return f"{_IMPROVEMENT_LEGEND}\n\n{table(('agents', *places), rows)}"


def improvement_cell(records: list[CellRecord], first: str, other: str, place: str) -> str:
    """Return the probability that a run of one agent is better than one of another; a dash where one has not run."""
    sides = [_means(group_of(records, agent, place)) for agent in (first, other)]
    if not all(map(len, sides)):
        return "-"
    return f"{_improvement_words(improvement([(sides[0], sides[1])]))}, n={len(sides[0])}x{len(sides[1])}"


def _improvement_words(found: Improvement) -> str:
    if found.interval is None:
        return f"{found.probability:.2f}"
    return f"{found.probability:.2f} [{found.interval[0]:.2f}, {found.interval[1]:.2f}]"


def _means(records: list[CellRecord]) -> Returns:
    return np.array([own.mean() for own in returns_of(records)])


def episodes_to(curve: Sequence[Sequence[float]], level: float) -> int | None:
    """Return the real episodes after which an evaluation first reached a return; None if it never did.

    Example:
        >>> episodes_to([[200, 20.0, 9.0], [220, 28.0, 12.0]], 27.0)
        220
    """
    return next((int(point[0]) for point in curve if point[1] >= level), None)
