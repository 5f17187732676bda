"""Run directories: data that runs no code, one run each, one process at a time, damage that is named."""

import json
import shutil
import subprocess
import sys

import pytest
import yaml

from mbrl_hdp.cli import main
from mbrl_hdp.errors import CheckpointError, ConfigError
from mbrl_hdp.experiments.checkpoint import latest_snapshot
from mbrl_hdp.experiments.run_folder import check_links, check_trust, first_difference, read_config
from mbrl_hdp.experiments.run_lock import LOCK, run_lock
from mbrl_hdp.experiments.runs import evaluate_run, load_run

SMALL = [
    *("profile=smoke", "max_contexts=3", "env.kwargs.horizon=12", "dynamics.hidden_sizes=[16]", "planner.horizon=3"),
    *("budget.num_epochs=2", "budget.warm_episodes=4", "budget.eval_episodes=1", "budget.final_eval_episodes=1"),
]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    assert main(["train", *SMALL, "agent=ni_sac", f"hydra.run.dir={folder}"]) == 0
    return folder


@pytest.fixture
def run(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


def rewrite(run, **changed):
    path = run / "config.yaml"
    words = yaml.safe_load(path.read_text())
    for key, value in changed.items():
        node = words
        *parents, leaf = key.split("__")
        for parent in parents:
            node = node[parent]
        node[leaf] = value
    path.write_text(yaml.safe_dump(words))
    return words


def test_a_finished_run_has_a_page_and_a_history(finished):
    assert "return" in (finished / "report.html").read_text()
    (line,) = (finished / "history.jsonl").read_text().splitlines()
    assert json.loads(line)["epochs_done"] == 0


class TestTrust:
    @pytest.mark.parametrize(
        ("changed", "named"),
        [
            ({"env__reward": "evil:f"}, r"evil \(env\.reward\)"),
            ({"env__termination": "evil.more:f"}, r"evil\.more \(env\.termination\)"),
            ({"env__id": "evil:X-v0"}, r"evil \(env\.id\)"),
            ({"planner": {"name": "custom", "optimizer": "evil.X"}}, r"evil \(planner\.optimizer\)"),
            ({"planner": {"name": "custom", "optimizer": "mbrl.planning.trajectory_opt.np.load"}}, "trajectory_opt"),
        ],
    )
    def test_modules_are_named_before_they_are_imported(self, run, changed, named):
        rewrite(run, **changed)
        with pytest.raises(ConfigError, match=f"would import code: .*{named}.*--trust .in Python: is_trusted=True"):
            load_run(run)
        assert "evil" not in sys.modules

    def test_trust_does_not_find_modules_inside_the_run(self, run, monkeypatch):
        (run / "evil_inside.py").write_text("raise SystemExit('ran')")
        rewrite(run, env__reward="evil_inside:f")
        monkeypatch.chdir(run)
        monkeypatch.syspath_prepend(str(run))
        with pytest.raises(ConfigError, match=r"No module named 'evil_inside'"):
            load_run(run, is_trusted=True)

    def test_known_optimisers_and_rewards_need_no_trust(self, tmp_path):
        words = {
            "env": {"id": "Pendulum-v1", "reward": "learned"},
            "planner": {"optimizer": "mbrl.planning.CEMOptimizer"},
        }
        check_trust(words, tmp_path, is_trusted=False)

    @pytest.mark.parametrize(
        ("changed", "message"),
        [
            ({"env__name": "${oc.env:HOME}"}, r"env\.name holds an interpolation"),
            ({"env__kwargs": {"x": {"_target_": "os.system"}}}, r"env\.kwargs\.x\._target_ would call code"),
            ({"prior__name": "../../x"}, r"prior\.name='../../x' is unknown; known: dirichlet, hdp, mle"),
        ],
    )
    def test_settings_are_values(self, run, changed, message):
        rewrite(run, **changed)
        with pytest.raises((CheckpointError, ConfigError), match=message):
            load_run(run)

    @pytest.mark.parametrize("name", ["final", "tensorboard", "checkpoints", "metrics.csv"])
    def test_links_that_leave_the_run_are_refused(self, run, tmp_path, name):
        (run / name).rename(tmp_path / "outside")
        (run / name).symlink_to(tmp_path / "outside")
        with pytest.raises(CheckpointError, match=f"{name} is a link that leaves"):
            load_run(run)

    def test_links_within_the_run_are_fine(self, run):
        (run / "latest").symlink_to(run / "checkpoints" / "epoch_00002")
        check_links(run)

    @pytest.mark.parametrize("content", ["", "hello", "[1, 2]", "env: 3", "a: [1", "env: {}\n"])
    def test_config_files_of_another_kind_are_named(self, run, content, capsys):
        (run / "config.yaml").write_text(content)
        for words in (["evaluate", str(run)], ["train", f"resume={run}"]):
            assert main(words) == 2
            line = capsys.readouterr().err
            assert "config.yaml" in line
            assert len(line.strip().splitlines()) == 1, line


def test_a_custom_planner_with_arguments_resumes(tmp_path, monkeypatch):
    import mbrl_hdp.experiments.loop as loop

    words = ["planner=custom", "+planner.kwargs.num_iterations=2", "+planner.kwargs.elite_ratio=0.1"]
    words += ["+planner.kwargs.population_size=20", "+planner.kwargs.alpha=0.1"]

    def stops(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(loop, "play_evaluation", stops)
    assert main(["train", *SMALL, *words, "budget.eval_every=9", f"hydra.run.dir={tmp_path / 'run'}"]) == 130
    monkeypatch.undo()
    assert main(["train", f"resume={tmp_path / 'run'}"]) == 0
    assert evaluate_run(tmp_path / "run", 1).returns


class TestOneRun:
    def test_another_seed_is_refused_before_anything_is_written(self, run, capsys):
        before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
        assert main(["train", *SMALL, "agent=ni_sac", "seed=7", f"hydra.run.dir={run}"]) == 2
        line = capsys.readouterr().err
        assert "its seed is 0, not 7" in line
        assert f"resume={run}" in line
        assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before

    def test_the_same_command_goes_on(self, run):
        summary = json.loads((run / "summary.json").read_text())
        assert main(["train", *SMALL, "agent=ni_sac", f"hydra.run.dir={run}"]) == 0
        assert json.loads((run / "summary.json").read_text())["returns"] == summary["returns"]

    def test_differences_are_named_by_their_key(self):
        assert first_difference({"a": {"b": [1, 2]}}, {"a": {"b": [1, 2]}}) is None
        assert first_difference({"a": {"b": [1, 2]}}, {"a": {"b": [1, 3]}}) == "its a.b.1 is 3, not 2"
        assert first_difference({"a": 1}, {"a": 1, "c": 2}) == "its c is 2, not None"

    def test_nothing_is_left_by_a_run_that_cannot_be_built(self, tmp_path, monkeypatch, capsys):
        monkeypatch.chdir(tmp_path)
        for words, named in (
            (["planner.num_elites=500"], "planner.num_elites=500"),
            (["planner=custom", "planner.optimizer=nope.X"], "planner.optimizer='nope.X'"),
            (["env.kwargs.horizon=1000000000000"], "horizon"),
        ):
            assert main(["train", *words]) == 2
            assert named in capsys.readouterr().err
        assert list(tmp_path.iterdir()) == []


HOLDER = """
import sys
from pathlib import Path
from mbrl_hdp.experiments.run_lock import run_lock
with run_lock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


class TestLock:
    def test_two_processes_do_not_work_on_one_run(self, tmp_path):
        command = [sys.executable, "-c", HOLDER, str(tmp_path)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
            assert other.stdout.readline() == "held\n"
            with (
                pytest.raises(CheckpointError, match=f"in use by another process \\({other.pid}\\)"),
                run_lock(tmp_path),
            ):
                pass
            other.kill()
            other.wait()
        with run_lock(tmp_path):  # the other one is dead: its file is no lock
            pass
        assert list(tmp_path.iterdir()) == []

    def test_the_lock_of_a_dead_process_is_none(self, tmp_path):
        (tmp_path / LOCK).write_text("1234567\n")
        with run_lock(tmp_path):
            assert (tmp_path / LOCK).is_file()


class TestCheckpoints:
    def test_copies_are_no_checkpoints(self, run):
        for name in ("epoch_00002.bak", "epoch_00003 (copy)", "epoch_"):
            shutil.copytree(run / "checkpoints" / "epoch_00001", run / "checkpoints" / name)
        assert load_run(run).num_episodes == 0  # `load_run` restores agent and data only
        assert read_config(run)["seed"] == 0

    @pytest.mark.parametrize("name", ["agent.safetensors", "data.npz", "run.json"])
    def test_the_newest_good_checkpoint_is_offered(self, run, name):
        shutil.copy2(run / "checkpoints" / "epoch_00001" / name, run / "checkpoints" / "epoch_00002" / name)
        with pytest.raises(CheckpointError, match=rf"{name} is damaged or belongs.*go on from epoch_00001"):
            load_run(run)

    def test_a_checkpoint_under_another_name_is_refused(self, run):
        shutil.copytree(run / "checkpoints" / "epoch_00002", run / "checkpoints" / "epoch_00009")
        with pytest.raises(CheckpointError, match="that of epoch_00002 under another name"):
            load_run(run)

    def test_a_changed_configuration_is_refused(self, run):
        rewrite(run, agent__discount=0.5)
        with pytest.raises(CheckpointError, match="another configuration"):
            load_run(run)

    def test_no_checkpoint_means_a_new_run(self, tmp_path):
        assert latest_snapshot(tmp_path) is None
