"""A Ray cluster of two nodes on this machine, a sweep on it, and workers that are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

_TICK, _TIMEOUT = 0.05, 1200.0


class TwoNodes:
    """Two Ray nodes on this machine, one core each."""

    def __init__(self) -> None:
        os.environ.setdefault("RAY_worker_niceness", "0")
        from ray.cluster_utils import Cluster

        self._cluster: Any = Cluster()
        self._cluster.add_node(num_cpus=1, include_dashboard=False)
        self._cluster.add_node(num_cpus=1)

    @property
    def address(self) -> str:
        """Where drivers connect."""
        return str(self._cluster.address)

    def stop(self) -> None:
        """End both nodes and everything that runs on them."""
        self._cluster.shutdown()


class SweepProcess:
    """`mbrl-hdp train -m ...` in a process of its own."""

    def __init__(self, words: Sequence[str], folder: Path, *more: str) -> None:
        self.folder = folder
        command = [sys.executable, "-m", "mbrl_hdp", "train", "-m", *words, "--no-report"]
        self._log = (folder.parent / f"{folder.name}.log").open("a")
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
        self.process = subprocess.Popen(
            [*command, f"hydra.sweep.dir={folder}", *more], stdout=self._log, stderr=subprocess.STDOUT, env=environment
        )

    def wait_for(self, is_there: Callable[[], bool], what: str) -> None:
        """Wait for something that the sweep does.

        Raises:
            RuntimeError: if it ends before that, or takes too long.
        """
        patience = time.monotonic() + _TIMEOUT
        while not is_there():
            if self.process.poll() is not None or time.monotonic() > patience:
                raise RuntimeError(f"{what} did not happen; see {self._log.name}")
            time.sleep(_TICK)

    def end(self) -> tuple[int, str]:
        """Wait for the end; return the exit code and everything printed so far into this folder's log."""
        code = self.process.wait(_TIMEOUT)
        self._log.close()
        return code, Path(self._log.name).read_text()


def on_ray(cluster: TwoNodes) -> list[str]:
    """Return the overrides that run a sweep on a cluster."""
    return ["hydra/launcher=ray", f"hydra.launcher.ray.init.address='{cluster.address}'"]


def unfinished_with_checkpoint(folder: Path, jobs: Sequence[int]) -> list[int]:
    """Return the jobs that a process works on, after its first checkpoint and before its end."""
    return [
        job
        for job in jobs
        if _is_alive(worker_of(folder, job))
        and any((folder / str(job) / "checkpoints").glob("epoch_*"))
        and not (folder / str(job) / "summary.json").is_file()
    ]


def worker_of(folder: Path, job: int) -> int | None:
    """Return the process that a job's lock names, None if there is no lock; a killed process leaves its own."""
    words = _words(folder / str(job) / "run.lock")
    return int(words) if words.isdigit() else None


def _is_alive(process: int | None) -> bool:
    if process is None:
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def kill_worker(folder: Path, jobs: Sequence[int]) -> list[int]:
    """Kill, by SIGKILL, the worker of one job that has written a checkpoint; return the job, nothing if none has."""
    for job in unfinished_with_checkpoint(folder, jobs):
        process = worker_of(folder, job)
        if process is not None:
            os.kill(process, signal.SIGKILL)
            return [job]
    return []


def _words(path: Path) -> str:
    try:
        return path.read_text().strip()
    except FileNotFoundError:  # the run has just ended
        return ""


def starts(folder: Path, job: int) -> list[int]:
    """Return, for each time that work on a job was begun, the epochs of the checkpoint that it went on from."""
    lines = _words(folder / str(job) / "history.jsonl").splitlines()
    return [int(json.loads(line)["checkpoint_epoch"]) for line in lines]
