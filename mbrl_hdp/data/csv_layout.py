"""Which columns a CSV file of trajectories has, and which of them are wrong."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from mbrl_hdp.data.csv_source import CsvSource
from mbrl_hdp.errors import DataError, did_you_mean, short

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
        DataError: if a column is missing, doubled or unknown.
    """
    header = source.header
    for name, count in Counter(header).items():
        if count > 1:
            raise _header_error(source, f"column {short(name)!r} appears twice")
        if not name.startswith(("obs_", "act_")) and name not in (*_REQUIRED, *_OPTIONAL):
            known = [*_REQUIRED, "obs_*", "act_*", *_OPTIONAL]
            raise _header_error(
                source, f"column {short(name)!r} is unknown; rename or remove it; {did_you_mean(name, known)}"
            )
    for name in _REQUIRED:
        if name not in header:
            raise _header_error(source, f"column {name!r} is missing")
    obs, act = _vector_columns(source, "obs_"), _vector_columns(source, "act_")
    if not obs:
        raise _header_error(source, "columns 'obs_*' are missing (obs_0, obs_1, ... or names such as obs_speed)")
    return Columns(header, obs, act, [*act, *(name for name in _OPTIONAL if name in header)])


def _vector_columns(source: CsvSource, prefix: str) -> list[str]:
    names = [name for name in source.header if name.startswith(prefix)]
    if not all(name.removeprefix(prefix).isdecimal() for name in names):
        return names
    for number in range(len(names)):
        if f"{prefix}{number}" not in names:
            raise _header_error(source, f"column '{prefix}{number}' is missing: numbered columns count from 0")
    return [f"{prefix}{number}" for number in range(len(names))]


def _header_error(source: CsvSource, problem: str) -> DataError:
    if len(source.header) == 1 and any(separator in source.header[0] for separator in ";\t"):
        return source.error("is not separated by commas: save it with ',' between cells", line=source.header_line)
    return source.error(problem, line=source.header_line)
