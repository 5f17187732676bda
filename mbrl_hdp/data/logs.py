"""Logs from delimited text and from tables in memory, as `LogConfig` says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from mbrl_hdp.data.cells import guess, to_numbers
from mbrl_hdp.data.csv_layout import is_own_layout, load_own_layout
from mbrl_hdp.data.log_episodes import Log, build_log
from mbrl_hdp.data.log_order import count_of
from mbrl_hdp.data.roles import LogConfig, Roles, assign
from mbrl_hdp.data.text_table import TextTable
from mbrl_hdp.errors import DataError

__all__ = ["Log", "as_pandas", "count_of", "is_frame", "log_from_frame", "read_text_log"]

_A_TABLE = "the table"


def read_text_log(path: Path, config: LogConfig, rest: bool = False) -> Log:
    """Read a delimited text file; one of this library's own layout by its stricter rules.

    Args:
        path: the file.
        config: which columns are what.
        rest: leave out columns without a role (a model knows its own).

    Raises:
        DataError: naming file, line and column, and what to do.
    """
    table = TextTable.open(path)
    guesses = table.guesses()
    if config.is_plain and not rest and is_own_layout(table.header, guesses.words):
        return load_own_layout(table, config)
    roles = assign(table.header, config, f"{path}, line {table.header_line}", guesses, rest)
    if table.repeated is not None and not {"time", "step", "episode"} & roles.single.keys():
        raise DataError(
            f"{path}, line {table.repeated}: the names of the columns come again, so several recordings follow each "
            "other here; name time= or episode= to keep them apart"
        )
    frame = table.frame(roles.all, roles.texts, config.patterns("missing"))
    log = build_log(_with_clock(frame, roles), roles, config, table.place)
    return replace(log, units={name: unit for name, unit in table.units.items() if name in roles.all})


def log_from_frame(frame: Any, config: LogConfig, rest: bool = False, place: str = _A_TABLE) -> Log:
    """Read a pandas or polars table; a pandas index of dates is the time.

    Raises:
        DataError: naming row and column, and what to do.
    """
    table = as_pandas(frame)
    if config.time is None and isinstance(table.index, pd.DatetimeIndex | pd.TimedeltaIndex):
        name = str(table.index.name or "time")
        table = table.rename_axis(name).reset_index()
        config = replace(config, time=name)
    table.columns = pd.Index([str(name) for name in table.columns])
    roles = assign(list(table.columns), config, place, guess(table, place == _A_TABLE), rest)

    def row_place(row: int, column: str | None = None) -> str:
        return f"{place}, row {row}" + (f", column {column!r}" if column else "")

    marks = config.patterns("missing")
    numbers = {
        name: table[name]
        if name in roles.texts
        else to_numbers(table[name], lambda row, name=name: row_place(row, name), missing=marks)  # type: ignore[misc]
        for name in roles.all
    }
    frame = pd.DataFrame(numbers).reset_index(drop=True)
    return build_log(_with_clock(frame, roles), roles, config, row_place)


def _with_clock(frame: pd.DataFrame, roles: Roles) -> pd.DataFrame:
    """Join the columns of a time that stands in several, a date and a time of day."""
    if not roles.clock:
        return frame
    parts = [frame[name].astype("string").str.strip() for name in roles.clock]
    return frame.assign(**{roles.single["time"]: parts[0].str.cat(parts[1:], sep=" ")})


def is_frame(value: Any) -> bool:
    """Return whether something is a pandas or polars table."""
    return type(value).__module__.partition(".")[0] in {"pandas", "polars"} and hasattr(type(value), "columns")


def as_pandas(frame: Any) -> pd.DataFrame:
    """Return a pandas table of a pandas or polars one (lazy ones are collected).

    Raises:
        DataError: if it is neither.
    """
    if isinstance(frame, pd.DataFrame):
        return frame.copy(deep=False)
    if type(frame).__module__.partition(".")[0] == "polars":
        table = frame.collect() if hasattr(frame, "collect") else frame
        return pd.DataFrame({name: table[name].to_numpy() for name in table.columns})
    raise DataError(f"a pandas or polars DataFrame is needed here, got {type(frame).__name__}")
