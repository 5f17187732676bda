"""Trajectories as CSV: one row a step, T+1 rows an episode, what belongs to a transition in the row it starts from.

    episode,step,obs_0,obs_1,act_0,context,reward,terminated
    0,0,0.1,-1.5,0.25,0,1.0,0
    0,1,0.2,-1.25,0.5,1,0.5,1
    0,2,0.3,-1.0,,,,

Columns `episode`, `step` (from 0) and at least one `obs_*` are needed; `act_*`, `context`, `reward`, `terminated` are
optional. The last row of an episode holds only the last observation. Rows are sorted; episodes may carry any increasing
numbers and are counted from 0 after loading.
"""

from __future__ import annotations

import csv
import itertools
import math
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from mbrl_hdp.data.atomic import atomic_path
from mbrl_hdp.data.checks import MAX_CONTEXT
from mbrl_hdp.data.csv_layout import Columns, read_header
from mbrl_hdp.data.csv_source import CsvSource
from mbrl_hdp.data.trajectories import Episode, Trajectories


def save_csv(data: Trajectories, path: str | Path) -> None:
    """Write one row a step; numbers are written so that loading gives exactly the same values back, as float64.

    Missing samples become empty cells. Padding is not written.
    """
    optional = [name for name in ("context", "reward", "terminated") if getattr(data, name) is not None]
    names = [f"obs_{i}" for i in range(data.obs_dim)] + [f"act_{i}" for i in range(data.act_dim)]
    with atomic_path(Path(path)) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["episode", "step", *names, *optional])
        for number, episode in enumerate(data):
            writer.writerows(_episode_rows(number, episode))


def load_csv(path: str | Path, allow_missing: bool = False) -> Trajectories:
    """Read a file of the layout above.

    Args:
        path: the file, UTF-8 text with commas.
        allow_missing: let empty cells (or `nan`) mark missing samples.

    Raises:
        DataError: naming file, line and column of the first thing that is wrong.
    """
    source = CsvSource.open(Path(path))
    columns = read_header(source)
    cells = _parse(source)
    starts = _check_order(source, cells)
    ends = np.append(starts[1:], len(cells)) - 1
    is_last = np.zeros(len(cells), bool)
    is_last[ends] = True
    _check_cells(source, columns, cells, is_last, allow_missing)
    return _build(columns, cells, starts, ends, allow_missing)


def _episode_rows(number: int, episode: Episode) -> Iterator[tuple[Any, ...]]:
    length = len(episode.obs) - 1
    table: list[list[Any]] = _cell_columns(episode.obs)
    if episode.act is not None:
        table += [[*column, None] for column in _cell_columns(episode.act)]
    if episode.context is not None:
        table.append([*(label if label >= 0 else None for label in episode.context.tolist()), None])
    if episode.reward is not None:
        table += [[*column, None] for column in _cell_columns(episode.reward[:, None])]
    if episode.terminated is not None:
        table.append([0] * (length - 1) + [int(episode.terminated), None])
    return zip(itertools.repeat(number), range(length + 1), *table, strict=False)


def _cell_columns(values: Float[np.ndarray, "T D"]) -> list[list[float | None]]:
    # Python floats (csv writes their repr, which is exact) and None (an empty cell) for missing samples.
    columns = values.T.tolist()
    if np.isnan(values).any():
        columns = [[None if math.isnan(value) else value for value in column] for column in columns]
    return columns


def _parse(source: CsvSource) -> Float[np.ndarray, "R C"]:
    """Turn all cells into numbers, empty ones into NaN; if that fails, find the bad cell row by row."""
    if not source.body.strip():
        raise source.error("has a header but no rows", line=source.header_line)
    body = _fill_empty(source.body)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            cells = np.loadtxt(body.split("\n"), delimiter=",", comments=None, ndmin=2)
    except (ValueError, UserWarning):
        raise source.find_bad_cell() from None
    if cells.shape[1] != len(source.header):
        raise source.find_bad_cell()
    return cells


def _fill_empty(body: str) -> str:
    if " " in body or "\t" in body or '"' in body:  # rare in files of numbers, so the usual one is spared the work
        body = "\n".join(",".join(cell.strip(' \t"') for cell in line.split(",")) for line in body.split("\n"))
    # Twice, since neighbouring empty cells share a comma.
    body = f"\n{body}\n".replace(",,", ",nan,").replace(",,", ",nan,")
    return body.replace(",\n", ",nan\n").replace("\n,", "\nnan,")


def _check_order(source: CsvSource, cells: Float[np.ndarray, "R C"]) -> Int[np.ndarray, " N"]:
    """Check the columns `episode` and `step`; return the rows at which episodes start."""
    episode, step = (cells[:, source.header.index(name)] for name in ("episode", "step"))
    for name, values in (("episode", episode), ("step", step)):
        source.refuse(~np.isfinite(values) | (values != np.floor(values)), name, "is not a whole number")
    is_start = np.append(True, np.diff(episode) != 0)
    source.refuse(
        np.append(False, np.diff(episode) < 0), "episode", "is out of order: sort the rows by episode and step"
    )
    source.refuse(is_start & (step != 0), "step", "is not 0 in the first row of its episode")
    jump = np.where(is_start, 1.0, np.append(0.0, np.diff(step)))
    source.refuse(jump == 0, "step", "appears twice in its episode: remove the duplicate row")
    source.refuse(jump < 0, "step", "is out of order: sort the rows by episode and step")
    source.refuse(jump > 1, "step", "leaves a gap: the steps of an episode must follow each other without holes")
    starts = np.flatnonzero(is_start)
    is_short = np.zeros(len(cells), bool)
    is_short[starts] = np.diff(np.append(starts, len(cells))) < 2
    source.refuse(is_short, "step", "is the only row of its episode, which is too short: a transition takes two rows")
    return starts


def _check_cells(
    source: CsvSource,
    columns: Columns,
    cells: Float[np.ndarray, "R C"],
    is_last: Bool[np.ndarray, " R"],
    allow_missing: bool,
) -> None:
    """Check what the cells hold, column by column; then look for the first hole of all."""
    for name in [*columns.obs, *columns.of_transition]:
        values = cells[:, source.header.index(name)]
        source.refuse(np.isinf(values), name, "is not finite")
        is_due = np.ones_like(is_last) if name in columns.obs else ~is_last
        source.refuse(
            ~np.isnan(values) & ~is_due,
            name,
            "must be empty in the last row of an episode, which holds only the last observation (T+1 rows for T steps)",
        )
        if name == "terminated":
            source.refuse(is_due & (values != 0) & (values != 1), name, "must be 0 or 1")
            goes_on = is_due & np.append(~is_last[1:], False)
            source.refuse(goes_on & (values == 1), name, "is 1 before the last transition of its episode")
            continue
        if name == "context":
            labels = np.nan_to_num(values)
            source.refuse((labels != np.floor(labels)) | (labels < 0), name, "is not a whole number from 0")
            source.refuse(labels > MAX_CONTEXT, name, f"is above {MAX_CONTEXT}: number the contexts from 0")
    if not allow_missing:
        _check_holes(source, columns, cells, is_last)


def _check_holes(
    source: CsvSource, columns: Columns, cells: Float[np.ndarray, "R C"], is_last: Bool[np.ndarray, " R"]
) -> None:
    """Refuse the first empty cell of the file."""
    names = [*columns.obs, *columns.of_transition]
    holes = np.isnan(cells[:, columns.places(names)])
    holes[is_last, len(columns.obs) :] = False
    if holes.any():
        row, column = np.argwhere(holes)[0]
        marked = np.arange(len(cells)) == row
        source.refuse(marked, names[column], "is empty (allow_missing=true lets samples be missing)")


def _build(
    columns: Columns,
    cells: Float[np.ndarray, "R C"],
    starts: Int[np.ndarray, " N"],
    ends: Int[np.ndarray, " N"],
    allow_missing: bool,
) -> Trajectories:
    """Lay the rows out as padded episodes."""
    lengths = ends - starts
    row = starts[:, None] + np.arange(lengths.max() + 1)
    padded = cells[np.minimum(row, ends[:, None])]  # the constructor overwrites what lies beyond the lengths
    steps = padded[:, :-1]
    return Trajectories(
        obs=padded[..., columns.places(columns.obs)],
        act=steps[..., columns.places(columns.act)],
        lengths=lengths,
        allow_missing=allow_missing,
        **{name: steps[..., columns.places([name])[0]] for name in columns.of_transition if name not in columns.act},
    )
