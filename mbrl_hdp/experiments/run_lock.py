"""One process at a time works on a run directory."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mbrl_hdp.errors import CheckpointError, WriteError

LOCK = "run.lock"


@contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Hold the lock of a run directory.

    The system releases the lock when its process ends, however it ends: a file that a killed process left is no lock.

    Raises:
        CheckpointError: if another process holds it.
        WriteError: if the folder cannot be written to.
    """
    path = folder / LOCK
    handle = _take(path)
    try:
        os.ftruncate(handle, 0)
        os.write(handle, f"{os.getpid()}\n".encode())
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(handle)


def _take(path: Path) -> int:
    while True:
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        except OSError as error:
            raise WriteError(f"cannot write {path}: {error.strerror}") from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(handle, 20).decode(errors="replace").strip()
            os.close(handle)
            raise CheckpointError(
                f"{path.parent} is in use by another process ({holder or 'just started'}); wait for it, or choose "
                "another folder"
            ) from error
        if path.exists() and os.fstat(handle).st_ino == path.stat().st_ino:
            return handle
        os.close(handle)  # the process before this one removed the file between the two calls
