"""Trackers: the rows of metrics.csv elsewhere, offline; one that fails does not end a run."""

import json
import time

import pytest

from benchmarks.run_differences import scalars
from mbrl_hdp.errors import ConfigError
from mbrl_hdp.experiments.metrics import RunLog
from mbrl_hdp.experiments.trackers import GuardedTracker, check_tracker

SETTINGS = {"seed": 3, "env": {"name": "cart", "kwargs": {}}, "fit": {"schedules": [{"name": "plain"}]}}


def run_twice(folder, tracker):
    """Log two epochs, be killed, and go on with the second: the row of epoch 1 is written again."""
    for epochs in ((0, 1), (1, 2)):
        with RunLog(folder, 3, False, tracker, SETTINGS) as log:
            for epoch in epochs:
                log.epoch({"epoch": epoch, "return_mean": 10.0 + epoch, "num_contexts": None})


def test_tensorboard_is_the_default_and_none_writes_nothing(tmp_path):
    with RunLog(tmp_path / "default", 1, False) as log:
        log.epoch({"epoch": 0, "return_mean": 2.0})
    assert scalars(tmp_path / "default")["return_mean"] == [(0, "2.0")]
    with RunLog(tmp_path / "none", 1, False, "none") as log:
        log.epoch({"epoch": 0, "return_mean": 2.0})
    assert sorted(path.name for path in (tmp_path / "none").iterdir()) == ["metrics.csv"]


def test_mlflow_in_a_folder_keeps_one_run(tmp_path, monkeypatch):
    pytest.importorskip("mlflow", reason="MLflow is not installed (requirements-extras.lock)")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run_twice(tmp_path, "mlflow")
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=(tmp_path / "mlruns").as_uri())
    known = json.loads((tmp_path / "tracker.json").read_text())
    (run,) = client.search_runs([client.get_experiment_by_name("mbrl-hdp").experiment_id])
    assert run.info.run_id == known["mlflow"]
    assert run.data.params["seed"] == "3"
    assert run.data.params["fit.schedules.0.name"] == "plain"
    curve = {point.step: point.value for point in client.get_metric_history(run.info.run_id, "return_mean")}
    assert curve == {0: 10.0, 1: 11.0, 2: 12.0}


def test_wandb_offline_keeps_one_identity(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="W&B is not installed (requirements-extras.lock)")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run_twice(tmp_path, "wandb")
    known = json.loads((tmp_path / "tracker.json").read_text())["wandb"]
    files = list((tmp_path / "wandb").glob(f"offline-run-*/run-{known}.wandb"))
    assert len(files) == 2  # one a process; `wandb sync` joins them by their identity
    # W&B's own process writes the file, and may still do so when the run has ended.
    until = time.monotonic() + 60.0
    while b"return_mean" not in files[0].read_bytes() and time.monotonic() < until:
        time.sleep(0.2)
    assert b"return_mean" in files[0].read_bytes()


def test_a_tracker_that_fails_is_left_out_with_one_warning(caplog):
    calls = []

    class Fails:
        def log(self, row):
            calls.append(row)
            raise ConnectionError("nobody there")

        def close(self):
            calls.append("closed")

    tracker = GuardedTracker("mlflow", Fails)
    with caplog.at_level("WARNING", "mbrl_hdp"):
        tracker.log({"epoch": 0})
        tracker.log({"epoch": 1})
        tracker.close()
    assert calls == [{"epoch": 0}]
    assert caplog.messages == ["tracker=mlflow failed and is left out from here on: ConnectionError: nobody there"]


def test_a_tracker_that_is_not_installed_is_refused_before_any_work(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"tracker=wandb needs.*requirements-extras\.lock"):
        check_tracker("wandb")
    check_tracker("tensorboard")
