"""Names of a data file's columns, remembered with the model so that later files are read in the same order."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mbrl_hdp.data.atomic import atomic_path
from mbrl_hdp.data.csv_layout import read_header
from mbrl_hdp.data.csv_source import CsvSource
from mbrl_hdp.data.manifest import check_file
from mbrl_hdp.data.plain_files import read_json
from mbrl_hdp.errors import CheckpointError, DataError

_FILE = "columns.json"


@dataclass(frozen=True)
class ColumnNames:
    """What the columns of observations and actions are called, in the order of the vectors."""

    obs: tuple[str, ...]
    act: tuple[str, ...]

    @staticmethod
    def of(source: str, obs_dim: int, act_dim: int) -> ColumnNames:
        """Take the names from a CSV file's header; other formats have none, their columns are numbered."""
        if Path(source).suffix.lower() == ".csv" and not source.startswith("minari:"):
            header = read_header(CsvSource.open(Path(source)))
            return ColumnNames(tuple(header.obs), tuple(header.act))
        return ColumnNames(_numbered("obs_", obs_dim), _numbered("act_", act_dim))

    def save(self, folder: Path) -> None:
        """Write the names beside a model."""
        with atomic_path(folder / _FILE) as path:
            path.write_text(json.dumps({"obs": self.obs, "act": self.act}, indent=2) + "\n")

    @staticmethod
    def load(folder: Path) -> ColumnNames | None:
        """Read the names beside a model; None for a model that was saved from Python, without any."""
        path = folder / _FILE
        check_file(path)
        if not path.is_file():
            return None
        try:
            words = read_json(path)
            return ColumnNames(tuple(words["obs"]), tuple(words["act"]))
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{path} is damaged: {error}; delete it to go without column names") from error

    def check_same(self, other: ColumnNames, source: str) -> None:
        """Refuse a file whose named columns are not those of the model, or stand in another order.

        Numbered columns carry no meaning of their own and fit any names of the same count.

        Raises:
            DataError: naming both orders.
        """
        for kind, mine, theirs in (("obs_", self.obs, other.obs), ("act_", self.act, other.act)):
            is_named = mine != _numbered(kind, len(mine)) and theirs != _numbered(kind, len(theirs))
            if mine != theirs and (is_named or len(mine) != len(theirs)):
                raise DataError(
                    f"{source}: the model was learned on columns {_listed(mine)}, this file has {_listed(theirs)}; "
                    "give it the same columns in the same order"
                )


def _numbered(prefix: str, count: int) -> tuple[str, ...]:
    return tuple(f"{prefix}{number}" for number in range(count))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "(none)"
