"""When a run was begun and resumed, and by which versions: one line of history.jsonl each time."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mbrl_hdp.data.atomic import atomic_path
from mbrl_hdp.data.plain_files import parse_json, read_words
from mbrl_hdp.experiments.metrics import read_metrics
from mbrl_hdp.experiments.run_lock import run_lock
from mbrl_hdp.experiments.summary import git_commit, versions

_FILE = "history.jsonl"


def note_start(folder: Path) -> None:
    """Note that work on a run begins or goes on now.

    Raises:
        CheckpointError: if another process works on it.
    """
    with run_lock(folder):
        epochs = len(read_metrics(folder)) if (folder / "metrics.csv").is_file() else 0
        now = datetime.now(UTC).isoformat(timespec="seconds")
        line = {
            "started": now,
            "epochs_done": epochs,
            "checkpoint_epoch": _last_checkpoint(folder),
            "versions": versions(),
            "git_commit": git_commit(),
        }
        earlier = read_words(folder / _FILE) if (folder / _FILE).is_file() else ""
        with atomic_path(folder / _FILE) as path:
            path.write_text(earlier + json.dumps(line) + "\n")


def _last_checkpoint(folder: Path) -> int:
    """Return the epoch of the last checkpoint, from which a run goes on; 0 where there is none."""
    names = [path.name for path in (folder / "checkpoints").glob("epoch_*") if path.is_dir()]
    return max((int(name.removeprefix("epoch_")) for name in names if name[len("epoch_") :].isdigit()), default=0)


def read_history(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's history, oldest first; none for a run of an earlier version.

    Raises:
        CheckpointError: if the file is damaged.
    """
    path = folder / _FILE
    return [parse_json(line, str(path)) for line in read_words(path).splitlines() if line] if path.is_file() else []
