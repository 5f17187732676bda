"""Sweeps that are run again: finished jobs are skipped, others go on from their checkpoint, on every launcher."""

import json
import shutil
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from benchmarks.run_differences import differences
from mbrl_hdp.cli import main
from mbrl_hdp.errors import ConfigError, StepError
from mbrl_hdp.experiments import app, loop
from mbrl_hdp.experiments.jobs import SweepJob, check_jobs, plan_sweep
from mbrl_hdp.experiments.sweep import Sweep, mark_failed, mark_finished, prepare_launcher
from mbrl_hdp.hooks import load_registry

SMALL = [
    *("profile=smoke", "agent=ni_sac", "max_contexts=3", "env.kwargs.horizon=12", "budget.num_epochs=2"),
    *("budget.warm_episodes=3", "budget.eval_episodes=1", "budget.final_eval_episodes=2"),
]


def sweep(folder, *words):
    """Run the sweep; return the exit code and the states of its jobs."""
    found = []
    code = app.run_app(["-m", "seed=0,1", *SMALL, f"hydra.sweep.dir={folder}", *words], show=found.extend)
    return code, [job.state for job in found]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Return the folder of a sweep whose second job failed after its first checkpoint, and that job in one go."""
    folder = tmp_path_factory.mktemp("sweeps")
    assert main(["train", "seed=1", *SMALL, "--no-report", f"hydra.run.dir={folder / 'whole'}"]) == 0
    real = loop.collect_episodes

    def fails(run, epoch, log):
        if run.config.seed == 1 and epoch == 1:
            raise StepError("the plant is on fire")
        return real(run, epoch, log)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "collect_episodes", fails)
        assert sweep(folder / "failed") == (1, ["finished now", "failed"])
    return folder / "failed", folder / "whole"


def test_a_failed_job_is_listed_with_its_log_and_the_others_are_finished(folders, tmp_path, capsys, monkeypatch):
    failed = shutil.copytree(folders[0], tmp_path / "sweep")
    monkeypatch.setattr(loop, "collect_episodes", lambda *_: 1 / 0)
    assert main(["train", "-m", "seed=0,1", *SMALL, "--no-report", f"hydra.sweep.dir={failed}"]) == 1
    printed = capsys.readouterr()
    assert "finished before" in printed.out
    assert f"job 1 failed: ZeroDivisionError: division by zero; see {failed / '1' / 'app.log'}" in printed.err
    assert f"hydra.sweep.dir='{failed}'" in printed.err
    log = (failed / "1" / "app.log").read_text()
    assert "the plant is on fire" in log
    assert "Traceback" in log


def test_run_again_it_goes_on_and_equals_a_run_in_one_go_then_nothing_is_run(folders, tmp_path, monkeypatch):
    folder = shutil.copytree(folders[0], tmp_path / "sweep")
    assert sweep(folder) == (0, ["finished before", "resumed"])
    assert differences(folders[1], folder / "1") == []
    history = [json.loads(line) for line in (folder / "1" / "history.jsonl").read_text().splitlines()]
    assert [line["checkpoint_epoch"] for line in history] == [0, 1]
    monkeypatch.setattr(loop, "train", lambda *_, **__: pytest.fail("a finished job was run"))
    assert sweep(folder) == (0, ["finished before", "finished before"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launcher", "words"),
    [("joblib", ["hydra.launcher.n_jobs=2"]), ("submitit_local", ["hydra.launcher.timeout_min=9"])],
)
def test_launchers_skip_and_resume(folders, tmp_path, monkeypatch, launcher, words):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(folders[0], tmp_path / "sweep")
    assert sweep("sweep", f"hydra/launcher={launcher}", *words) == (0, ["finished before", "resumed"])
    assert differences(folders[1], tmp_path / "sweep" / "1") == []
    assert Path.cwd() == tmp_path


def test_states_are_read_from_the_folders(tmp_path):
    names = ["finished", "failed", "interrupted", "empty"]
    folders = [tmp_path / name for name in names]
    jobs = [
        SweepJob(["env=drone", f"seed={seed}", f"max_contexts={size}"], OmegaConf.create())
        for seed in (4, 5)
        for size in (2, 3)
    ]
    before = Sweep("hydra.sweep.dir=x", jobs, folders)
    assert [job.state for job in before.outcomes()] == ["not started"] * 4
    assert [job.words for job in before.outcomes()] == [
        f"seed={seed} max_contexts={size}" for seed in (4, 5) for size in (2, 3)
    ]
    for folder in folders[:3]:
        folder.mkdir()
        (folder / "config.yaml").touch()
    mark_finished(folders[0], 7.5)
    mark_failed(folders[1], ValueError("two\nlines"))
    found = before.outcomes()
    assert [job.state for job in found] == ["finished now", "failed", "interrupted", "not started"]
    assert found[0].return_mean == 7.5
    assert found[1].error == "ValueError: two lines"
    after = Sweep("hydra.sweep.dir=x", jobs, folders)
    assert after.outcomes()[0].state == "finished before"


def test_the_folder_of_a_sweep_is_absolute_and_its_time_is_fixed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["seed=0,1", "hydra.sweep.dir='it\\'s here/${env.name}'", "hydra.sweep.subdir=job_${seed}"]
    plan = plan_sweep(words, check_jobs(words, load_registry()))
    assert plan.overrides[:2] == ["seed=0,1", "hydra.sweep.subdir=job_${seed}"]
    assert plan.folders == [tmp_path / "it's here" / "cartpole_hard" / f"job_{seed}" for seed in (0, 1)]
    plain = plan_sweep([], [SweepJob([], OmegaConf.create())])
    assert plain.folders[0].parent.parent == tmp_path / "multirun"
    assert plain.overrides == [f"hydra.sweep.dir='{plain.folders[0].parent}'"]


def test_a_launcher_that_is_not_installed_is_named_with_its_remedy(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"hydra/launcher=ray needs.*requirements-ray\.lock"):
        prepare_launcher(["seed=0", "hydra/launcher=ray"])
    prepare_launcher(["hydra/launcher=basic"])
