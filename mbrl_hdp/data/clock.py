"""Time stamps: seconds from any of their usual forms, the seconds per step, gaps, and resampling."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int

from mbrl_hdp.errors import DataError, short

JITTER = 0.25
"""Share of a step by which the distance between rows may differ from it."""
GAP_STEPS = 1.5
RESAMPLED_GAP_STEPS = 10.0
_LONGEST_FILL = 20
"""Missing rows that gaps may add, as a multiple of the rows there are."""
_LOOKED_AT, _FEWEST_NUMBERS = 200, 10
_TWO_NUMBERS = re.compile(r"\d\D+\d")
_OF_DAY = re.compile(r"(\d+ days? )?\d{1,2}:\d{2}(:\d{2}([.,]\d+)?)?")
_DAY = 86400.0
_DIGITS = {8: "%Y%m%d", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}
# Plain numbers above these are times since 1970 in nano-, micro- and milliseconds; below, they are seconds.
_EPOCHS = (
    (1e17, 1e-9, "nanoseconds"),
    (1e14, 1e-6, "microseconds"),
    (1e11, 1e-3, "milliseconds"),
)

Place = Callable[[int], str]
"""File and line (or row) of a row, for messages."""


def to_seconds(column: pd.Series, place: Place) -> tuple[Float[np.ndarray, " R"], str]:
    """Return seconds from the first stamp, and what form the stamps have.

    Raises:
        DataError: naming the first cell that is no time stamp.
    """
    if pd.api.types.is_datetime64_any_dtype(column):
        return _from_dates(column, column, place), "dates"
    if pd.api.types.is_timedelta64_dtype(column):
        return _checked(column.dt.total_seconds().to_numpy(float), column, place), "durations"
    numbers = _numbers(column)
    dates = _from_digits(numbers)
    if dates is not None:
        return _from_dates(dates, column, place), "dates"
    if numbers.notna().sum() >= 0.5 * max(int(column.notna().sum()), 1):
        _checked(numbers.to_numpy(float, na_value=np.nan), column, place)
        return _from_numbers(numbers)
    text = column.astype("string").str.strip()
    if text.dropna().head(50).map(lambda cell: _OF_DAY.fullmatch(cell) is not None).all():
        spans = pd.to_timedelta(
            text.where(text.str.count(":") > 1, text + ":00").str.replace(",", "."), errors="coerce"
        )
        seconds = _checked(spans.dt.total_seconds().to_numpy(float), column, place)
        return seconds + _DAY * np.cumsum(np.diff(seconds, prepend=seconds[:1]) < -_DAY / 2), "times of day"
    return _from_text(text, place), "dates"


def _numbers(column: pd.Series) -> pd.Series:
    """Return a column as numbers, with decimal point or comma; NaN where it is none."""
    if column.dtype.kind in "fiu":
        return column
    text = column.astype("string").str.strip()
    plain = pd.to_numeric(text, errors="coerce")
    return plain if plain.notna().any() else pd.to_numeric(text.str.replace(",", ".", regex=False), errors="coerce")


def is_clock(column: pd.Series) -> bool:
    """Return whether the first values of a column look like time stamps: dates, or numbers that only grow."""
    known = column.dropna().head(_LOOKED_AT)
    if known.dtype.kind in "mM":
        return True
    text = known.astype("string").str.strip()
    numbers = _numbers(known)
    if len(known) and numbers.notna().all():
        steps = numbers.diff().iloc[1:]
        return len(known) >= _FEWEST_NUMBERS and bool((steps >= 0).all() and (steps > 0).mean() > 0.5)
    if not len(known) or not text.str.contains(_TWO_NUMBERS).all():
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return bool(pd.to_datetime(text, errors="coerce", format="mixed", utc=True).notna().all())


def _from_digits(numbers: pd.Series) -> pd.Series | None:
    """Return dates written as one number (20240311, 202403110600, 20240311060000); None if any is no date."""
    if numbers.isna().any() or not len(numbers) or (numbers % 1 != 0).any():
        return None
    text = numbers.astype("int64").astype("string") if numbers.abs().max() < 1e15 else None
    form = None if text is None or text.str.len().nunique() > 1 else _DIGITS.get(len(text.iloc[0]))
    if text is None or form is None:
        return None
    dates = pd.to_datetime(text, format=form, errors="coerce", utc=True)
    is_date = dates.notna().all() and dates.dt.year.between(1950, 2100).all()
    return dates if is_date else None


def _from_numbers(numbers: pd.Series) -> tuple[Float[np.ndarray, " R"], str]:
    # The difference comes first: nanoseconds since 1970 have more digits than a float.
    spans = (numbers - numbers.iloc[0]).to_numpy(float) if len(numbers) else np.zeros(0)
    typical = float(np.median(np.abs(numbers.to_numpy(float)))) if len(numbers) else 0.0
    for limit, unit, words in _EPOCHS:
        if typical > limit:
            return spans * unit, f"{words} since 1970"
    return spans, "seconds"


def _from_text(text: pd.Series, place: Place) -> Float[np.ndarray, " R"]:
    """Parse dates: ISO first, then day or month first, whichever keeps the order and the shorter span."""
    try:
        return _from_dates(pd.to_datetime(text, format="ISO8601", utc=True), text, place)
    except ValueError:
        pass
    found = []
    for day_first in (True, False):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dates = pd.to_datetime(text, errors="coerce", dayfirst=day_first, utc=True, format="mixed")
        steps = dates.diff().dt.total_seconds()
        found.append(
            (int((dates.isna() & text.notna()).sum()), int((steps < 0).sum()), float(steps.abs().sum()), dates)
        )
    return _from_dates(min(found, key=lambda each: each[:3])[3], text, place)


def _from_dates(dates: pd.Series, column: pd.Series, place: Place) -> Float[np.ndarray, " R"]:
    spans = (dates - dates.min()).dt.total_seconds()
    return _checked(spans.to_numpy(float, na_value=np.nan), column, place)


def _checked(seconds: Float[np.ndarray, " R"], column: pd.Series, place: Place) -> Float[np.ndarray, " R"]:
    bad = ~np.isfinite(seconds)
    if bad.any():
        row = int(np.argmax(bad))
        cell = column.iloc[row]
        problem = "is empty" if pd.isna(cell) else f"{short(str(cell))!r} is not a time stamp"
        raise DataError(f"{place(row)}: {problem}; time columns hold ISO dates, seconds or seconds since 1970")
    return seconds


@dataclass(frozen=True)
class Sampling:
    """How a table was sampled.

    Attributes:
        dt: seconds per step, the median distance of neighbouring rows.
        is_gap: rows that come after a gap, `R` (the first rows of episodes are not).
        num_steps: steps from the row before, `R`; 1 inside regular sampling.
    """

    dt: float
    is_gap: Bool[np.ndarray, " R"]
    num_steps: Int[np.ndarray, " R"]


def sampling(
    seconds: Float[np.ndarray, " R"],
    is_first: Bool[np.ndarray, " R"],
    max_gap: float | None,
    is_resampled: bool,
    place: Place,
) -> Sampling:
    """Find the seconds per step and the gaps of rows that are sorted by episode and time.

    Raises:
        DataError: naming rows with the same time stamp, or the largest deviation of an irregular sampling.
    """
    distance = np.append(np.nan, np.diff(seconds))
    distance[is_first] = np.nan
    inside = np.flatnonzero(~np.isnan(distance))
    if not inside.size:
        return Sampling(1.0, np.zeros(len(seconds), bool), np.ones(len(seconds), np.int64))
    if not is_resampled and (distance[inside] <= 0).any():
        row = int(inside[np.argmax(distance[inside] <= 0)])
        raise DataError(
            f"{place(row)}: has the same time stamp as the row before; remove one of them, use a finer clock, name the "
            "column that keeps machines or runs apart (episode=), or resample=SECONDS to average them"
        )
    dt = float(np.median(distance[inside][distance[inside] > 0])) if (distance[inside] > 0).any() else 1.0
    limit = max_gap if max_gap is not None else (RESAMPLED_GAP_STEPS if is_resampled else GAP_STEPS) * dt
    is_gap = np.nan_to_num(distance) > limit
    steps = np.where(np.isnan(distance), 1, np.maximum(np.rint(np.nan_to_num(distance) / dt), 1)).astype(np.int64)
    if not is_resampled:
        off = np.where(np.isnan(distance) | is_gap, 0.0, np.abs(distance / dt - 1.0))
        row = int(np.argmax(off))
        if off[row] > JITTER:
            raise DataError(
                f"{place(row)}: sampling is irregular: {distance[row]:.4g} s from the row before, where {dt:.4g} s is "
                f"usual ({(off > JITTER).mean():.1%} of the rows are off by more than {JITTER:.0%}); resample={dt:.4g} "
                "interpolates them"
            )
    return Sampling(dt, is_gap, steps)


def with_missing_rows(frame: pd.DataFrame, found: Sampling, place: Place) -> tuple[pd.DataFrame, Int[np.ndarray, " R"]]:
    """Insert rows without values into every gap; return the table and the old place of every row (-1: new)."""
    extra = np.where(found.is_gap, found.num_steps - 1, 0)
    if extra.sum() > _LONGEST_FILL * len(frame):
        row = int(np.argmax(extra))
        raise DataError(
            f"{place(row)}: the gap before it lasts {extra[row] + 1} steps, too long to be filled; gaps=episode starts "
            "a new episode there"
        )
    old = np.full(len(frame) + int(extra.sum()), -1)
    old[np.arange(len(frame)) + np.cumsum(extra)] = np.arange(len(frame))
    return frame.reset_index(drop=True).reindex(pd.Index(np.where(old < 0, len(frame), old))), old


def resampled(
    frame: pd.DataFrame, seconds: Float[np.ndarray, " R"], step: float, linear: list[str]
) -> tuple[pd.DataFrame, Int[np.ndarray, " G"]]:
    """Put the rows of one episode on a regular grid: columns `linear` interpolated, all others held.

    A grid point within a hole of a column is missing there. Rows with the same time stamp are averaged; of those that
    are held, the last counts.

    Returns:
        The table on the grid, and for every grid point the place of the last row at or before it.
    """
    grid = seconds[0] + step * np.arange(int(np.floor((seconds[-1] - seconds[0]) / step + 1e-9)) + 1)
    held = np.maximum(np.searchsorted(seconds, grid + 1e-9 * step, side="right") - 1, 0)
    values: dict[str, np.ndarray] = {}
    for name in frame.columns:
        if name not in linear:
            values[name] = frame[name].to_numpy()[held]
            continue
        column = frame[name].groupby(seconds).mean()
        values[name] = np.interp(grid, column.index.to_numpy(), column.to_numpy(float))  # NaN within a hole
    return pd.DataFrame(values), held
