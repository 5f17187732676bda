"""Files of this library's own layout (see `csv_files`), read more strictly than other logs: a program wrote them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from mbrl_hdp.data.checks import MAX_CONTEXT
from mbrl_hdp.data.log_episodes import Log
from mbrl_hdp.data.roles import LogConfig
from mbrl_hdp.data.text_table import TextTable
from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.errors import DataError, short

_REQUIRED = ("episode", "step")
_OPTIONAL = ("context", "reward", "terminated")


@dataclass(frozen=True)
class Columns:
    """Names of a file's columns by role.

    Attributes:
        header: all names as they stand in the file.
        obs: observation columns in the order of the observation vector.
        act: action columns in the order of the action vector.
        of_transition: columns that are empty in an episode's last row: actions, context, reward, terminated.
    """

    header: list[str]
    obs: list[str]
    act: list[str]
    of_transition: list[str]

    def places(self, names: list[str]) -> list[int]:
        """Return at which places of a row these columns stand."""
        return [self.header.index(name) for name in names]


def is_own_layout(names: Sequence[str], words: Collection[str]) -> bool:
    """Return whether a header has this layout's names and no others, and episodes and contexts are numbers.

    Args:
        names: the header.
        words: columns that hold words.
    """
    is_known = all(name.startswith(("obs_", "act_")) or name in (*_REQUIRED, *_OPTIONAL) for name in names)
    return is_known and {*_REQUIRED} <= {*names} and not {"episode", "context"} & {*words}


def load_own_layout(table: TextTable, config: LogConfig) -> Log:
    """Read a file of the layout above, more strictly than a log of any other: it was written by a program.

    Args:
        table: the file.
        config: whether empty cells, and which words, mark missing samples.

    Raises:
        DataError: naming file, line and column of the first thing that is wrong.
    """
    columns = _read_header(table)
    cells = table.frame(columns.header, missing=config.patterns("missing")).to_numpy(float)
    starts = _check_order(table, cells)
    ends = np.append(starts[1:], len(cells)) - 1
    is_last = np.zeros(len(cells), bool)
    is_last[ends] = True
    allow_missing = config.allow_missing or config.missing is not None
    _check_cells(table, columns, cells, is_last, allow_missing)
    return Log(_build(columns, cells, allow_missing, starts, ends), tuple(columns.obs), tuple(columns.act))


def _read_header(table: TextTable) -> Columns:
    """Sort a header's names by role.

    `obs_0, obs_1, ...` are taken in the order of their numbers, other names (`obs_speed`) as they stand.

    Raises:
        DataError: if a column is doubled, or no column is an observation.
    """
    for name, count in Counter(table.header).items():
        if count > 1:
            raise _header_error(table, f"column {short(name)!r} appears twice")
    obs, act = _vector_columns(table, "obs_"), _vector_columns(table, "act_")
    if not obs:
        raise _header_error(table, "columns 'obs_*' are missing (obs_0, obs_1, ... or names such as obs_speed)")
    return Columns(table.header, obs, act, [*act, *(name for name in _OPTIONAL if name in table.header)])


def _vector_columns(table: TextTable, prefix: str) -> list[str]:
    names = [name for name in table.header if name.startswith(prefix)]
    if not all(name.removeprefix(prefix).isdecimal() for name in names):
        return names
    for number in range(len(names)):
        if f"{prefix}{number}" not in names:
            raise _header_error(table, f"column '{prefix}{number}' is missing: numbered columns count from 0")
    return [f"{prefix}{number}" for number in range(len(names))]


def _header_error(table: TextTable, problem: str) -> DataError:
    return DataError(f"{table.path}, line {table.header_line}: {problem}")


def _check_order(table: TextTable, cells: Float[np.ndarray, "R C"]) -> Int[np.ndarray, " N"]:
    """Check the columns `episode` and `step`; return the rows at which episodes start."""
    episode, step = (cells[:, table.header.index(name)] for name in ("episode", "step"))
    for name, values in (("episode", episode), ("step", step)):
        _refuse(table, ~np.isfinite(values) | (values != np.floor(values)), name, "is not a whole number")
    is_start = np.append(True, np.diff(episode) != 0)
    _refuse(
        table, np.append(False, np.diff(episode) < 0), "episode", "is out of order: sort the rows by episode and step"
    )
    _refuse(table, is_start & (step != 0), "step", "is not 0 in the first row of its episode")
    jump = np.where(is_start, 1.0, np.append(0.0, np.diff(step)))
    _refuse(table, jump == 0, "step", "appears twice in its episode: remove the duplicate row")
    _refuse(table, jump < 0, "step", "is out of order: sort the rows by episode and step")
    _refuse(table, jump > 1, "step", "leaves a gap: the steps of an episode must follow each other without holes")
    starts = np.flatnonzero(is_start)
    is_short = np.zeros(len(cells), bool)
    is_short[starts] = np.diff(np.append(starts, len(cells))) < 2
    _refuse(table, is_short, "step", "is the only row of its episode, which is too short: a transition takes two rows")
    return starts


def _check_cells(
    table: TextTable,
    columns: Columns,
    cells: Float[np.ndarray, "R C"],
    is_last: Bool[np.ndarray, " R"],
    allow_missing: bool,
) -> None:
    """Check what the cells hold, column by column; then look for the first hole of all."""
    for name in [*columns.obs, *columns.of_transition]:
        values = cells[:, table.header.index(name)]
        _refuse(table, np.isinf(values), name, "is not finite")
        is_due = np.ones_like(is_last) if name in columns.obs else ~is_last
        _refuse(
            table,
            ~np.isnan(values) & ~is_due,
            name,
            "must be empty in the last row of an episode, which holds only the last observation (T+1 rows for T steps)",
        )
        if name == "terminated":
            _refuse(table, is_due & (values != 0) & (values != 1), name, "must be 0 or 1")
            goes_on = is_due & np.append(~is_last[1:], False)
            _refuse(table, goes_on & (values == 1), name, "is 1 before the last transition of its episode")
            continue
        if name == "context":
            labels = np.nan_to_num(values)
            _refuse(table, (labels != np.floor(labels)) | (labels < 0), name, "is not a whole number from 0")
            _refuse(table, labels > MAX_CONTEXT, name, f"is above {MAX_CONTEXT}: number the contexts from 0")
    if not allow_missing:
        _check_holes(table, columns, cells, is_last)


def _check_holes(
    table: TextTable, columns: Columns, cells: Float[np.ndarray, "R C"], is_last: Bool[np.ndarray, " R"]
) -> None:
    """Refuse the first empty cell of the file."""
    names = [*columns.obs, *columns.of_transition]
    holes = np.isnan(cells[:, columns.places(names)])
    holes[is_last, len(columns.obs) :] = False
    if holes.any():
        row, column = np.argwhere(holes)[0]
        marked = np.arange(len(cells)) == row
        _refuse(table, marked, names[column], "is empty (allow_missing=true lets samples be missing)")


def _refuse(table: TextTable, refused: Bool[np.ndarray, " R"], column: str, problem: str) -> None:
    """Raise for the first of the rows that is marked, quoting its cell."""
    if refused.any():
        row = int(np.argmax(refused))
        cell = table.cell(row, column)
        raise DataError(f"{table.place(row, column)}: {f'{short(cell)!r} ' if cell else ''}{problem}")


def _build(
    columns: Columns,
    cells: Float[np.ndarray, "R C"],
    allow_missing: bool,
    starts: Int[np.ndarray, " N"],
    ends: Int[np.ndarray, " N"],
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
