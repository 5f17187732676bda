"""The text of a CSV file, and error messages that name its file, line and column."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Bool

from mbrl_hdp.data.plain_files import file_problem
from mbrl_hdp.errors import DataError, short

MAX_BYTES = 2 << 30
"""Largest CSV file that is read; larger logs go into .npz files."""


@dataclass(frozen=True)
class CsvSource:
    """A CSV file in memory.

    Attributes:
        path: where it came from.
        header: names in its first line that is not blank.
        header_line: number of that line, from 1.
        body: all text below it, without blank lines at the end.
    """

    path: Path
    header: list[str]
    header_line: int
    body: str

    @staticmethod
    def open(path: Path) -> CsvSource:
        """Read a file and split off its header; a byte order mark and any kind of line end are fine."""
        problem = file_problem(path, MAX_BYTES)
        if problem is not None:
            raise DataError(f"{path} {problem}")
        try:
            text = path.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as error:
            raise DataError(f"{path} is not a text file in UTF-8: {error}") from error
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror}") from error
        stripped = text.lstrip("\n")
        if not stripped.strip():
            raise DataError(f"{path} is empty: a header and rows are needed")
        first, _, body = stripped.partition("\n")
        header = [name.strip() for name in _cells(first)]
        return CsvSource(path, header, len(text) - len(stripped) + 1, body.rstrip())

    def error(self, problem: str, line: int, column: str | None = None) -> DataError:
        """Word an error about a place in the file."""
        place = f"{self.path}, line {line}" + (f", column {column!r}" if column else "")
        return DataError(f"{place}: {problem}")

    def refuse(self, refused: Bool[np.ndarray, " R"], column: str, problem: str) -> None:
        """Raise for the first of the rows (as parsed) that is marked, quoting its cell."""
        if not refused.any():
            return
        line, cells = next(itertools.islice(self._rows(), int(np.argmax(refused)), None))
        cell = cells[self.header.index(column)].strip()
        raise self.error(f"{short(cell)!r} {problem}" if cell else problem, line, column)

    def find_bad_cell(self) -> DataError:
        """Go through the file cell by cell for what could not be read as a number."""
        for line, cells in self._rows():
            if len(cells) != len(self.header):
                return self.error(f"has {len(cells)} cells, the header has {len(self.header)}", line)
            for name, cell in zip(self.header, cells, strict=True):
                if cell.strip() and not _is_number(cell):
                    return self.error(f"{short(cell.strip())!r} is not a number", line, name)
        return DataError(f"{self.path} cannot be read as a table of numbers")

    def _rows(self) -> Iterator[tuple[int, list[str]]]:
        """Line number and cells of every row; blank lines are skipped, as the quick parser does."""
        for number, text in enumerate(self.body.split("\n"), start=self.header_line + 1):
            if text.strip():
                yield number, _cells(text)


def _cells(line: str) -> list[str]:
    try:
        return next(csv.reader([line]))
    except csv.Error:  # a cell beyond csv's limit of size
        return line.split(",")


def _is_number(cell: str) -> bool:
    # float() takes more than a plain parser does: 1_000 and digits of other scripts.
    if not cell.isascii() or "_" in cell:
        return False
    try:
        float(cell)
    except ValueError:
        return False
    return True
