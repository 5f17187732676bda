"""Trajectories as `.npz` files: exact, quick, and nothing in them can run code."""

from __future__ import annotations

import json
import zipfile
import zlib
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from mbrl_hdp.data.atomic import atomic_path
from mbrl_hdp.data.names import Names
from mbrl_hdp.data.plain_files import file_problem
from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.errors import DataError, did_you_mean

SCHEMA_VERSION = 1
"""Version of the file's layout; a file without one is a user's own, with the same array names."""

# What numpy and zipfile raise on damaged bytes; RuntimeError and MemoryError for headers that claim the impossible.
_DAMAGE = (ValueError, OSError, EOFError, KeyError, RuntimeError, MemoryError, zipfile.BadZipFile, zlib.error)

# Compressed padding may well be a hundred times smaller; beyond this size and ratio it is no log of a machine.
_UNPACKED_FREELY, _MAX_RATIO = 256 << 20, 100

_FIELDS = tuple(field.name for field in fields(Trajectories))


def save_npz(data: Trajectories, path: str | Path) -> None:
    """Write every array under its own name; the file appears whole or not at all.

    `schema_version` is the version of the layout, `contents` lists the names of the arrays: without it,
    an array lost from a damaged zip file would go unnoticed.
    """
    arrays = {name: getattr(data, name) for name in _FIELDS}
    present = {name: array for name, array in arrays.items() if array is not None}
    if data.names is not None:
        present["names"] = json.dumps(data.names.words())
    with atomic_path(Path(path)) as temporary, temporary.open("wb") as file:
        np.savez(file, allow_pickle=False, schema_version=SCHEMA_VERSION, contents=list(present), **present)


def load_npz(path: str | Path, allow_missing: bool = False) -> Trajectories:
    """Read a file of `save_npz`, or a user's own `np.savez(path, obs=..., act=...)`.

    Args:
        path: the file.
        allow_missing: let NaN mark missing samples also where the file does not say so itself.

    Raises:
        DataError: if the file is missing, damaged, of another kind or of a newer version.
    """
    arrays = _read_arrays(Path(path))
    version = arrays.pop("schema_version", np.array(SCHEMA_VERSION))
    if version.shape != () or version.dtype.kind not in "iu" or not 1 <= version <= SCHEMA_VERSION:
        raise DataError(
            f"{path} has schema_version {version}, this program reads up to {SCHEMA_VERSION}: "
            "update mbrl-hdp, or save the file again with this one"
        )
    lost = [name for name in arrays.pop("contents", np.array([])).ravel().tolist() if name not in arrays]
    if lost:
        raise DataError(f"{path} is damaged: its array {lost[0]!r} is gone")
    unknown = [name for name in arrays if name not in _FIELDS]
    if "obs" not in arrays or unknown:
        problem = f"unknown array {unknown[0]!r}: {did_you_mean(unknown[0], _FIELDS)}" if unknown else "no array 'obs'"
        raise DataError(f"{path} does not hold trajectories: {problem}")
    names = None if "names" not in arrays else _names(arrays.pop("names"), path)
    is_allowed = bool(np.any(arrays.pop("allow_missing", False))) or allow_missing
    try:
        return Trajectories(**arrays, allow_missing=is_allowed, names=names)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def _names(words: np.ndarray, path: str | Path) -> Names:
    """Return the names of columns and episodes, which stand in the file as one text of JSON."""
    try:
        return Names.from_words(json.loads(str(words)))
    except (ValueError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: its array 'names' does not hold names of columns: {error}") from error


def _read_arrays(path: Path) -> dict[str, Any]:
    problem = file_problem(path)
    if problem is not None:
        raise DataError(f"{path} {problem}")
    try:
        _check_size(path)
        content = np.load(path, allow_pickle=False)
        if isinstance(content, np.ndarray):
            raise DataError(f"{path} is a single array, not an .npz file of trajectories")
        with content:
            return {name: content[name] for name in content.files}
    except _DAMAGE as error:
        raise DataError(f"{path} cannot be read as an .npz file (damaged or of another kind): {error}") from error


def _check_size(path: Path) -> None:
    """Refuse a file that unpacks to far more than it holds, before it fills the memory."""
    if not zipfile.is_zipfile(path):
        return
    with zipfile.ZipFile(path) as archive:
        num_bytes = sum(entry.file_size for entry in archive.infolist())
    packed = path.stat().st_size
    if num_bytes > _UNPACKED_FREELY and num_bytes > _MAX_RATIO * packed:
        raise DataError(
            f"{path} has {packed:,} bytes and unpacks to {num_bytes:,}, more than {_MAX_RATIO} times as many; if the "
            "data is right, save it with np.savez (not compressed)"
        )
