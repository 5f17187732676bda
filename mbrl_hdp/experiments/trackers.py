"""Where the rows of metrics.csv go besides: TensorBoard events, Weights & Biases or MLflow (`tracker=`).

Whether the network is there or not, a run goes on: a tracker that fails is left out with a warning.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from mbrl_hdp.data.atomic import atomic_path
from mbrl_hdp.data.plain_files import read_json
from mbrl_hdp.errors import ConfigError
from mbrl_hdp.experiments.run_folder import leaves

NONE, TENSORBOARD, WANDB, MLFLOW = "none", "tensorboard", "wandb", "mlflow"
TRACKERS = (NONE, TENSORBOARD, WANDB, MLFLOW)
_PROJECT = "mbrl-hdp"
_FILE = "tracker.json"
_PACKAGES = {WANDB: "wandb", MLFLOW: "mlflow"}
_LOG = logging.getLogger("mbrl_hdp")  # Hydra writes it to app.log

Row = Mapping[str, Any]


class Tracker(Protocol):
    """Takes the row of every finished epoch."""

    def log(self, row: Row) -> None:
        """Take one row."""
        ...

    def close(self) -> None:
        """Write what waits."""
        ...


def check_tracker(name: str) -> None:
    """Raise if a tracker's package is not installed.

    Raises:
        ConfigError: with the command that installs it.
    """
    package = _PACKAGES.get(name)
    if package is not None and importlib.util.find_spec(package) is None:
        raise ConfigError(
            f"tracker={name} needs a package that is not installed: pip install --no-deps -r requirements-extras.lock "
            "(in the checkout)"
        )


def open_tracker(name: str, folder: Path, settings: Mapping[str, Any]) -> Tracker:
    """Open the tracker of a run, which is begun or goes on.

    Args:
        name: one of `TRACKERS`.
        folder: run directory.
        settings: those of the run.
    """
    if name == NONE:
        return NoTracker()
    if name == TENSORBOARD:
        return TensorBoardTracker(folder)
    return GuardedTracker(name, lambda: (WandbTracker if name == WANDB else MlflowTracker)(folder, settings))


class NoTracker:
    """Takes nothing."""

    def log(self, row: Row) -> None:
        """Forget a row."""

    def close(self) -> None:
        """Do nothing."""


class TensorBoardTracker:
    """Event files in `tensorboard/`, opened with the first row and written at once.

    What waits in a queue would be lost when the process is killed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "tensorboard"
        self._writer: Any = None

    def log(self, row: Row) -> None:
        """Write one row."""
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            # Readers then drop what a killed process wrote of this epoch and later ones.
            is_resumed = self._folder.is_dir() and any(self._folder.iterdir())
            _wait_for_a_later_name(self._folder)
            self._writer = SummaryWriter(str(self._folder), purge_step=row["epoch"] if is_resumed else None)
        for name, value in _numbers(row).items():
            self._writer.add_scalar(name, value, row["epoch"])
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()


class WandbTracker:
    """A run of Weights & Biases; offline, in `wandb/`, where WANDB_MODE says so or nobody is logged in."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        import wandb

        mode: Any = os.environ.get("WANDB_MODE") or ("online" if wandb.api.api_key else "offline")
        if mode == "offline":
            _LOG.info("W&B is offline: `wandb sync %s` sends the run later", folder / "wandb" / "offline-run-*")
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", _PROJECT),
            dir=str(folder),
            id=_stored(folder, WANDB, lambda: secrets.token_hex(4)),
            name=folder.name,
            config=dict(settings),
            mode=mode,
            resume="allow",
        )
        self._run.define_metric("*", step_metric="epoch")  # an epoch that is run again after a kill keeps its place

    def log(self, row: Row) -> None:
        """Send one row."""
        self._run.log(_numbers(row))

    def close(self) -> None:
        """Send what waits."""
        self._run.finish()


class MlflowTracker:
    """A run of MLflow: at MLFLOW_TRACKING_URI, else in `mlruns/` of the run directory."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        # MLflow 3 asks for this where the store is a folder.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        from mlflow.tracking import MlflowClient

        place = os.environ.get("MLFLOW_TRACKING_URI") or (folder.absolute() / "mlruns").as_uri()
        self._client = MlflowClient(tracking_uri=place)
        self._id = _stored(folder, MLFLOW, lambda: self._begin(folder, settings))

    def _begin(self, folder: Path, settings: Mapping[str, Any]) -> str:
        known = self._client.get_experiment_by_name(_PROJECT)
        experiment = self._client.create_experiment(_PROJECT) if known is None else known.experiment_id
        run = self._client.create_run(experiment, run_name=folder.name)
        for key, value in leaves(settings):
            self._client.log_param(run.info.run_id, key, value)
        return str(run.info.run_id)

    def log(self, row: Row) -> None:
        """Send one row."""
        for name, value in _numbers(row).items():
            self._client.log_metric(self._id, name, value, step=row["epoch"])

    def close(self) -> None:
        """Mark the run as ended."""
        self._client.set_terminated(self._id)


class GuardedTracker:
    """A tracker somewhere else, opened with the first row; when it fails, the run goes on without it."""

    def __init__(self, name: str, make: Any) -> None:
        self._name, self._make = name, make
        self._tracker: Tracker | None = None
        self._is_out = False

    def log(self, row: Row) -> None:
        """Pass a row on."""
        if self._is_out:
            return
        try:
            if self._tracker is None:
                self._tracker = self._make()
            self._tracker.log(row)
        except Exception as error:  # noqa: BLE001 - whatever happens over there, the run goes on
            self._leave_out(error)

    def close(self) -> None:
        """Close it."""
        if self._tracker is None or self._is_out:
            return
        try:
            self._tracker.close()
        except Exception as error:  # noqa: BLE001 - as above
            self._leave_out(error)

    def _leave_out(self, error: Exception) -> None:
        self._is_out = True
        _LOG.warning("tracker=%s failed and is left out from here on: %s: %s", self._name, type(error).__name__, error)


def _numbers(row: Row) -> dict[str, float]:
    return {name: value for name, value in row.items() if isinstance(value, int | float)}


def _stored(folder: Path, name: str, make: Any) -> str:
    """Return the identity of a run at a tracker, made once and kept in the run directory."""
    path = folder / _FILE
    known: dict[str, str] = read_json(path) if path.is_file() else {}
    if name not in known:
        known[name] = make()
        with atomic_path(path) as temporary:
            temporary.write_text(json.dumps(known))
    return known[name]


def _wait_for_a_later_name(folder: Path) -> None:
    """Wait until the second in the newest event file's name is over.

    Readers take event files in the order of their names, `events.out.tfevents.SECOND.HOST.PROCESS.NUMBER`: of two of
    one second the wrong one might count as the later.
    """
    seconds = [path.name.split(".")[3] for path in folder.glob("events.out.tfevents.*.*")]
    while seconds and max(seconds) == str(int(time.time())):
        time.sleep(0.02)
