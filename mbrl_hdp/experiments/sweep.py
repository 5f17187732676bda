"""A sweep that can be run again: finished jobs are skipped, interrupted ones resume, failed ones are listed.

Jobs run in other processes, on other machines or twice (Ray runs the job of a dead worker again). So what became of a
job is written into its own folder, job.json, and read from there.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore

from mbrl_hdp.data.atomic import atomic_path
from mbrl_hdp.data.plain_files import read_json
from mbrl_hdp.errors import CheckpointError, ConfigError, MbrlHdpError
from mbrl_hdp.experiments.history import read_history
from mbrl_hdp.experiments.jobs import SweepJob
from mbrl_hdp.experiments.run_folder import CONFIG
from mbrl_hdp.experiments.run_lock import run_lock

FINISHED_NOW = "finished now"
FINISHED_BEFORE = "finished before"
RESUMED = "resumed"
FAILED = "failed"
RUNNING = "still running"
INTERRUPTED = "interrupted"
NOT_STARTED = "not started"
DONE = (FINISHED_NOW, FINISHED_BEFORE, RESUMED)

LOG = "app.log"
_JOB = "job.json"
_FINISHED = "finished"
_LOG = logging.getLogger("mbrl_hdp")  # Hydra writes it to app.log
# A process that was asked to end may still be busy for a moment when its job is begun again elsewhere.
_PATIENCE_S = 60.0
_SUBMITIT = ("hydra_plugins.hydra_submitit_launcher", "pip install --no-deps hydra-submitit-launcher==1.2.0 submitit")
_LAUNCHERS = {
    "joblib": ("hydra_plugins.hydra_joblib_launcher", "pip install --no-deps hydra-joblib-launcher==1.2.0 joblib"),
    "ray": ("hydra_plugins.hydra_ray_launcher", "pip install --no-deps -r requirements-ray.lock"),
    "submitit_local": _SUBMITIT,
    "submitit_slurm": _SUBMITIT,
}
# In place of the launcher's own settings, which cannot connect to a running cluster. Without an address: the cluster
# that RAY_ADDRESS names or `ray start` began on this machine, else a new one. The job of a dead worker is run again.
_RAY = {
    "_target_": "hydra_plugins.hydra_ray_launcher.ray_launcher.RayLauncher",
    "ray": {
        "init": {"address": None, "num_cpus": None, "object_store_memory": None, "include_dashboard": False},
        "remote": {"num_cpus": 1, "max_retries": 3},
    },
}


@dataclass(frozen=True)
class JobOutcome:
    """What became of one job of a sweep.

    Attributes:
        number: its number, from 0.
        words: the settings in which it differs from the others.
        state: one of the states above.
        return_mean: its mean return; None unless it is finished.
        folder: its run directory.
        error: why it failed, one line.
    """

    number: int
    words: str
    state: str
    return_mean: float | None
    folder: Path
    error: str | None = None


def prepare_launcher(overrides: Sequence[str]) -> None:
    """Check that the launcher that is named is installed; give Ray's our settings.

    Raises:
        ConfigError: with the command that installs it.
    """
    for word in overrides:
        key, _, name = word.partition("=")
        if key == "hydra/launcher" and name in _LAUNCHERS:
            module, advice = _LAUNCHERS[name]
            if not _is_installed(module):
                raise ConfigError(f"{word} needs a package that is not installed: {advice}")
    ConfigStore.instance().store(group="hydra/launcher", name="ray", node=_RAY, provider="mbrl_hdp")


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def mark_finished(folder: Path, return_mean: float) -> None:
    """Note that a run is finished, report and all."""
    _mark(folder, {"state": _FINISHED, "return_mean": return_mean})


def mark_failed(folder: Path, error: Exception) -> None:
    """Note that a job failed and why; the traceback goes to its app.log."""
    _LOG.error("the job failed", exc_info=error)
    words = str(error) if isinstance(error, MbrlHdpError) else f"{type(error).__name__}: {error}"
    _mark(folder, {"state": FAILED, "error": " ".join(words.split())})


def _mark(folder: Path, words: dict[str, Any]) -> None:
    with atomic_path(folder / _JOB) as path:
        path.write_text(json.dumps(words))


def finished_return(folder: Path) -> float | None:
    """Return the mean return of a finished run, None for any other folder."""
    words = _read_mark(folder)
    return float(words["return_mean"]) if words.get("state") == _FINISHED else None


def _read_mark(folder: Path) -> dict[str, Any]:
    return read_json(folder / _JOB) if (folder / _JOB).is_file() else {}


def wait_until_free(folder: Path) -> None:
    """Wait for the end of a process that still works on a run directory.

    Raises:
        CheckpointError: if it goes on working there.
    """
    patience = time.monotonic() + _PATIENCE_S
    while True:
        try:
            with run_lock(folder):
                return
        except CheckpointError:
            if time.monotonic() > patience:
                raise
        time.sleep(0.5)


class Sweep:
    """The jobs of a sweep, as they were found and as they are now.

    Attributes:
        word: the override that names its folder.
    """

    def __init__(self, word: str, jobs: Sequence[SweepJob], folders: Sequence[Path]) -> None:
        self.word = word
        self._words = _differing([job.overrides for job in jobs])
        self._folders = list(folders)
        self._was_finished = [finished_return(place) is not None for place in folders]
        self._num_starts = [len(_history(place)) for place in folders]

    def outcomes(self) -> list[JobOutcome]:
        """Return what became of every job so far."""
        return [self._outcome(number) for number in range(len(self._folders))]

    def _outcome(self, number: int) -> JobOutcome:
        folder, words = self._folders[number], self._words[number]
        mark = _read_mark(folder)
        if mark.get("state") == _FINISHED:
            return JobOutcome(number, words, self._finished_state(number), float(mark["return_mean"]), folder)
        if mark.get("state") == FAILED:
            return JobOutcome(number, words, FAILED, None, folder, str(mark["error"]))
        return JobOutcome(number, words, _unfinished_state(folder), None, folder)

    def _finished_state(self, number: int) -> str:
        if self._was_finished[number]:
            return FINISHED_BEFORE
        starts = _history(self._folders[number])[self._num_starts[number] :]
        return RESUMED if any(start.get("checkpoint_epoch") for start in starts) else FINISHED_NOW


def _history(folder: Path) -> list[dict[str, Any]]:
    return read_history(folder) if folder.is_dir() else []


def _unfinished_state(folder: Path) -> str:
    if not (folder / CONFIG).is_file():
        return NOT_STARTED
    try:
        with run_lock(folder):
            return INTERRUPTED
    except CheckpointError:
        return RUNNING


def _differing(jobs: Sequence[Sequence[str]]) -> list[str]:
    """Return the overrides of each job that are not those of all.

    Example:
        >>> _differing([["seed=0", "env=drone"], ["seed=1", "env=drone"]])
        ['seed=0', 'seed=1']
    """
    common = set(jobs[0]).intersection(*jobs) if len(jobs) > 1 else set()
    return [" ".join(word for word in job if word not in common) for job in jobs]
