"""Load and save trajectories by what their name ends in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mbrl_hdp.data.csv_files import save_csv
from mbrl_hdp.data.file_names import TEXTS, is_text, text_parts
from mbrl_hdp.data.minari_files import load_minari, save_minari
from mbrl_hdp.data.names import Names
from mbrl_hdp.data.npz_files import load_npz, save_npz
from mbrl_hdp.data.roles import LogConfig
from mbrl_hdp.data.spikes import is_spike, without_spikes
from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.errors import ConfigError, DataError

if TYPE_CHECKING:
    from mbrl_hdp.data.logs import Log  # with pandas, which is slow to import: only where a table is read

_MINARI = "minari:"
_SAVERS = {".npz": save_npz, ".csv": save_csv}
_READ = (".npz", *TEXTS, ".parquet", ".pq")


def load_trajectories(
    path_or_id: str | Path, allow_missing: bool = False, columns: LogConfig | None = None
) -> Trajectories:
    """Load trajectories from a `.npz`, text (`.csv`, ...) or parquet file or a Minari dataset (`minari:ID`).

    Args:
        path_or_id: where they are; a folder of parquet files is one table, of text files (or a pattern, `runs/*.csv`)
            the episodes of each.
        allow_missing: let NaN (an empty cell) mark missing samples.
        columns: which columns of a table are what; the library's own names (`episode, step, obs_*, act_*`) by default.

    Raises:
        DataError: if there is nothing there, or not what it should be.

    Example:
        >>> data = load_trajectories("logs.csv")
        >>> data = load_trajectories("pump.csv", columns=LogConfig(time="timestamp", obs=["temp_*"], ignore=["*"]))
        >>> data = load_trajectories("minari:D4RL/pen/human-v2")
    """
    config = columns or LogConfig()
    if allow_missing and not config.allow_missing:
        config = LogConfig(**{**config.kept(), "allow_missing": True})
    return read_log(path_or_id, config).named


def read_log(path_or_id: str | Path, config: LogConfig, rest: bool = False) -> Log:
    """Load trajectories with the names of their columns and what was decided on the way.

    Args:
        path_or_id: as for `load_trajectories`.
        config: which columns of a table are what.
        rest: leave out columns without a role (a model knows its own).

    Raises:
        DataError: if there is nothing there, or not what it should be.
        ConfigError: for settings of columns where the file has none.
    """
    config.check()
    log = _read(path_or_id, config, rest)
    return _without_spikes(log) if config.spikes == "drop" else log


def _without_spikes(log: Log) -> Log:
    """Take spikes for missing samples, and say how many."""
    counts = is_spike(log.data).sum((0, 1)).tolist()
    found = [f"{name} ({count})" for name, count in zip(log.obs_names, counts, strict=True) if count]
    words = f"readings that jump away and come back are taken for missing: {', '.join(found) or 'none was found'}"
    return replace(log, data=without_spikes(log.data), notes=(*log.notes, words))


def _read(path_or_id: str | Path, config: LogConfig, rest: bool) -> Log:
    from mbrl_hdp.data.logs import read_text_log
    from mbrl_hdp.data.parquet_files import is_parquet, read_parquet_log

    if is_parquet(path_or_id):
        return read_parquet_log(Path(path_or_id), config, rest)
    parts = [] if str(path_or_id).startswith(_MINARI) else text_parts(path_or_id)
    if parts:
        from mbrl_hdp.data.many_files import joined_logs

        return joined_logs(parts, [_read(part, config, rest) for part in parts])
    if not has_columns(path_or_id):
        if not config.is_plain:
            raise ConfigError(
                f"{path_or_id} has arrays, not columns: leave out obs=, act=, time=, episode= and the like"
            )
        if str(path_or_id).startswith(_MINARI):
            return _numbered(load_minari(str(path_or_id).removeprefix(_MINARI), config.allow_missing))
        return _numbered(load_npz(path_or_id, config.allow_missing))
    return read_text_log(Path(path_or_id), config, rest)


def has_columns(path_or_id: str | Path) -> bool:
    """Return whether a source is a table with named columns (text, parquet) and not a set of arrays."""
    if str(path_or_id).startswith(_MINARI):
        return False
    from mbrl_hdp.data.parquet_files import is_parquet

    return is_parquet(path_or_id) or bool(text_parts(path_or_id)) or is_text(_checked_name(path_or_id))


def save_trajectories(data: Trajectories, path_or_id: str | Path) -> None:
    """Save trajectories as a `.npz` file, a `.csv` file or a local Minari dataset (`minari:ID`).

    Files appear whole or not at all and replace older ones; a Minari dataset that exists is not overwritten.
    """
    if str(path_or_id).startswith(_MINARI):
        save_minari(data, str(path_or_id).removeprefix(_MINARI))
    else:
        _SAVERS[_suffix(path_or_id, tuple(_SAVERS))](data, path_or_id)


def _numbered(data: Trajectories) -> Log:
    from mbrl_hdp.data.logs import Log

    names = data.names or Names.numbered(data.obs_dim, data.act_dim)
    return Log(
        data,
        tuple(names.obs),
        tuple(names.act),
        names.dt,
        context_names=tuple(names.contexts),
        episode_names=tuple(names.episodes),
        units=dict(names.units),
    )


def _checked_name(path: str | Path) -> Path:
    """Return a path that may be read.

    Raises:
        DataError: naming what it is instead and what to do.
    """
    if any(sign in str(path) for sign in "*?[") and not Path(path).exists():
        raise DataError(f"{path}: no text file matches this pattern")
    if Path(path).is_dir():
        raise DataError(f"{path} is a folder without parquet or text files ({', '.join(TEXTS)})")
    if Path(path).suffix.lower() in {".xlsx", ".xls", ".ods"}:
        raise DataError(f"{path}: save the sheet as CSV (any separator and decimal sign will do) and name that file")
    if not is_text(Path(path)):
        _suffix(path, _READ)
    return Path(path)


def _suffix(path: str | Path, known: tuple[str, ...]) -> str:
    suffix = Path(path).suffix.lower()
    if suffix not in known:
        raise DataError(
            f"{path}: do not know how to read or write {suffix or 'a name without an ending'}; "
            f"known are {', '.join(known)} and minari:ID"
        )
    return suffix
