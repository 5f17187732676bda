"""Write files whole or not at all."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from mbrl_hdp.errors import WriteError

# What mkstemp makes of a target `name.ext` below: `.name.ext.` + 8 random characters + `.ext`.
_TEMPORARY = re.compile(r"\..+?(\.\w+)\.[a-z0-9_]{8}\1")


@contextlib.contextmanager
def atomic_path(target: Path) -> Iterator[Path]:
    """Return a temporary path beside `target` that takes its place when the block ends well, and vanishes otherwise.

    Raises:
        WriteError: when the folder is missing or cannot be written to, or the disk is full.
    """
    if not target.parent.is_dir():
        raise WriteError(f"cannot write {target}: there is no folder {target.parent}")
    try:
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=target.suffix, dir=target.parent)
    except OSError as error:
        raise WriteError(f"cannot write {target}: {error.strerror}") from error
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o666 & ~_umask())
        sync(temporary)
        temporary.replace(target)
        sync(target.parent)
    except OSError as error:
        raise WriteError(f"cannot write {target}: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk: a power cut then finds them there."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def clear_leftovers(folder: Path) -> None:
    """Remove temporary files that a killed process left in a folder; nobody else may be writing there."""
    for path in folder.glob(".*"):
        if path.is_file() and _TEMPORARY.fullmatch(path.name):
            path.unlink(missing_ok=True)


def _umask() -> int:
    # mkstemp makes files private; a saved file should be as readable as any other that the user writes.
    mask = os.umask(0)
    os.umask(mask)
    return mask
