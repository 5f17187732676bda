"""Rows of a table in order: episodes, copies, clocks that start again, gaps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int

from mbrl_hdp.data.clock import Sampling, sampling, to_seconds, with_missing_rows
from mbrl_hdp.data.roles import LogConfig, Roles
from mbrl_hdp.errors import DataError

Place = Callable[..., str]
"""File and line (or row) of a row, and of a column if one is named, for messages."""
# A clock that falls back has started again if it is near its first value and fell further than rows get out of order.
_NEAR_START, _SHORTEST_RUN = 10.0, 4.5
_MAY_START_AGAIN = ("seconds", "times of day")


@dataclass(frozen=True)
class Ordered:
    """Rows sorted by episode and time.

    Attributes:
        frame: the rows.
        rows: where each stood in the file; -1: inserted for a gap.
        is_first: rows at which an episode begins.
        seconds: time of every row.
        stamps: the same as it stands in the file.
        names: what the episode of every row is called.
        found: how the table was sampled; None without a clock.
        notes: what was decided, a sentence each.
    """

    frame: pd.DataFrame
    rows: Int[np.ndarray, " R"]
    is_first: Bool[np.ndarray, " R"]
    seconds: Float[np.ndarray, " R"]
    stamps: np.ndarray
    names: np.ndarray
    found: Sampling | None
    notes: tuple[str, ...]


def in_order(frame: pd.DataFrame, roles: Roles, config: LogConfig, place: Place) -> Ordered:
    """Sort rows by episode and time; find the gaps.

    Args:
        frame: columns of `roles`; time, episode and context may be words.
        roles: which column is what.
        config: what a gap is and does.
        place: where a row (and column) stands, for messages.

    Raises:
        DataError: naming the first row whose episode or time is not known, or that is sampled irregularly.
    """
    names = frame[roles.single["episode"]] if "episode" in roles.single else pd.Series(np.zeros(len(frame), int))
    if names.isna().any():
        row = int(np.argmax(names.isna().to_numpy()))
        raise DataError(f"{place(row, roles.single['episode'])}: is empty; every row belongs to an episode")
    clock = roles.single.get("time") or roles.single.get("step")
    if clock is not None:
        return _by_clock(frame, names.to_numpy(), clock, roles, config, place)
    if config.resample is not None:
        raise DataError("resample= needs the column of time stamps: time=COLUMN")
    is_first = np.append(True, names.to_numpy()[1:] != names.to_numpy()[:-1]) | _after_terminal(frame, roles)
    rows, seconds = np.arange(len(frame)), np.arange(len(frame), dtype=float)
    return Ordered(frame, rows, is_first, seconds, seconds, names.to_numpy(), None, ())


def _by_clock(
    frame: pd.DataFrame, names: np.ndarray, clock: str, roles: Roles, config: LogConfig, place: Place
) -> Ordered:
    has_time = "time" in roles.single
    seconds, form = to_seconds(frame[clock], lambda row: place(row, clock))
    origin = _without_copies(frame, roles, form)
    notes = []
    if len(origin) < len(frame):
        copies = count_of(len(frame) - len(origin), "row")
        notes.append(f"{copies} left out: the same as an earlier one in every cell")
    seconds, names = seconds[origin], names[origin]
    codes, restarts = pd.factorize(names)[0], 0
    if "episode" not in roles.single and form in _MAY_START_AGAIN:
        codes, restarts = _restarts(seconds)
    if restarts:
        notes.append(f"{clock} starts again {count_of(restarts, 'time')}: each is a new episode")
    order = np.lexsort((seconds, codes))
    is_within = np.diff(np.sort(codes)) == 0
    if has_time and (np.diff(seconds[np.argsort(codes, kind="stable")])[is_within] < 0).any():
        notes.append(f"rows were sorted by {clock}")
    rows = origin[order]
    ordered = frame.iloc[rows].reset_index(drop=True)
    is_first = np.append(True, np.diff(codes[order]) != 0) | _after_terminal(ordered, roles)
    found = sampling(
        seconds[order], is_first, config.max_gap, config.resample is not None, lambda row: place(int(rows[row]), clock)
    )
    if has_time:
        notes.insert(0, f"{clock}: {form}, {found.dt:.6g} s a step")
    stamps = frame[clock].to_numpy()[rows]
    sorted_rows = Ordered(ordered, rows, is_first, seconds[order], stamps, names[order], found, tuple(notes))
    return _at_gaps(sorted_rows, found, clock, config, place) if found.is_gap.any() else sorted_rows


def _at_gaps(ordered: Ordered, found: Sampling, clock: str, config: LogConfig, place: Place) -> Ordered:
    """Start an episode after every gap, or fill it with missing rows."""
    count = int(found.is_gap.sum())
    words = f"{count_of(count, 'gap')} in {clock} {was(count)}"
    if config.gaps == "episode":
        notes = (*ordered.notes, f"{words} made the start of a new episode")
        return replace(ordered, is_first=ordered.is_first | found.is_gap, notes=notes)
    if config.resample is not None:
        return ordered
    frame, old = with_missing_rows(ordered.frame, found, lambda row: place(int(ordered.rows[row]), clock))
    is_new, known = old < 0, np.maximum.accumulate(old)
    return replace(
        ordered,
        frame=frame,
        rows=np.where(is_new, -1, ordered.rows[known]),
        is_first=ordered.is_first[known] & ~is_new,
        seconds=np.zeros(len(old)),
        stamps=np.where(is_new, "", ordered.stamps[known].astype(object)),
        names=ordered.names[known],
        notes=(*ordered.notes, f"{words} filled by {count_of(int(is_new.sum()), 'missing row')}"),
    )


def _without_copies(frame: pd.DataFrame, roles: Roles, form: str) -> Int[np.ndarray, " R"]:
    """Return the rows that are not the same as an earlier one; of a clock that starts again, two runs may begin so."""
    if "time" in roles.single and ("episode" in roles.single or form not in _MAY_START_AGAIN):
        return np.flatnonzero(~frame.duplicated().to_numpy())
    return np.arange(len(frame))


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


def count_of(number: int, word: str) -> str:
    """Return a number with its noun, singular or plural."""
    return f"{number} {word}{'' if number == 1 else 's'}"


def was(number: int) -> str:
    """Return the verb for a number of things."""
    return "was" if number == 1 else "were"
