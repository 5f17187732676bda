"""manifest.json: the SHA-256 of every file of a folder, and what else the folder belongs to.

It binds the files of a checkpoint or an export together: one that was damaged, or swapped for that of another run or
epoch, is named. It guards against accidents, not against somebody who writes a new manifest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mbrl_hdp.data.atomic import atomic_path
from mbrl_hdp.data.plain_files import read_json
from mbrl_hdp.errors import CheckpointError

MANIFEST = "manifest.json"
_VERSION = 1


def write_manifest(folder: Path, bound: Mapping[str, str] | None = None, names: Iterable[str] | None = None) -> None:
    """Write the checksums of the files of a folder.

    Args:
        folder: the folder, complete.
        bound: further words that the folder belongs to, e.g. the hash of a configuration.
        names: files to list; all in the folder and below by default.
    """
    listed = _names(folder) if names is None else sorted(names)
    words = {
        "schema_version": _VERSION,
        "bound": dict(bound or {}),
        "files": {name: _file_digest(folder / name) for name in listed},
    }
    with atomic_path(folder / MANIFEST) as path:
        path.write_text(json.dumps(words, indent=2))


def check_manifest(folder: Path, bound: Mapping[str, str]) -> None:
    """Compare a whole folder with its manifest.

    Raises:
        CheckpointError: naming the first file that is missing, changed or does not belong there, or what the folder
            belongs to instead.
    """
    words = _read(folder)
    present = _names(folder)
    for name in present:
        if name not in words["files"]:
            raise CheckpointError(f"{folder / name} does not belong there: {MANIFEST} does not list it")
    for name in words["files"]:
        _check(folder, name, words)
    for key, value in bound.items():
        if words["bound"].get(key) != value:
            raise CheckpointError(f"{folder} belongs to another {key}: it was changed after this was written")


def check_file(path: Path) -> None:
    """Compare one file with the manifest beside it, or one folder above (`final/model/`), if that lists it.

    Raises:
        CheckpointError: if it was changed, or swapped for another one.
    """
    for folder in (path.parent, path.absolute().parent.parent):
        if (folder / MANIFEST).is_file():
            words = _read(folder)
            name = path.absolute().relative_to(folder.absolute()).as_posix()
            if name in words["files"]:
                _check(folder, name, words)


def _read(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    words = read_json(path)
    if words.get("schema_version") != _VERSION or not all(isinstance(words.get(k), dict) for k in ("files", "bound")):
        raise CheckpointError(f"{path} was written by another version of mbrl_hdp, or is damaged")
    return words


def _check(folder: Path, name: str, words: dict[str, Any]) -> None:
    path = folder / name
    if not path.is_file() or folder.resolve() not in path.resolve().parents:
        raise CheckpointError(f"{path} is missing, but {folder / MANIFEST} lists it")
    if words["files"][name] != _file_digest(path):
        raise CheckpointError(
            f"{path} is damaged or belongs to another run: its SHA-256 is not that of {MANIFEST} (if it was replaced "
            f"on purpose, delete {MANIFEST})"
        )


def data_hash(words: Any) -> str:
    """Return the SHA-256 of plain data, independent of the order of keys."""
    return hashlib.sha256(json.dumps(words, sort_keys=True, default=str).encode()).hexdigest()


def _names(folder: Path) -> list[str]:
    found = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())
    return sorted(name for name in found if name != MANIFEST)


def _file_digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
