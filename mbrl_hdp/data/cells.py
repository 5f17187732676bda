"""Cells of a table: which words and numbers they are, and columns of them as floats."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from mbrl_hdp.data.clock import is_clock
from mbrl_hdp.data.suggestions import Guesses
from mbrl_hdp.errors import DataError, short

NUMBER = re.compile(r"[+-]?(\d+([.,]\d*)?|[.,]\d+)([eE][+-]?\d+)?")
MISSING_WORDS = ("-", "--", "?", "NaT", "nil", "no data", "No Data", "bad", "Bad")
"""Cells that mark a missing sample, beside empty ones and pandas' own (NA, NaN, null, None, N/A, #N/A, ...)."""
_WITH_UNIT = re.compile(r"([+-]?[\d.,]*\d(?:[eE][+-]?\d+)?)\s*([^\W\d_]{0,3}[%°]?[^\W\d_]{1,6}|%)")
"""A number with its unit: 40%, 20.5 °C, 3 kg."""
TWO_WORDS = {"off": 0, "on": 1, "closed": 0, "open": 1, "no": 0, "yes": 1, "false": 0, "true": 1}
"""Words for two states of a valve or a switch that are read as 0 and 1."""

THOUSANDS_COMMA = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?")
_LOOKED_AT = 200
_FEW_WORDS = 0.2
"""Up to this share of words, a column counts as numbers with marks of missing samples."""


def guess(table: pd.DataFrame, is_python: bool = False) -> Guesses:
    """Return which columns hold words, time stamps or nothing, to suggest what to type.

    Args:
        table: all of it, or its first rows.
        is_python: whether it is an object in Python.
    """
    words, empty, times = set(), set(), set()
    for name in map(str, table.columns):
        column = table[name].dropna()
        if column.dtype.kind not in "fiubmM":
            column = column.astype("string").str.strip().loc[lambda text: text != ""]
        if column.empty:
            empty.add(name)
            continue
        if is_clock(column):
            times.add(name)
        if (
            column.dtype.kind not in "fiubmM"
            and np.mean([not _is_number(text) for text in column.head(_LOOKED_AT)]) > _FEW_WORDS
        ):
            words.add(name)
    return Guesses(words, empty, times, is_python)


def _is_number(text: str) -> bool:
    is_word = text in MISSING_WORDS or text.lower() in {"nan", "na", *TWO_WORDS}
    return is_word or any(form.fullmatch(text) for form in (NUMBER, THOUSANDS_COMMA, _WITH_UNIT))


def to_numbers(
    column: pd.Series, place: Callable[[int], str], decimal: str = ".", missing: Sequence[str] = ()
) -> pd.Series:
    """Return a column as floats; words for two states (on and off) become 1 and 0.

    Args:
        column: numbers or text.
        place: where a row stands, for messages.
        decimal: the decimal sign; the other one of point and comma groups thousands.
        missing: words or numbers that mark a missing sample.

    Raises:
        DataError: naming the first cell that is no number.
    """
    if pd.api.types.is_bool_dtype(column) or pd.api.types.is_numeric_dtype(column):
        return _without(column.astype(float), missing)
    text = column.astype("string").str.strip()
    text = text.mask(text.isin(list(missing)))
    text = _without_unit(text)
    words = text.str.lower().map(TWO_WORDS)
    if words.notna().eq(text.notna()).all():
        return words.astype(float)
    if decimal == ",":
        plain = text.str.replace(".", "", regex=False).str.replace(",", ".", regex=False)
    else:
        is_grouped = text.str.fullmatch(THOUSANDS_COMMA.pattern).fillna(False)
        plain = text.mask(is_grouped, text.str.replace(",", "", regex=False))
    numbers = pd.to_numeric(plain, errors="coerce").astype(float)
    refused = (numbers.isna() & text.notna()).to_numpy(bool)
    if refused.any():
        row = int(np.argmax(refused))
        cell = short(str(text.iloc[row]))
        raise DataError(
            f"{place(row)}: {cell!r} is not a number; correct it, say missing=['{cell}'] if it marks a missing "
            f"sample, or leave the column out by ignore=['{column.name}']"
        )
    return _without(numbers, missing)


def _without_unit(text: pd.Series) -> pd.Series:
    """Return numbers without the unit that stands behind every one of them, the same one everywhere."""
    parts = text.str.extract(f"^{_WITH_UNIT.pattern}$")
    has_unit = bool(text.notna().any()) and bool(parts[1].notna().eq(text.notna()).all())
    return parts[0] if has_unit and parts[1].nunique() == 1 else text


def _without(numbers: pd.Series, missing: Sequence[str]) -> pd.Series:
    marks = pd.to_numeric(pd.Series(list(missing), dtype="string"), errors="coerce").dropna()
    return numbers.mask(numbers.isin(marks.astype(float).tolist())) if len(marks) else numbers
