"""How the data of a model was read, remembered with it: `label` finds the same columns in any order."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from mbrl_hdp.data.atomic import atomic_path
from mbrl_hdp.data.files import has_columns, read_log
from mbrl_hdp.data.logs import Log
from mbrl_hdp.data.manifest import check_file
from mbrl_hdp.data.names import Names, numbered
from mbrl_hdp.data.plain_files import read_json
from mbrl_hdp.data.reduction import Reduction, remarks
from mbrl_hdp.data.roles import LogConfig
from mbrl_hdp.data.turns import turn_remarks
from mbrl_hdp.errors import CheckpointError, DataError

_FILE = "columns.json"


@dataclass(frozen=True)
class ColumnNames:
    """What the columns of observations and actions are called, in the order of the vectors.

    Attributes:
        obs: observation columns.
        act: action columns.
        read: how the table was read.
        context_names: words of the true contexts, where the file had words.
        units: unit of every column that has one.
        reduction: what turns the file's columns into the model's observations; None: nothing does.
        notes: what was decided when the table was read, a sentence each.
    """

    obs: tuple[str, ...]
    act: tuple[str, ...]
    read: LogConfig = field(default_factory=LogConfig)
    context_names: tuple[str, ...] = ()
    units: dict[str, str] = field(default_factory=dict)
    reduction: Reduction | None = None
    notes: tuple[str, ...] = ()

    @staticmethod
    def of(log: Log, config: LogConfig, reduction: Reduction | None = None) -> ColumnNames:
        """Take names and notes from what was read; with a reduction, the names of the file."""
        obs = log.obs_names if reduction is None else tuple(reduction.columns)
        read = LogConfig(**config.kept())
        notes = (*log.notes, *remarks(log), *turn_remarks(log))
        return ColumnNames(obs, log.act_names, read, log.context_names, log.units, reduction, notes)

    def save(self, folder: Path) -> None:
        """Write the names beside a model."""
        with atomic_path(folder / _FILE) as path:
            path.write_text(json.dumps(asdict(self), indent=2) + "\n")

    @staticmethod
    def load(folder: Path) -> ColumnNames | None:
        """Read the names beside a model; None for a model that was saved from Python, without any."""
        path = folder / _FILE
        check_file(path)
        if not path.is_file():
            return None
        words = read_json(path)
        try:
            read = LogConfig(**words.get("read", {}))
            read.check()
            names = (tuple(map(str, words.get(key, ()))) for key in ("obs", "act", "context_names", "notes"))
            obs, act, contexts, notes = names
            reduction = None if words.get("reduction") is None else Reduction(**words["reduction"])
            return ColumnNames(obs, act, read, contexts, dict(words.get("units", {})), reduction, notes)
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{path} is damaged: {error}; delete it to go without column names") from error

    def read_same(self, source: str, changes: dict[str, Any]) -> Log:
        """Read a file as the model's own data was read: the same columns in any order, others left out.

        Numbered columns carry no meaning of their own and fit any names of the same count.

        Args:
            source: data file or `minari:ID`.
            changes: settings of `LogConfig` that differ for this file.

        Raises:
            DataError: naming the columns that the file lacks.
        """
        changes = {"max_rows": None, **changes}  # every step gets its label
        log = self._read(source, replace(self.read, **changes), changes)
        return log if self.reduction is None else self.reduction.apply(log)

    def _read(self, source: str, config: LogConfig, changes: dict[str, Any]) -> Log:
        is_named = self.obs != numbered("obs_", len(self.obs)) or self.act != numbered("act_", len(self.act))
        if not has_columns(source) or not is_named or config.is_plain:
            plain = LogConfig(allow_missing=config.allow_missing, spikes=config.spikes)
            log = read_log(source, config if has_columns(source) else plain)
            return self._reordered(log, source)
        asked = {"obs": list(self.obs), "act": list(self.act) or None}
        return read_log(source, replace(config, **{**asked, **changes}), rest=True)

    def _reordered(self, log: Log, source: str) -> Log:
        """Put the columns of a log into the model's order."""
        try:
            orders = Names(self.obs, self.act).orders(Names.of(log))
        except DataError as error:
            raise DataError(f"{source}: {error}") from error
        if all(order == list(range(len(order))) for order in orders) and log.data.obs_dim == len(self.obs):
            return log
        return replace(log, data=log.data.take_columns(*orders), obs_names=self.obs, act_names=self.act)
