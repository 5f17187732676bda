"""Which columns a CSV file of trajectories has, and which of them are wrong."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from mbrl_hdp.data.csv_source import MAX_BYTES, CsvSource
from mbrl_hdp.data.plain_files import file_problem
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


def read_header(source: CsvSource) -> Columns:
    """Sort a header's names by role.

    `obs_0, obs_1, ...` are taken in the order of their numbers, other names (`obs_speed`) as they stand.

    Raises:
        DataError: if a column is doubled, or no column is an observation.
    """
    header = source.header
    for name, count in Counter(header).items():
        if count > 1:
            raise _header_error(source, f"column {short(name)!r} appears twice")
    obs, act = _vector_columns(source, "obs_"), _vector_columns(source, "act_")
    if not obs:
        raise _header_error(source, "columns 'obs_*' are missing (obs_0, obs_1, ... or names such as obs_speed)")
    return Columns(header, obs, act, [*act, *(name for name in _OPTIONAL if name in header)])


def is_own_layout(path: Path) -> Columns | None:
    """Return the columns of a file that has this layout's names and no others, between commas; None for any other.

    Raises:
        DataError: if a column of this layout is missing, doubled or misnumbered.
    """
    if file_problem(path, MAX_BYTES) is not None:  # a pipe or a device may have no end
        return None
    try:
        with path.open(encoding="utf-8-sig", errors="replace") as file:
            line = next((line for line in file if line.strip()), "")
    except OSError:
        return None
    names = {name.strip() for name in line.split(",")}
    is_known = all(name.startswith(("obs_", "act_")) or name in (*_REQUIRED, *_OPTIONAL) for name in names)
    if not is_known or not {*_REQUIRED} <= names:
        return None
    return read_header(CsvSource.open(path))


def _vector_columns(source: CsvSource, prefix: str) -> list[str]:
    names = [name for name in source.header if name.startswith(prefix)]
    if not all(name.removeprefix(prefix).isdecimal() for name in names):
        return names
    for number in range(len(names)):
        if f"{prefix}{number}" not in names:
            raise _header_error(source, f"column '{prefix}{number}' is missing: numbered columns count from 0")
    return [f"{prefix}{number}" for number in range(len(names))]


def _header_error(source: CsvSource, problem: str) -> DataError:
    return source.error(problem, line=source.header_line)
