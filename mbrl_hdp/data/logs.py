"""From a table of readings to trajectories: episodes, order, gaps and missing cells as `LogConfig` says."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int

from mbrl_hdp.data.clock import Sampling, resampled, sampling, to_seconds, with_missing_rows
from mbrl_hdp.data.roles import Guesses, LogConfig, Roles, assign
from mbrl_hdp.data.text_table import TextTable, to_numbers
from mbrl_hdp.data.trajectories import Episode, Trajectories
from mbrl_hdp.errors import DataError

Place = Callable[[int], str]
_A_TABLE = "the table"
_MANY = 12
# A clock that falls back has started again if it is near its first value and fell further than rows get out of order.
_NEAR_START, _SHORTEST_RUN = 10.0, 4.5
_MARKS = (-99.0, -99.9, -999.0, -999.9, -9999.0, -99999.0, 999.0, 9999.0, 99999.0, 999999.0, -1e30, 1e30)
"""Numbers that loggers write for a missing sample."""
_FAR = 10.0


@dataclass(frozen=True)
class Log:
    """A table as trajectories, with what the arrays cannot say.

    Attributes:
        data: the episodes.
        obs_names: observation columns, in the order of the vector.
        act_names: action columns, in the order of the vector.
        dt: seconds per step; None without a time column.
        notes: what was decided on the way, a sentence each.
        context_names: words of the true contexts 0, 1, ...; empty where the file has numbers or none.
        episode_names: what the episodes are called in the file; empty without such a column.
        stamps: time stamp of every step as it stands in the file, one array an episode; empty without a time column.
        units: unit of every column that has one.
    """

    data: Trajectories
    obs_names: tuple[str, ...]
    act_names: tuple[str, ...]
    dt: float | None = None
    notes: tuple[str, ...] = ()
    context_names: tuple[str, ...] = ()
    episode_names: tuple[str, ...] = ()
    stamps: tuple[np.ndarray, ...] = ()
    units: dict[str, str] = field(default_factory=dict)


def read_text_log(path: Path, config: LogConfig, rest: bool = False) -> Log:
    """Read a delimited text file.

    Args:
        path: the file.
        config: which columns are what.
        rest: leave out columns without a role (a model knows its own).

    Raises:
        DataError: naming file, line and column, and what to do.
    """
    table = TextTable.open(path)
    roles = assign(table.header, config, f"{path}, line {table.header_line}", table.guesses(), rest)
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
    roles = assign(list(table.columns), config, place, _guesses(table, place == _A_TABLE), rest)

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


def _guesses(table: pd.DataFrame, is_python: bool) -> Guesses:
    """Return which columns hold words or nothing, to suggest what to type."""
    empty = {str(name) for name in table.columns if table[name].isna().all()}
    words = {str(name) for name in table.columns if table[name].dtype.kind not in "fiubmM"}
    return Guesses(words - empty, empty, is_python)


def _with_clock(frame: pd.DataFrame, roles: Roles) -> pd.DataFrame:
    """Join the columns of a time that stands in several, a date and a time of day."""
    if not roles.clock:
        return frame
    parts = [frame[name].astype("string").str.strip() for name in roles.clock]
    return frame.assign(**{roles.single["time"]: parts[0].str.cat(parts[1:], sep=" ")})


def is_frame(value: Any) -> bool:
    """Return whether something is a pandas or polars table."""
    return type(value).__module__.partition(".")[0] in {"pandas", "polars"} and hasattr(value, "columns")


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


def build_log(frame: pd.DataFrame, roles: Roles, config: LogConfig, place: Callable[..., str]) -> Log:
    """Lay the rows of a table out as episodes.

    Args:
        frame: columns of `roles`; time, episode and context may be words, all others are floats.
        roles: which column is what.
        config: gaps, resampling and missing cells.
        place: where a row (and column) stands, for messages.
    """
    if not len(frame):
        raise DataError(f"{place(0)}: has no rows")
    if config.missing is not None and not config.allow_missing:
        config = replace(config, allow_missing=True)
    ordered = _in_order(frame, roles, config, place)
    _check_cells(ordered, roles, config, place)
    starts = np.append(np.flatnonzero(ordered.is_first), len(ordered.frame))
    pieces = [slice(begin, end) for begin, end in itertools.pairwise(starts.tolist())]
    notes = [*ordered.notes, *_odd_values(ordered.frame, roles)]
    if ordered.found is not None and config.resample is not None:
        tables = [_resampled(ordered, piece, roles, config.resample) for piece in pieces]
        notes.append(f"resampled from about {ordered.found.dt:.4g} to {config.resample:.4g} s a step")
    else:
        tables = [(ordered.frame.iloc[piece], ordered.stamps[piece], ordered.names[piece.start]) for piece in pieces]
    long = [each for each in tables if len(each[0]) > 1]
    if not long:
        raise DataError(
            f"{place(0)}: no episode has two rows in a row, and a transition takes two; "
            + (
                "say what a gap is (max_gap=SECONDS), or resample=SECONDS"
                if "time" in roles.single
                else "check episode="
            )
        )
    if len(long) < len(tables):
        notes.append(
            f"{count_of(len(tables) - len(long), 'episode')} of a single row {_was(len(tables) - len(long))} left out"
        )
    codes, context_names = _contexts([table for table, _, _ in long], roles, place)
    episodes = [_episode(table, roles, code) for (table, _, _), code in zip(long, codes, strict=True)]
    data = Trajectories.from_episodes(episodes, config.allow_missing or any(map(_has_holes, episodes)))
    has_time, has_names = "time" in roles.single, config.episode is not None
    dt = None if ordered.found is None or not has_time else (config.resample or ordered.found.dt)
    return Log(
        data,
        roles.obs,
        roles.act,
        dt,
        tuple(notes),
        context_names,
        tuple(str(name) for _, _, name in long) if has_names else (),
        tuple(stamps for _, stamps, _ in long) if has_time else (),
    )


@dataclass(frozen=True)
class _Ordered:
    """Rows sorted by episode and time; `rows` says where each stood (-1: inserted for a gap)."""

    frame: pd.DataFrame
    rows: Int[np.ndarray, " R"]
    is_first: Bool[np.ndarray, " R"]
    seconds: Float[np.ndarray, " R"]
    stamps: np.ndarray
    names: np.ndarray
    found: Sampling | None
    notes: tuple[str, ...]


def _in_order(frame: pd.DataFrame, roles: Roles, config: LogConfig, place: Callable[..., str]) -> _Ordered:
    """Sort rows by episode and time; find the gaps."""
    notes: list[str] = []
    names = frame[roles.single["episode"]] if "episode" in roles.single else pd.Series(np.zeros(len(frame), int))
    if names.isna().any():
        row = int(np.argmax(names.isna().to_numpy()))
        raise DataError(f"{place(row, roles.single['episode'])}: is empty; every row belongs to an episode")
    clock = roles.single.get("time") or roles.single.get("step")
    if clock is None:
        if config.resample is not None:
            raise DataError("resample= needs the column of time stamps: time=COLUMN")
        is_first = np.append(True, names.to_numpy()[1:] != names.to_numpy()[:-1]) | _after_terminal(frame, roles)
        rows, seconds = np.arange(len(frame)), np.arange(len(frame), dtype=float)
        return _Ordered(frame, rows, is_first, seconds, seconds, names.to_numpy(), None, ())
    seconds, form = to_seconds(frame[clock], lambda row: place(row, clock))
    origin = np.arange(len(frame))
    # Of a clock that starts again, two runs may well begin with the same row.
    if "time" in roles.single and ("episode" in roles.single or form not in {"seconds", "times of day"}):
        origin = np.flatnonzero(~frame.duplicated().to_numpy())
        copies = len(frame) - len(origin)
        if copies:
            notes.append(f"{count_of(copies, 'row')} left out: the same as an earlier one in every cell")
            frame, names = (table.iloc[origin].reset_index(drop=True) for table in (frame, names))
            seconds = seconds[origin]
    codes = pd.factorize(names)[0]
    if "episode" not in roles.single and form in {"seconds", "times of day"}:
        codes, restarts = _restarts(seconds)
        if restarts:
            notes.append(f"{clock} starts again {count_of(restarts, 'time')}: each is a new episode")
    rows = np.lexsort((np.arange(len(frame)), seconds, codes))
    if (
        "time" in roles.single
        and (np.diff(seconds[np.argsort(codes, kind="stable")])[np.diff(np.sort(codes)) == 0] < 0).any()
    ):
        notes.append(f"rows were sorted by {clock}")
    is_first = np.append(True, np.diff(codes[rows]) != 0)
    ordered = frame.iloc[rows].reset_index(drop=True)
    is_first |= _after_terminal(ordered, roles)
    found = sampling(
        seconds[rows],
        is_first,
        config.max_gap,
        config.resample is not None,
        lambda row: place(int(origin[rows[row]]), clock),
    )
    if "time" in roles.single:
        notes.insert(0, f"{clock}: {form}, {found.dt:.4g} s a step")
    stamps, labels = frame[clock].to_numpy()[rows], names.to_numpy()[rows]
    num_gaps = int(found.is_gap.sum())
    if num_gaps and config.gaps == "episode":
        notes.append(f"{count_of(num_gaps, 'gap')} in {clock} {_was(num_gaps)} made the start of a new episode")
        is_first |= found.is_gap
    if num_gaps and config.gaps == "missing" and config.resample is None:
        ordered, old = with_missing_rows(ordered, found, lambda row: place(int(origin[rows[row]]), clock))
        filled = count_of(int((old < 0).sum()), "missing row")
        notes.append(f"{count_of(num_gaps, 'gap')} in {clock} {_was(num_gaps)} filled by {filled}")
        known = np.maximum.accumulate(old)
        is_first, rows = is_first[known] & (old >= 0), np.where(old < 0, -1, origin[rows[known]])
        return _Ordered(
            ordered,
            rows,
            is_first,
            np.zeros(len(old)),
            np.where(old < 0, "", stamps[known].astype(object)),
            labels[known],
            found,
            tuple(notes),
        )
    return _Ordered(ordered, origin[rows], is_first, seconds[rows], stamps, labels, found, tuple(notes))


def _odd_values(frame: pd.DataFrame, roles: Roles) -> list[str]:
    """Return a note on every column with numbers that programs write for a missing sample, far from all its others."""
    notes = []
    for name in (*roles.obs, *roles.act):
        values = frame[name].to_numpy(float)
        for mark in _MARKS:
            is_mark = values == mark
            rest = values[~is_mark & np.isfinite(values)]
            if not is_mark.any() or rest.size < is_mark.sum():
                continue
            low, high = np.quantile(rest, [0.05, 0.95])
            if not low - _FAR * (high - low) <= mark <= high + _FAR * (high - low):
                where = count_of(int(is_mark.sum()), "row")
                words = f"{name} is {mark:g} in {where}, far from its other values"
                notes.append(f"{words}: if that marks missing samples, add missing=[{mark:g}]")
    return notes


def _restarts(seconds: Float[np.ndarray, " R"]) -> tuple[Int[np.ndarray, " R"], int]:
    """Number the runs of a clock that starts again, each near its first value; rows out of order are no restarts."""
    falls = np.flatnonzero(np.diff(seconds) < 0) + 1
    steps = np.diff(seconds)
    usual = float(np.median(steps[steps > 0])) if (steps > 0).any() else 0.0
    is_far = np.abs(seconds[falls] - seconds[0]) > _NEAR_START * max(usual, 1e-12)
    is_late = seconds[falls - 1] - seconds[falls] < _SHORTEST_RUN * usual
    if not falls.size or is_far.any() or is_late.any():
        return np.zeros(len(seconds), np.int64), 0
    codes = np.zeros(len(seconds), np.int64)
    codes[falls] = 1
    return np.cumsum(codes), int(falls.size)


def _after_terminal(frame: pd.DataFrame, roles: Roles) -> Bool[np.ndarray, " R"]:
    """Mark the rows after a terminal one, where no column says which episode a row belongs to."""
    if "terminated" not in roles.single or "episode" in roles.single:
        return np.zeros(len(frame), bool)
    return np.append(False, frame[roles.single["terminated"]].to_numpy()[:-1] == 1)


def _check_cells(ordered: _Ordered, roles: Roles, config: LogConfig, place: Callable[..., str]) -> None:
    """Refuse values that are not finite and, unless samples may be missing, the first hole of the file."""
    is_last = np.append(ordered.is_first[1:], True)
    names = [*roles.obs, *roles.act, *(roles.single[key] for key in ("reward", "context") if key in roles.single)]
    is_due = np.ones((len(is_last), len(names)), bool)
    is_due[:, len(roles.obs) :] = ~is_last[:, None]  # what belongs to a transition is not read in an episode's last row
    is_due &= (ordered.rows >= 0)[:, None]
    values = ordered.frame[names]
    infinite = np.column_stack(
        [np.isinf(values[n].to_numpy(float)) if values[n].dtype.kind == "f" else ~is_last & False for n in names]
    )
    for marked, problem in ((infinite, "is not finite"), (values.isna().to_numpy() & is_due, "is empty")):
        if marked.any() and not (config.allow_missing and problem == "is empty"):
            where = np.argwhere(marked)
            row, column = min((int(ordered.rows[r]), int(c)) for r, c in where)
            hint = (
                f" ({len(where)} such cells in all); allow_missing=true lets samples be missing"
                if problem == "is empty"
                else ""
            )
            raise DataError(f"{place(row, names[column])}: {problem}{hint}")


def _resampled(ordered: _Ordered, piece: slice, roles: Roles, step: float) -> tuple[pd.DataFrame, np.ndarray, Any]:
    if "reward" in roles.single:
        raise DataError("rewards belong to the steps as recorded and cannot be resampled; leave them out by ignore=")
    seconds = ordered.seconds[piece]
    table, held = resampled(ordered.frame.iloc[piece].reset_index(drop=True), seconds, step, list(roles.obs))
    return table, ordered.stamps[piece][held], ordered.names[piece.start]


def _contexts(
    tables: list[pd.DataFrame], roles: Roles, place: Callable[..., str]
) -> tuple[list[np.ndarray | None], tuple[str, ...]]:
    """Return the labels of every episode, -1 where empty, and the words that they stand for."""
    if "context" not in roles.single:
        return [None] * len(tables), ()
    column = pd.concat([table[roles.single["context"]] for table in tables])
    numbers = pd.to_numeric(column, errors="coerce")
    is_number = bool((numbers.notna() == column.notna()).all()) and bool(
        ((numbers.dropna() % 1 == 0) & (numbers.dropna() >= -1)).all()
    )
    words: tuple[str, ...] = ()
    if is_number:
        labels = numbers.fillna(-1).to_numpy().astype(np.int64)
    else:
        labels, found = pd.factorize(column)
        words = tuple(str(word) for word in found)
        if len(words) > _MANY:
            raise DataError(
                f"{place(0, roles.single['context'])}: has {len(words)} different values, which are no contexts; "
                f"ignore=[{roles.single['context']}] leaves it out"
            )
    return list(np.split(labels, np.cumsum([len(table) for table in tables])[:-1])), words


def _episode(table: pd.DataFrame, roles: Roles, codes: np.ndarray | None) -> Episode:
    """Take the rows of one episode; what belongs to a transition is read in the row it starts from."""
    act = table[list(roles.act)].to_numpy(float)[:-1] if roles.act else None
    reward = table[roles.single["reward"]].to_numpy(float)[:-1] if "reward" in roles.single else None
    ends = table[roles.single["terminated"]].to_numpy(float)[-2:] if "terminated" in roles.single else None
    return Episode(
        obs=table[list(roles.obs)].to_numpy(float),
        act=act,
        context=None if codes is None else codes[:-1],
        reward=reward,
        terminated=None if ends is None else bool((ends == 1).any()),
    )


def _has_holes(episode: Episode) -> bool:
    arrays = (episode.obs, episode.act, episode.reward)
    is_unknown = episode.context is not None and bool((episode.context < 0).any())
    return is_unknown or any(array is not None and bool(np.isnan(array).any()) for array in arrays)


def count_of(number: int, word: str) -> str:
    """Return a number with its noun, singular or plural."""
    return f"{number} {word}{'' if number == 1 else 's'}"


def _was(number: int) -> str:
    return "was" if number == 1 else "were"
