"""Parquet files and folders of them (`pip install mbrl-hdp[parquet]`)."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

from mbrl_hdp.data.logs import Log, log_from_frame
from mbrl_hdp.data.roles import LogConfig
from mbrl_hdp.errors import DataError

_ENDINGS = (".parquet", ".pq")
_INSTALL = "parquet files need the package pyarrow: pip install mbrl-hdp[parquet]"


def is_parquet(path: str | Path) -> bool:
    """Return whether a path is a parquet file, or a folder that holds some."""
    found = Path(path)
    return found.suffix.lower() in _ENDINGS or (found.is_dir() and any(True for _ in _parts(found)))


def read_parquet_log(path: Path, config: LogConfig, rest: bool = False) -> Log:
    """Read a parquet file, or a folder of them, sorted by name, as one table.

    Raises:
        DataError: if pyarrow is not installed, or the file is missing, damaged or not what was said.
    """
    arrow = import_pyarrow()
    if not path.exists():
        raise DataError(f"{path} does not exist")
    try:
        frame = arrow.dataset(sorted(_parts(path)) if path.is_dir() else path, format="parquet").to_table().to_pandas()
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"{path} cannot be read as parquet (damaged or of another kind): {error}") from error
    return log_from_frame(frame, config, rest, str(path))


def import_pyarrow() -> ModuleType:
    """Return pyarrow's module of data sets.

    Raises:
        DataError: if it is not installed.
    """
    try:
        return importlib.import_module("pyarrow.dataset")
    except ImportError as error:
        raise DataError(_INSTALL) from error


def _parts(folder: Path) -> list[str]:
    return [str(path) for path in folder.rglob("*") if path.suffix.lower() in _ENDINGS]
