"""Small frictions of daily use that must not come back."""

import dataclasses
import importlib.util
import io
import json
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control import PendulumEnv
from rich.console import Console

import mbrl_hdp
from mbrl_hdp.cli import main
from mbrl_hdp.data import minari_files, parquet_files
from mbrl_hdp.data.logs import is_frame
from mbrl_hdp.doctor import Finding
from mbrl_hdp.errors import ConfigError, MbrlHdpError, PluginError
from mbrl_hdp.experiments import metrics, model_update, runs
from mbrl_hdp.experiments.metrics import RunLog
from mbrl_hdp.experiments.reproduce import ReproduceOptions, reproduce
from mbrl_hdp.experiments.settings_help import completions, settings_of
from mbrl_hdp.experiments.studies import load_study, study_names
from mbrl_hdp.experiments.trackers import check_tracker
from mbrl_hdp.hooks import load_registry
from mbrl_hdp.inference import progress
from mbrl_hdp.inference.progress import POLISH, FitProgress, PlainLines, search_progress
from mbrl_hdp.inference.saving import load
from mbrl_hdp.inference.search import stages
from mbrl_hdp.types import TaskSpec


def test_only_our_own_names_are_shown():
    names = set(dir(mbrl_hdp))
    assert {"fit", "Trajectories", "load", "collect"} <= names
    assert not {"Any", "importlib", "annotations", "TYPE_CHECKING", "lazy_names", "register_envs"} & names


class TestHelp:
    @pytest.mark.parametrize("command", ["train", "fit"])
    def test_every_setting_with_its_help_and_choices(self, command, capsys):
        assert main([command, "--help"]) == 0
        text = capsys.readouterr().out
        assert "prior.row_concentration=100" in text
        assert "upper bound K on the number of contexts (at least 1, at most 1000)" in " ".join(text.split())
        assert "(auto | cpu | cuda)" in text or "auto |" in text
        for line in settings_of("main" if command == "train" else "fit"):
            assert f"  {line.key}=" in text

    def test_settings_of_fit_have_help(self):
        lines = settings_of("fit")
        assert [line.key for line in lines if not line.help] == []
        assert {"obs", "time", "episode", "ignore", "resample", "overwrite", "out"} <= {line.key for line in lines}

    def test_completion_of_fit(self, capsys, monkeypatch):
        assert "max_contexts=" in completions("fit", "max_")
        assert completions("fit", "gaps=m") == ["gaps=missing"]
        assert "prior=hdp" in completions("fit", "prior=")
        monkeypatch.setenv("COMP_LINE", "mbrl-hdp fit data.csv dyna")
        assert main(["-sc", "query=bash"]) == 0
        assert "dynamics=" in capsys.readouterr().out.split()


class TestProgress:
    def test_plain_lines_where_there_is_no_terminal(self, capsys):
        with FitProgress(1, 10, True, Console(file=io.StringIO())) as bar:
            report = bar.start_run("pooled", 10)
            report(0, 1.5, 4)
            bar.end_run(2, 10, False)
        lines = capsys.readouterr().out.splitlines()
        assert lines[0] == "run 1/1 (pooled)  loss    1.500  contexts open 4  step 1/10"
        assert lines[1:] == [
            "run 1/1 (pooled)  contexts found 2",
            "last checks: halves of the episodes, and fewer contexts",
        ]

    def test_the_polish_is_not_counted_as_a_run(self, capsys):
        with FitProgress(10, 100, True, Console(file=io.StringIO())) as bar:
            bar.start_run("search", 10)
            bar.end_run(2, 10, False)
            bar.start_run(POLISH, 10)
            bar.end_run(2, 10, False)
        assert capsys.readouterr().out.splitlines()[:2] == [
            "run 1/10 (search)  contexts found 2",
            "polish  contexts found 2",
        ]

    def test_who_asks_is_told_every_step_of_a_fit(self, capsys):
        told = []
        with FitProgress(3, 100, False, tell=told.append) as bar:
            report = bar.start_run("search", 10)
            report(3, 1.5, 4)
        assert told == ["run 1/3 (search) step 4/10", "last checks"]
        assert capsys.readouterr().out == ""

    def test_the_stages_of_a_search_are_shown_when_they_begin_and_every_ten_seconds(self, capsys, monkeypatch):
        clock = SimpleNamespace(now=0.0)
        monkeypatch.setattr(progress.time, "monotonic", lambda: clock.now)
        with search_progress("search", True, Console(file=io.StringIO())):
            stages.begin("choosing features for one context")
            clock.now = 4.0
            stages.sign_of_life()
            clock.now = 11.0
            stages.sign_of_life()
            stages.begin("1 context found; trying a division of context 0")
        stages.begin("nobody listens any more")
        assert capsys.readouterr().out.splitlines() == [
            "search: choosing features for one context  0 s",
            "search: choosing features for one context  11 s",
            "search: 1 context found; trying a division of context 0  11 s",
        ]

    def test_who_asks_is_told_every_stage_of_a_search(self, capsys):
        told = []
        with search_progress("last checks", told.append):
            stages.begin("choosing features for one context")
            stages.sign_of_life()
        assert told == ["last checks: choosing features for one context"] * 2
        assert capsys.readouterr().out == ""

    def test_a_training_says_which_part_of_learning_is_under_way(self, monkeypatch):
        for name in ("model_parts", "fit_config"):
            monkeypatch.setattr(model_update, name, lambda *_, **__: {})
        monkeypatch.setattr(model_update, "training_data", lambda _: SimpleNamespace(num_episodes=7))
        monkeypatch.setattr(model_update, "calibrate_alarm", lambda _: None)
        monkeypatch.setattr(model_update, "fit", lambda _, progress, **__: progress("run 1/3 (search) step 4/10"))
        run = SimpleNamespace(
            agent=SimpleNamespace(spec=SimpleNamespace(needs_model=True)),
            config=SimpleNamespace(max_contexts=2, seed=0, device="cpu"),
            task=SimpleNamespace(dt=None, angle_columns=()),
            **{"budget": None, "model": None, "registry": None, "use_model": lambda _: None},
        )
        said = []
        assert model_update.update_model(run, 0, SimpleNamespace(says=said.append))
        words = "epoch 0: learning the contexts of 7 episodes"
        assert said == [words, f"{words}, run 1/3 (search) step 4/10"]

    def test_a_line_when_a_part_begins_and_every_ten_seconds(self, capsys, monkeypatch):
        now = 0.0
        monkeypatch.setattr("mbrl_hdp.inference.progress.time.monotonic", lambda: now)
        lines = PlainLines(True, Console(file=io.StringIO()))
        said = [(0, "episode 1/9"), (3, "episode 2/9"), (4, "learning"), (13, "learning"), (15, "learning")]
        for now, words in said:  # noqa: B007
            lines.says(words)
        assert capsys.readouterr().out == "episode 1/9\nlearning\nlearning\n"

    def test_none_where_nobody_asked_or_a_terminal_has_a_bar(self, capsys):
        PlainLines(False, Console(file=io.StringIO())).says("x", is_due=True)
        PlainLines(True, Console(file=io.StringIO(), force_terminal=True)).says("x", is_due=True)
        assert capsys.readouterr().out == ""

    def test_a_run_writes_app_log_and_the_final_phase_has_its_own_bar(self, tmp_path, capsys, caplog):
        with caplog.at_level("INFO", "mbrl_hdp"), RunLog(tmp_path, 2, True) as log:
            log.epoch({"epoch": 0, "return_mean": 12.5, "num_contexts": 2})
            log.epoch({"epoch": 1, "return_mean": 13.5, "num_contexts": 2})
            log.phase(5)
            log.says("final: evaluating 1/5")
            task = log._bar.tasks[0]
            assert (task.completed, task.total) == (1, 5)
        assert "epoch 2/2 done" in capsys.readouterr().out
        assert "return 13.5" in caplog.text
        assert metrics.read_metrics(tmp_path)[1]["return_mean"] == "13.5"


class TestReproduce:
    def test_quick_cells_have_the_seeds_that_were_asked_for(self):
        for name in study_names():
            cells = load_study(name).cells([7], True)
            assert {cell["seed"] for cell in cells} == {7} or (not cells and name == "settings"), name

    def test_sizes_that_no_cell_has_are_refused(self, tmp_path):
        with pytest.raises(ConfigError, match=r"--sizes 4: table1 has no such cell; it has 3, 5"):
            reproduce("table1", ReproduceOptions(is_quick=True, sizes=[4], out=tmp_path))
        assert list(tmp_path.iterdir()) == []

    def test_list(self, capsys):
        assert main(["reproduce", "--list"]) == 0
        text = capsys.readouterr().out
        assert all(name in text for name in study_names())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--seed", "-1"], "--seed must be at least 0"),
        (["--video", "episode.mp4"], "ends in .gif"),
        (["--video", "nowhere/episode.gif"], "no folder nowhere"),
    ],
)
def test_evaluate_refuses_before_any_work(words, message, capsys, tmp_path):
    assert main(["evaluate", str(tmp_path), *words]) == 2
    assert message in capsys.readouterr().err


def test_the_doctor_says_that_nothing_is_missing():
    from mbrl_hdp.doctor import health

    fine = [Finding("ok", "a", "1"), Finding("ok", "b", "1"), Finding("optional", "c", "not installed")]
    assert health(fine) == "Nothing is missing: 2 checks are fine, 1 optional part is not installed"
    assert health([*fine, Finding("missing", "d", "")]).startswith("1 part is missing: 2 checks are fine")


def test_a_model_of_a_plugin_that_is_gone_names_its_package(tmp_path, monkeypatch):
    from mbrl_hdp.inference import saving
    from mbrl_hdp.inference.fit import build_model
    from mbrl_hdp.inference.model import ModelParts, Part

    registry = load_registry()
    parts = ModelParts(
        *(
            Part(name, registry.get(kind, name).spec.config())
            for kind, name in (("prior", "hdp"), ("dynamics", "linear"), ("distillation", "stationary"))
        )
    )
    model = build_model(parts, TaskSpec(max_contexts=2, obs_dim=1, act_dim=0, seed=0), registry)
    monkeypatch.setattr(saving, "_distributions", lambda: {"mbrl_hdp_priors": ["my-priors"]})
    model.save(tmp_path)
    assert json.loads((tmp_path / "model.json").read_text())["parts"]["prior"]["package"] == "my-priors"
    with pytest.raises(PluginError, match=r"needs prior 'hdp' of the package my-priors, .*pip install my-priors"):
        load(tmp_path, load_registry(disable=["priors"]))
    assert load(tmp_path).num_contexts == model.num_contexts


def test_a_learned_reward_that_never_saw_a_reward_says_so(tmp_path, capsys):
    from mbrl_hdp.experiments.loop import update_reward

    calls = []

    class Reward:
        def fit(self, *_):
            calls.append(1)
            return 0.0

    @dataclasses.dataclass
    class OneRun:
        """What `update_reward` reads of a run."""

        data: mbrl_hdp.Trajectories
        learned_reward = Reward()
        model = object()
        config = type("C", (), {"seed": 0})
        budget = type("B", (), {"warm_model_steps": 1, "model_steps": 1})

    obs = np.zeros((2, 4, 1))
    flat, varied = (mbrl_hdp.Trajectories(obs, reward=np.array(r)) for r in ([[0.0] * 3] * 2, [[0.0, 1.0, 0.0]] * 2))
    with RunLog(tmp_path, 1, True) as log:
        update_reward(OneRun(varied), 0, log)
        assert "every reward so far" not in capsys.readouterr().err
        update_reward(OneRun(flat), 0, log)
    assert "warning: epoch 0: every reward so far is 0, so env.reward=learned has learned nothing" in " ".join(
        capsys.readouterr().err.split()
    )
    assert len(calls) == 2


def _without_modes():
    return PendulumEnv()


def _played(env_id, modes):
    env = SimpleNamespace(metadata={"render_modes": modes})
    config = SimpleNamespace(env=SimpleNamespace(id=env_id, kwargs={}))
    return SimpleNamespace(task=SimpleNamespace(env=env), config=config)


def test_a_window_of_an_environment_that_draws_none_is_refused_with_a_way_out():
    with pytest.raises(ConfigError, match=r"--render: Own-v0 cannot draw in a window; --video FILE\.gif"):
        runs._shown_env(_played("Own-v0", ["rgb_array"]))
    gymnasium.register("NoWindow-v0", _without_modes)
    try:
        with pytest.raises(ConfigError, match=r"--render: NoWindow-v0 opens no window .*--video FILE\.gif"):
            runs._shown_env(_played("NoWindow-v0", ["human"]))
    finally:
        del gymnasium.registry["NoWindow-v0"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (parquet_files.import_pyarrow, "pyarrow: pip install pyarrow$"),
        (minari_files._import_minari, r"--no-deps -r requirements-extras\.lock"),
        (lambda: check_tracker("wandb"), r"tracker=wandb .*--no-deps -r requirements-extras\.lock"),
    ],
)
def test_a_missing_package_comes_with_a_command_that_works_beside_the_overridden_pins(call, message, monkeypatch):
    def absent(name, *_):
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", absent)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(MbrlHdpError, match=message):
        call()


def test_a_lazy_table_is_recognised_without_being_asked_for_its_columns(recwarn):
    polars = pytest.importorskip("polars", reason="polars is an extra")
    assert is_frame(polars.LazyFrame({"obs_a": [0.0, 1.0]}))
    assert not [warning for warning in recwarn if "LazyFrame" in str(warning.message)]
