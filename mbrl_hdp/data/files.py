"""Load and save trajectories by what their name ends in."""

from __future__ import annotations

from pathlib import Path

from mbrl_hdp.data.csv_files import load_csv, save_csv
from mbrl_hdp.data.minari_files import load_minari, save_minari
from mbrl_hdp.data.npz_files import load_npz, save_npz
from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.errors import DataError

_MINARI = "minari:"
_LOADERS = {".npz": load_npz, ".csv": load_csv}
_SAVERS = {".npz": save_npz, ".csv": save_csv}


def load_trajectories(path_or_id: str | Path, allow_missing: bool = False) -> Trajectories:
    """Load trajectories from a `.npz` file, a `.csv` file or a Minari dataset (`minari:ID`).

    Args:
        path_or_id: where they are.
        allow_missing: let NaN (an empty cell) mark missing samples.

    Raises:
        DataError: if there is nothing there, or not what it should be.

    Example:
        >>> data = load_trajectories("logs.csv")
        >>> data = load_trajectories("minari:D4RL/pen/human-v2")
    """
    if str(path_or_id).startswith(_MINARI):
        return load_minari(str(path_or_id).removeprefix(_MINARI), allow_missing)
    return _LOADERS[_suffix(path_or_id)](path_or_id, allow_missing)


def save_trajectories(data: Trajectories, path_or_id: str | Path) -> None:
    """Save trajectories as a `.npz` file, a `.csv` file or a local Minari dataset (`minari:ID`).

    Files appear whole or not at all and replace older ones; a Minari dataset that exists is not overwritten.
    """
    if str(path_or_id).startswith(_MINARI):
        save_minari(data, str(path_or_id).removeprefix(_MINARI))
    else:
        _SAVERS[_suffix(path_or_id)](data, path_or_id)


def _suffix(path: str | Path) -> str:
    suffix = Path(path).suffix.lower()
    if suffix not in _LOADERS:
        raise DataError(
            f"{path}: do not know how to read or write {suffix or 'a name without an ending'}; "
            f"known are {', '.join(_LOADERS)} and minari:ID"
        )
    return suffix
