"""A user's own environment and functions: found, tried before any work, learned, resumed."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mbrl_hdp.control.rewards import LearnedReward
from mbrl_hdp.errors import CheckpointError, ConfigError
from mbrl_hdp.experiments.config import check_config, load_config
from mbrl_hdp.experiments.loop import start_run, train
from mbrl_hdp.experiments.runs import evaluate_run
from mbrl_hdp.hooks import load_registry

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "own_env"
PENDULUM = ["env=gymnasium", "env.id=Pendulum-v1", "+env.kwargs.max_episode_steps=8"]
SMALL = ["profile=smoke", "max_contexts=2", "dynamics=delta_mlp", "dynamics.hidden_sizes=[8]", "planner.horizon=2"]

FUNCTIONS = """
import numpy as np
import torch

def good(act, next_obs):
    return next_obs[:, :1] - 0.1 * act.square()

def ends(act, next_obs):
    return next_obs[:, :1] > 0.9

def one_argument(obs):
    return obs

def flat(act, next_obs):
    return next_obs[:, 0]

def array(act, next_obs):
    return np.zeros((len(act), 1))

def not_a_number(act, next_obs):
    return torch.log(-next_obs[:, 2:].abs() - 1)

def whole(act, next_obs):
    return torch.ones(len(act), 1, dtype=torch.long)

def by_context(act, next_obs, slot):
    return act

by_context.uses_context = True

NUMBER = 3
"""


def typed(*overrides):
    return check_config(load_config([*SMALL, *PENDULUM, *overrides]))


def begin(*overrides):
    return start_run(typed(*overrides), load_registry())


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A directory with a module of the user's; not on the path, as for an installed command."""
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_functions.py").write_text(FUNCTIONS)
    (tmp_path / "broken_module.py").write_text("import no_such_package_anywhere\n")
    yield tmp_path
    sys.modules.pop("own_functions", None)


def test_functions_come_from_the_current_directory(here):
    run = begin("env.reward=own_functions:good", "env.termination=own_functions:ends")
    act, next_obs = torch.tensor([[2.0]]), torch.tensor([[0.95, 0.1, 0.0]])
    assert float(run.task.reward_fn(act, next_obs)) == pytest.approx(0.95 - 0.4)
    assert run.task.termination_fn(act, next_obs).tolist() == [[True]]
    assert str(here) in sys.path


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("env.reward=own_functions", ["env.reward", "module:function"]),
        ("env.reward=learnt", ["env.reward", "module:function"]),
        ("env.reward=no_such_module_here:good", ["env.reward", "no_such_module_here", "current directory"]),
        ("env.reward=broken_module:good", ["env.reward", "no_such_package_anywhere"]),
        ("env.reward=own_functions:god", ["env.reward", "did you mean 'good'"]),
        ("env.reward=own_functions:NUMBER", ["env.reward", "no function 'NUMBER'"]),
        ("env.reward=own_functions:one_argument", ["env.reward", "TypeError", "act [7, 1] and next_obs [7, 3]"]),
        ("env.reward=own_functions:flat", ["env.reward", "returns shape [7]", "[7, 1]"]),
        ("env.reward=own_functions:array", ["env.reward", "ndarray", "torch tensor"]),
        ("env.reward=own_functions:not_a_number", ["env.reward", "returns nan", "next_obs ["]),
        ("env.reward=own_functions:whole", ["env.reward", "int64"]),
        ("env.reward=own_functions:by_context", ["uses_context", "env.reward=learned"]),
        ("env.termination=own_functions:good", ["env.termination", "torch.bool"]),
        ("env.termination=own_functions:flat", ["env.termination", "shape"]),
    ],
)
def test_functions_that_do_not_work_are_refused_before_the_first_episode(here, setting, words):
    more = [] if "reward" in setting else ["env.reward=own_functions:good"]
    with pytest.raises(ConfigError) as error:
        begin(setting, *more)
    for word in words:
        assert word in str(error.value)


def test_planners_need_a_reward_and_policies_do_not():
    with pytest.raises(ConfigError, match=r"env\.reward=learned"):
        begin("agent=c_cem")
    assert begin("agent=ni_sac").task.reward_fn is None


def test_environments_by_module_with_arguments(monkeypatch):
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    monkeypatch.chdir(EXAMPLE)
    own = ["env.id=switching_pendulum:SwitchingPendulum-v0", "+env.kwargs.mass=0.25", "env.reward=learned"]
    task = begin(*own).task
    assert task.num_contexts == 2
    assert task.env.unwrapped.m == 0.25
    with pytest.raises(ConfigError, match=r"env\.id.*no_such_arg"):
        begin(*own, "+env.kwargs.no_such_arg=1")
    with pytest.raises(ConfigError, match=r"env\.id.*nowhere_at_all"):
        begin("env.id=nowhere_at_all:SwitchingPendulum-v0")


class Killed(Exception):
    pass


def test_a_resumed_run_with_a_learned_reward_is_the_same_run(tmp_path, monkeypatch):
    import mbrl_hdp.experiments.loop as loop

    config, registry = typed("env.reward=learned", "budget.num_epochs=3"), load_registry()
    whole = train(config, registry, tmp_path / "whole", progress=False)
    real = loop.update_agent

    def dies(run, epoch, *rest):
        if epoch == 2:
            raise Killed
        return real(run, epoch, *rest)

    monkeypatch.setattr(loop, "update_agent", dies)
    with pytest.raises(Killed):
        train(config, registry, tmp_path / "killed", progress=False)
    torch.rand(5)
    monkeypatch.setattr(loop, "update_agent", real)
    assert train(config, registry, tmp_path / "killed", progress=False).returns == whole.returns
    for name in ("agent.safetensors", "data.npz"):
        one, two = ((tmp_path / run / "checkpoints" / "epoch_00003" / name).read_bytes() for run in ("whole", "killed"))
        assert one == two, name
    header = (tmp_path / "whole" / "metrics.csv").read_text().splitlines()[0]
    assert "reward_rmse" in header.split(",")
    saved = (tmp_path / "whole" / "checkpoints" / "epoch_00003" / "agent.safetensors").read_bytes()
    assert b"reward.heads.weights.0" in saved
    wider = typed("env.reward=learned", "budget.num_epochs=3", "max_contexts=3")
    with pytest.raises(CheckpointError, match="another configuration"):
        train(wider, registry, tmp_path / "whole", progress=False)


def test_evaluation_takes_the_reward_from_the_checkpoint(tmp_path):
    from omegaconf import OmegaConf

    overrides = [*SMALL, *PENDULUM, "env.reward=learned", "budget.num_epochs=1"]
    config = load_config(overrides)
    result = train(check_config(config), load_registry(), tmp_path, progress=False)
    OmegaConf.save(config, tmp_path / "config.yaml", resolve=True)
    assert evaluate_run(tmp_path, 2).returns == result.returns


def test_a_learned_reward_has_the_sizes_of_the_run():
    reward = begin("env.reward=learned").task.reward_fn
    assert isinstance(reward, LearnedReward)
    assert reward.max_contexts == 2
    assert reward.heads.weights[0].shape == (3, 64, 4)


def command(*words, cwd):
    """Run the program without the current directory on its path, as the installed command does."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    line = [sys.executable, "-P", "-m", "mbrl_hdp", "train", *SMALL, *words]
    return subprocess.run(line, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300, check=False)


def test_the_command_line_from_the_users_directory(tmp_path):
    own = ["env=gymnasium", "env.id=switching_pendulum:SwitchingPendulum-v0", "+env.kwargs.max_episode_steps=6"]
    folder = f"hydra.run.dir={tmp_path / 'run'}"
    done = command(*own, "env.reward=switching_pendulum:reward", "budget.num_epochs=1", folder, cwd=EXAMPLE)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["num_real_episodes"] == 10


def test_a_wrong_function_is_one_line_on_the_command_line(here, capsys):
    from mbrl_hdp.cli import main

    folder = f"hydra.run.dir={here / 'run'}"
    assert main(["train", *SMALL, *PENDULUM, "env.reward=own_functions:god", folder]) == 2
    said = capsys.readouterr().err
    assert "did you mean 'good'" in said
    assert "Traceback" not in said
    assert not (here / "run" / "checkpoints").exists()


def test_the_example_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "path", [str(EXAMPLE), *sys.path])
    monkeypatch.chdir(EXAMPLE)
    spec = importlib.util.spec_from_file_location("own_env_run", EXAMPLE / "run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    lines = module.main(["--quick", "--seeds", "0", "--out", str(tmp_path)])
    assert len(lines) == 6
    assert lines[2].startswith("| C-CEM | formula |")
    assert capsys.readouterr().out.count("| learned |") == 2
