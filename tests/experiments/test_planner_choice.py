"""Presets of planners, the choice of settings within a run, and the environment of reported evaluations."""

import dataclasses
import json
import sys

import pytest

from mbrl_hdp.errors import ConfigError
from mbrl_hdp.experiments.config import check_config, load_config
from mbrl_hdp.experiments.loop import reported, start_run, train
from mbrl_hdp.experiments.runs import evaluate_run, load_run, tune_run
from mbrl_hdp.experiments.tasks import make_task
from mbrl_hdp.hooks import load_registry

SMALL = ["profile=smoke", "max_contexts=2", "env.kwargs.horizon=8", "dynamics.hidden_sizes=[8]"]


def typed(*overrides):
    return check_config(load_config(list(overrides)))


def test_every_task_has_its_planner_and_the_command_line_wins():
    drone, crossing, pole = (
        typed(f"env={name}").planner for name in ("drone", "intersection_vector", "cartpole_soft01")
    )
    assert (drone.name, drone.horizon, drone.context_mode, drone.tune) == ("cem", 4, "held", "never")
    assert (crossing.horizon, crossing.context_mode, crossing.tune) == (7, "paths", "never")
    assert (pole.horizon, pole.tune) == (10, "never")
    assert typed("env=drone", "planner.horizon=9").planner.horizon == 9
    other = typed("env=drone", "planner=icem").planner
    assert (other.name, other.tune) == ("icem", "auto")
    assert typed("env=drone", "agent=ni_sac", "~planner").planner is None
    assert typed("env=gymnasium", "env.id=Pendulum-v1").planner.tune == "auto"


def write_config(folder, config):
    from omegaconf import OmegaConf

    folder.mkdir()
    (folder / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(dataclasses.asdict(config))))


def test_a_run_chooses_its_planner_without_a_real_step_and_remembers(tmp_path):
    config = typed(*SMALL, "planner.tune=auto")
    folder = tmp_path / "run"
    write_config(folder, config)
    train(config, load_registry(), folder, progress=False)
    words = json.loads((folder / "planner_tuning.json").read_text())
    assert json.loads((folder / "summary.json").read_text())["env_steps"] == 8 * 12
    assert len(words["rows"]) >= 10
    assert "| horizon |" in (folder / "planner_tuning.md").read_text()
    run = load_run(folder)
    assert {name: getattr(run.agent.agent.config, name) for name in words["chosen"]} == words["chosen"]
    (folder / "planner_tuning.json").unlink()
    assert "Chosen:" in tune_run(folder)
    chosen = json.loads((folder / "planner_tuning.json").read_text())["chosen"]
    again = load_run(folder)
    assert {name: getattr(again.agent.agent.config, name) for name in chosen} == chosen
    assert len(evaluate_run(folder, 1).returns) == 1


def test_only_planners_are_tuned(tmp_path):
    config = typed(*SMALL, "agent=c_sac", "budget.num_epochs=1")
    write_config(tmp_path / "run", config)
    train(config, load_registry(), tmp_path / "run", progress=False)
    with pytest.raises(ConfigError, match="does not plan"):
        tune_run(tmp_path / "run")


def test_reported_evaluations_run_on_the_real_engine_where_it_is_installed(monkeypatch):
    config = typed("env=drone_vector", "agent=ni_sac", "profile=smoke")
    run = start_run(config, load_registry())
    training = run.task.env
    with reported(run):
        assert run.task.env.unwrapped.backend == "pybullet"
    assert run.task.env is training
    assert training.unwrapped.backend == "vector"
    assert run.task.report_kwargs == {"backend": "pybullet"}
    assert set(run.task.episode_scores(run.task.env.reset(seed=0)[0][None].repeat(3, 0))) >= {"tilt_mean", "tilt_max"}
    run.task.close()
    monkeypatch.setitem(sys.modules, "pybullet", None)
    without = make_task(config.env, 2, 0)
    assert without.report_env is None
    assert without.report_kwargs == {}
