"""Delimited text as a pandas table: encoding, separator, decimal comma, remarks and units are recognised."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import itertools
import lzma
import re
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from mbrl_hdp.data.cells import MISSING_WORDS, NUMBER, THOUSANDS_COMMA, guess, to_numbers
from mbrl_hdp.data.plain_files import file_problem
from mbrl_hdp.data.suggestions import Guesses
from mbrl_hdp.errors import DataError

MAX_BYTES = 2 << 30
"""Largest text file that is read, unpacked; larger logs go into parquet or .npz files."""
_SEPARATORS = ("\t", ";", "|", ",")
_BLANKS = " "
_SAMPLE_LINES = 200
_CONTROL = re.compile(r"[\0-\x08\x0e-\x1a\x1c-\x1f]")
_REMARK = re.compile(r"\s*(#|//|%|\"?sep=.\"?\s*$)")  # Excel writes the separator above the names
_DECIMAL_COMMA = re.compile(r"[+-]?(\d+|\d{1,3}(\.\d{3})+),\d+([eE][+-]?\d+)?")
_DECIMAL_POINT = re.compile(r"[+-]?\d*\.\d+([eE][+-]?\d+)?")
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(\.\d{3})+,\d+")


@dataclass(frozen=True)
class TextTable:
    """A delimited text file.

    Attributes:
        path: where it came from.
        header: column names.
        header_line: line of the names, counted from 1.
        separator: what stands between cells; a blank stands for any number of them.
        decimal: the decimal sign.
        thousands: sign that groups thousands; None where there is none.
        units: unit of every column that has one, from a row below the names.
        text: all text below the names (and the units).
        first_line: line at which `text` begins.
        repeated: line at which the names come again (files that were joined); None where they do not.
    """

    path: Path
    header: list[str]
    header_line: int
    separator: str
    decimal: str
    thousands: str | None
    text: str = field(repr=False)
    first_line: int
    units: dict[str, str] = field(default_factory=dict)
    repeated: int | None = None

    @staticmethod
    def open(path: Path) -> TextTable:
        """Read a file and recognise its habits.

        Raises:
            DataError: if it is missing, too large, no text, empty or has no columns.
        """
        lines = _decoded(path).splitlines()
        start = next((n for n, line in enumerate(lines) if line.strip() and not _REMARK.match(line)), None)
        if start is None:
            raise DataError(f"{path} is empty: a header and rows are needed")
        sample = [line for line in lines[start : start + _SAMPLE_LINES] if line.strip() and not _REMARK.match(line)]
        separator = _find_separator(sample)
        header, is_in_text = _find_header(lines, start, sample, separator)
        rows = [[cell.strip() for cell in split_cells(line, separator)] for line in sample[is_in_text:]]
        cells = [cell for row in rows for cell in row]
        is_comma = separator != "," and _is_decimal_comma(cells)
        units = _units(header, rows) if is_in_text else None
        body = start + is_in_text
        if units is not None:
            body = next(n for n in range(start + 1, len(lines)) if lines[n].strip() and not _REMARK.match(lines[n])) + 1
        repeats = [n for n in range(body, len(lines)) if is_in_text and lines[n] == lines[start]]
        blank = {*repeats, *(n for n in range(body, len(lines)) if _REMARK.match(lines[n]))}
        return TextTable(
            path,
            header,
            max(start + is_in_text, 1),
            separator,
            "," if is_comma else ".",
            _thousands(cells, is_comma),
            "\n".join("" if number in blank else line for number, line in enumerate(lines[body:], body)),
            body + 1,
            units or {},
            repeats[0] + 1 if repeats else None,
        )

    def frame(self, columns: Sequence[str], as_text: Sequence[str] = (), missing: Sequence[str] = ()) -> pd.DataFrame:
        """Return some columns as numbers; those of `as_text` (time, episode, context) as they stand.

        `missing` are further words or numbers that mark a missing sample.

        Raises:
            DataError: naming line and column of a cell that is no number, or a row of the wrong width.
        """
        if not self.text.strip():
            raise DataError(f"{self.path}, line {self.header_line}: has a header but no rows")
        try:
            table = self._read(as_text)
        except (pd.errors.ParserError, pd.errors.ParserWarning, ValueError, OverflowError) as error:
            raise self._find_bad_row() or DataError(f"{self.path} cannot be read as a table: {error}") from error
        self._check_widths(table)
        return pd.DataFrame(
            {name: table[name] if name in as_text else self._numbers(table[name], name, missing) for name in columns}
        )

    def _read(self, as_text: Sequence[str]) -> pd.DataFrame:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # rows longer than the header lose cells otherwise
            return pd.read_csv(
                io.StringIO(self.text),
                sep=r"\s+" if self.separator == _BLANKS else self.separator,
                names=self.header,
                header=None,
                index_col=False,
                dtype=dict.fromkeys(as_text, str),
                decimal=self.decimal,
                thousands=self.thousands,
                na_values=list(MISSING_WORDS),
                skipinitialspace=True,
                on_bad_lines="error",
                low_memory=False,
            )

    def _numbers(self, column: pd.Series, name: str, missing: Sequence[str]) -> pd.Series:
        return to_numbers(column, lambda row: self.place(row, name), self.decimal, missing)

    def guesses(self) -> Guesses:
        """Return which columns hold mostly words, time stamps or nothing at all, in the first rows."""
        rows = [split_cells(line, self.separator) for line in self.text.split("\n")[:_SAMPLE_LINES] if line.strip()]
        cells = zip(self.header, itertools.zip_longest(*rows, fillvalue=""), strict=False)
        return guess(pd.DataFrame({name: pd.Series(column, dtype="string") for name, column in cells}))

    def place(self, row: int, column: str | None = None) -> str:
        """Return file, line and column of a row of the frame, for messages."""
        line = next(itertools.islice(self._rows(), row, None))[0]
        return f"{self.path}, line {line}" + (f", column {column!r}" if column else "")

    def cell(self, row: int, column: str) -> str:
        """Return a cell of the frame as it stands in the file."""
        return next(itertools.islice(self._rows(), row, None))[1][self.header.index(column)].strip()

    def _check_widths(self, table: pd.DataFrame) -> None:
        # pandas fills short rows with NaN; a row that lacks its last cells is damage, not a missing sample.
        is_short = table[self.header[-1]].isna().to_numpy(bool) if len(self.header) > 1 else np.zeros(0, bool)
        if is_short.any():
            problem = self._find_bad_row()
            if problem is not None:
                raise problem

    def _find_bad_row(self) -> DataError | None:
        for line, cells in self._rows():
            if len(cells) != len(self.header):
                return DataError(f"{self.path}, line {line}: has {len(cells)} cells, the header has {len(self.header)}")
        return None

    def _rows(self) -> Iterator[tuple[int, list[str]]]:
        if self.separator == _BLANKS:
            lines = enumerate(self.text.split("\n"), self.first_line)
            yield from ((number, line.split()) for number, line in lines if line.strip())
            return
        reader = csv.reader(io.StringIO(self.text), delimiter=self.separator, skipinitialspace=True)
        before = 0
        try:
            for cells in reader:
                if len(cells) > 1 or any(cell.strip() for cell in cells):
                    yield self.first_line + before, cells
                before = reader.line_num
        except csv.Error as error:
            raise DataError(f"{self.path}, line {self.first_line + before}: {error}") from error


def _find_header(lines: Sequence[str], start: int, sample: Sequence[str], separator: str) -> tuple[list[str], bool]:
    """Return the names of the columns, and whether they stand in the first line that is no remark.

    They may also stand in the remark above the numbers (`# t x y`, `%time,x,y`), or nowhere: then columns are numbered.
    """
    first = [cell.strip() for cell in split_cells(sample[0], separator)]
    is_counted = first in ([str(n) for n in range(len(first))], [str(n + 1) for n in range(len(first))])
    has_names = not all(map(NUMBER.fullmatch, first)) and not any(map(_DECIMAL_POINT.fullmatch, first))
    if not has_names and not is_counted:
        above = [line for line in lines[:start] if line.strip()]
        names = [name.strip() for name in split_cells(_REMARK.sub("", above[-1]).strip(), separator)] if above else []
        if len(names) == len(first) and not any(NUMBER.fullmatch(name) for name in names):
            return _named(names), False
        return [f"column_{place}" for place in range(len(first))], False
    return _named(first), True


def _named(names: Sequence[str]) -> list[str]:
    return [name or f"column_{place}" for place, name in enumerate(names)]


def _thousands(cells: Sequence[str], is_decimal_comma: bool) -> str | None:
    form, sign = (_THOUSANDS, ".") if is_decimal_comma else (THOUSANDS_COMMA, ",")
    return sign if any(form.fullmatch(cell) for cell in cells) else None


def split_cells(line: str, separator: str) -> list[str]:
    """Split one line; a blank as separator stands for any number of them."""
    if separator == _BLANKS:
        return line.split()
    try:
        return next(csv.reader([line], delimiter=separator, skipinitialspace=True), [])
    except csv.Error:
        return line.split(separator)


def _decoded(path: Path) -> str:
    problem = file_problem(path, MAX_BYTES)
    if problem is not None:
        raise DataError(f"{path} {problem}")
    try:
        content = _content(path)
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if len(content) > MAX_BYTES:
        raise DataError(f"{path} has more than {MAX_BYTES:,} bytes when unpacked; at most that many are read")
    encodings = ["utf-16"] if content[:2] in (b"\xff\xfe", b"\xfe\xff") else ["utf-8-sig", "cp1252"]
    for encoding in encodings:
        try:
            text = content.decode(encoding)
        except UnicodeDecodeError:
            continue
        if _CONTROL.search(text) is None:
            return text
    raise DataError(f"{path} is not a text file (neither UTF-8 nor UTF-16 nor Windows-1252)")


def _content(path: Path) -> bytes:
    """Return the bytes of a file, unpacked by what its name ends in."""
    packed: dict[str, Callable[[Path], gzip.GzipFile | bz2.BZ2File | lzma.LZMAFile]] = {
        ".gz": gzip.GzipFile,
        ".bz2": bz2.BZ2File,
        ".xz": lzma.LZMAFile,
    }
    opened = packed.get(path.suffix.lower())
    if opened is None:
        return path.read_bytes()
    with opened(path) as file:
        return file.read(MAX_BYTES + 1)


def _find_separator(sample: Sequence[str]) -> str:
    """Return the separator under which header and rows have the same number of cells; the rarer signs first."""
    for separator in (*_SEPARATORS, _BLANKS):
        counts = [len(split_cells(line, separator)) for line in sample]
        if counts[0] > 1 and Counter(counts[1:] or counts).most_common(1)[0][0] == counts[0]:
            return separator
    return next((sign for sign in _SEPARATORS if sign in sample[0]), ",")


def _is_decimal_comma(cells: Sequence[str]) -> bool:
    commas = sum(bool(_DECIMAL_COMMA.fullmatch(cell)) for cell in cells)
    return commas > sum(bool(_DECIMAL_POINT.fullmatch(cell)) for cell in cells)


def _units(header: Sequence[str], rows: Sequence[Sequence[str]]) -> dict[str, str] | None:
    """Return the units in a row below the names: no cell of it is a number where the rows below hold numbers."""
    if len(rows) < 2 or any(NUMBER.fullmatch(cell) for cell in rows[0]):
        return None
    is_number = [
        all(NUMBER.fullmatch(cell) for cell in column if cell) and any(column)
        for column in itertools.zip_longest(*rows[1:], fillvalue="")
    ]
    above = [cell for cell, is_it in zip(rows[0], is_number, strict=False) if is_it]
    if not above or not any(above) or any(cell.lower() in {"nan", "na", "null", *MISSING_WORDS} for cell in above):
        return None
    return {name: cell.strip("[]() ") for name, cell in zip(header, rows[0], strict=False) if cell.strip("[]() ")}
