"""Agents and planners of plugins: trained, resumed, scored and refused as the built-in ones are."""

import csv
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import types
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from mbrl_hdp.cli import main
from mbrl_hdp.control.agent import Agent
from mbrl_hdp.control.baseline import Baseline
from mbrl_hdp.control.state import load_state, pack_state, unpack_state
from mbrl_hdp.errors import CheckpointError, ConfigError, PluginError, StepError
from mbrl_hdp.experiments.config import check_config, load_config
from mbrl_hdp.experiments.loop import evaluate, start_run, train
from mbrl_hdp.experiments.metrics import SilentLog
from mbrl_hdp.hooks import AgentSpec, PluginSpec, hookimpl, load_registry
from mbrl_hdp.hooks.registry import PluginSource, installed_sources
from mbrl_hdp.testing import check_agent, check_baseline
from mbrl_hdp_agents import SacAgentConfig

ROOT = Path(__file__).resolve().parents[2]
SMALL = ["profile=smoke", "max_contexts=3", "env.kwargs.horizon=10", "dynamics.hidden_sizes=[8]", "planner.horizon=2",
         "budget.warm_episodes=4"]  # fmt: skip


@dataclass
class NoConfig:
    strength: float = 1.0


class Still(Baseline):
    """Does nothing, or what a test wants it to do."""

    def __init__(self, config, task):
        self.num = 0

    def act(self, obs, explore=False):
        return np.zeros(1)

    def observe(self, obs, act, reward, next_obs, terminated):
        self.num += 1

    def state_dict(self):
        return {"num": self.num}

    def load_state_dict(self, state):
        self.num = state["num"]


def hook_that_returns(value):
    return lambda: value


def registry_with(*, strict=True, **hooks):
    """Add a made-up plugin to the installed ones; values are what its hooks return."""
    module = types.ModuleType("made_up")
    for name, value in hooks.items():
        setattr(module, f"mbrl_hdp_register_{name}", hookimpl(hook_that_returns(value)))
    return load_registry(sources=[*installed_sources(), PluginSource("mine", "my-package", "1", lambda: module)],
                         strict=strict)  # fmt: skip


def baseline(build, name="still"):
    return registry_with(baselines=[PluginSpec(name, NoConfig, build, "made up")])


def run_with(registry, *words):
    return start_run(check_config(load_config([*SMALL, *words], registry)), registry)


class TestEveryKindOfAgentIsTreatedAlike:
    def test_a_baseline_trains_and_is_scored_by_its_own_labels(self, tmp_path):
        class Counts(Still):
            def end_episode(self):
                return {"steps_seen": float(self.num)}

            def context_labels(self):
                return np.zeros(10, dtype=int)

        registry = baseline(Counts)
        train(check_config(load_config([*SMALL, "agent=still"], registry)), registry, tmp_path, progress=False)
        rows = list(csv.DictReader((tmp_path / "metrics.csv").open()))
        # Four, then two episodes of ten steps an epoch; evaluations are not seen. The mean over an epoch's episodes.
        assert [float(row["steps_seen"]) for row in rows] == [25.0, 55.0, 75.0]
        assert load_state(tmp_path / "final") == {"num": 80}
        summary = json.loads((tmp_path / "summary.json").read_text())
        assert 0.0 < summary["context_accuracy"] <= 1.0
        assert summary["agent"] == "still"

    @pytest.mark.parametrize(("sees", "width"), [("belief", 3), ("truth", 2), ("nothing", 0)])
    def test_what_is_declared_is_appended(self, sees, width, tmp_path):
        seen = []

        class Looks(Agent):
            def __init__(self, config, task):
                assert task.appended_dim == width
                self.epochs = 0

            @property
            def is_ready(self):
                return self.epochs > 0

            def act(self, packed, explore):
                seen.append(packed)
                return np.zeros(1)

            def learn(self, epoch):
                assert (epoch.model is None) == (sees != "belief")
                assert (epoch.appended is None) == (sees == "belief" and self.epochs == 0)
                assert epoch.new.num_episodes == (4 if self.epochs == 0 else 2)
                self.epochs += 1
                return {"epochs": self.epochs}

            def state_dict(self):
                return {"epochs": self.epochs}

            def load_state_dict(self, state, data, model):
                self.epochs = state["epochs"]

        spec = AgentSpec("looks", NoConfig, Looks, "made up", sees=sees, needs_model=sees == "belief")
        registry = registry_with(agents=[spec])
        train(check_config(load_config([*SMALL, "agent=looks"], registry)), registry, tmp_path, progress=False)
        appended = np.array(seen)[:, 4:]
        assert appended.shape[1] == width
        if width:
            np.testing.assert_allclose(appended.sum(1), 1.0, atol=1e-5)
        assert (set(np.unique(appended)) == {0.0, 1.0}) == (sees == "truth")

    def test_deleting_the_agents_removes_their_names_and_nothing_else(self, capsys):
        registry, whole = load_registry(disable=["agents"]), load_registry()
        gone = {"c_cem", "c_sac", "fi_sac", "ni_sac", "mbrl_sac"}
        assert {plugin.spec.name for plugin in whole.all()} - {plugin.spec.name for plugin in registry.all()} == gone
        assert not registry.problems
        with pytest.raises(ConfigError, match="c_cem"):
            load_config(["disable_plugins=[agents]"])
        assert registry.names("planner")
        assert main(["train", "agent=ni_sac", "~planner", "disable_plugins=[planners]", "--cfg", "job"]) == 0
        assert "planner: null" in capsys.readouterr().out
        without = load_registry(disable=["planners"])
        with pytest.raises(ConfigError, match="choose a planner"):
            start_run(check_config(load_config(["profile=smoke", "~planner"], without)), without)

    def test_settings_of_a_plugins_agent_are_checked_before_any_work(self):
        registry = baseline(Still)
        for words, message in (
            (["agent=stil"], "did you mean 'still'"),
            (["agent=still", "agent.strenght=2"], "strength"),
            (["agent=still", "agent.strength=much"], r"agent\.strength"),
        ):
            with pytest.raises(ConfigError, match=message):
                load_config(words, registry)


class TestWhatAPluginRaisesNamesIt:
    @pytest.mark.parametrize("method", ["act", "observe", "reset", "end_episode", "state_dict", "context_labels"])
    def test_in_every_method(self, method, tmp_path):
        def broken(self, *_, **__):
            raise ZeroDivisionError("no such thing")

        registry = baseline(type("Broken", (Still,), {method: broken}))
        config = check_config(load_config([*SMALL, "agent=still"], registry))
        with pytest.raises((PluginError, StepError)) as error:  # in a step, its number is named too
            train(config, registry, tmp_path, progress=False)
        for word in ("'still'", "'mine'", "my-package", "ZeroDivisionError: no such thing", "test_agents.py"):
            assert word in str(error.value)
        assert "\n" not in str(error.value)

    @pytest.mark.parametrize(
        ("what", "message"),
        [
            ({"act": lambda self, obs, explore=False: np.zeros(2)}, "1 finite numbers"),
            ({"act": lambda self, obs, explore=False: np.array([np.nan])}, "1 finite numbers"),
            ({"context_labels": lambda self: np.array([0, 1])}, "10 numbers from 0"),
            ({"end_episode": lambda self: {"x": "many"}}, r"failed in end_episode\(\)"),
        ],
    )
    def test_and_so_does_what_it_returns(self, what, message, tmp_path):
        registry = baseline(type("Wrong", (Still,), what))
        config = check_config(load_config([*SMALL, "agent=still"], registry))
        with pytest.raises((PluginError, StepError), match=message) as error:
            train(config, registry, tmp_path, progress=False)
        assert "my-package" in str(error.value)

    def test_something_that_is_no_agent(self):
        with pytest.raises(PluginError, match=r"my-package.*must return a Baseline, got dict"):
            run_with(baseline(lambda config, task: {}), "agent=still")

    def test_a_state_that_cannot_be_saved(self, tmp_path):
        registry = baseline(type("Keeps", (Still,), {"state_dict": lambda self: {"me": self}}))
        config = check_config(load_config([*SMALL, "agent=still"], registry))
        with pytest.raises(CheckpointError, match=r"'me' of type Keeps cannot be saved; return tensors"):
            train(config, registry, tmp_path, progress=False)


@pytest.mark.parametrize(
    ("hooks", "message"),
    [
        ({"agents": [PluginSpec("a", NoConfig, Still, "x")]}, "list of AgentSpec"),
        ({"agents": [AgentSpec("a", NoConfig, Still, "x", budget="mpcc")]}, "did you mean 'mpc'"),
        ({"agents": [AgentSpec("a", NoConfig, Still, "x", sees="beleif")]}, "did you mean 'belief'"),
        ({"agents": [AgentSpec("a", NoConfig, Still, "x", sees="belief")]}, "needs_model=True"),
        ({"baselines": [AgentSpec("a", NoConfig, Still, "x", sees="truth")]}, "mbrl_hdp_register_agents"),
        ({"baselines": [PluginSpec("c_sac", NoConfig, Still, "x")]}, "neither is used"),
    ],
)
def test_wrong_declarations_are_problems_of_their_package(hooks, message):
    (problem,) = registry_with(strict=False, **hooks).problems
    assert message in str(problem)
    assert "my-package" in str(problem)


def test_states_come_back_as_they_were():
    state = {
        "tensor": torch.arange(6.0).view(2, 3).T,
        "array": np.array([[1.5, -2.0]]),
        "flags": np.array([True, False]),
        "number": 0.1,
        "count": 2**70,
        "none": None,
        "generator": np.random.default_rng(3).bit_generator.state,
    }
    found = unpack_state(pack_state(state))
    assert torch.equal(found.pop("tensor"), state.pop("tensor"))
    for name in ("array", "flags"):
        assert found[name].dtype == state[name].dtype
        np.testing.assert_array_equal(found.pop(name), state.pop(name))
    assert found == state
    for wrong in ((1, 2), {1: 2}, np.array(["a"]), object()):
        with pytest.raises(CheckpointError, match="'x'"):
            pack_state({"x": wrong})


def test_episodes_are_stored_once(tmp_path):
    """A checkpoint of C-SAC has the observations in data.npz and beliefs alone in agent.safetensors."""
    registry = load_registry()
    config = check_config(load_config([*SMALL, "agent=c_sac", "agent.hidden_sizes=[4]"], registry))
    train(config, registry, tmp_path, progress=False)
    from safetensors.torch import load_file

    stored = load_file(sorted((tmp_path / "checkpoints").iterdir())[-1] / "agent.safetensors")
    rows = {name: tuple(value.shape) for name, value in stored.items() if name.startswith("tensor.replay.")}
    assert rows.pop("tensor.replay.beliefs") == (8 * 11, 3)
    assert set(rows) == {"tensor.replay.generator"}


def test_mbrl_libs_sac_is_used_as_it_is():
    """Its updates are those of mbrl-lib's SAC alone, on the same batches from the same generator."""
    from mbrl.third_party.pytorch_sac_pranz24 import SAC

    from mbrl_hdp.control.agent import Epoch

    run = run_with(load_registry(), "agent=mbrl_sac", "agent.hidden_size=8", "agent.batch_size=5")
    agent = run.agent.agent
    assert type(agent.sac) is SAC
    assert type(agent.agent).__module__ == "mbrl.planning.sac_wrapper"
    rng = np.random.default_rng(0)
    from mbrl_hdp.data.trajectories import Trajectories

    data = Trajectories(rng.normal(size=(2, 7, 4)), rng.uniform(-1, 1, (2, 6, 1)), reward=rng.normal(size=(2, 6)))
    other = SAC(7, run.task.action_space, agent.sac.args)
    for name in ("policy", "critic", "critic_target"):
        getattr(other, name).load_state_dict(getattr(agent.sac, name).state_dict())
    torch.manual_seed(5)
    metrics = agent.learn(Epoch(data, None, None, False, 3))
    run.agent.agent.replay._generator.manual_seed(1)
    again = type(agent)(agent.config, run_task(run)).replay
    again.extend(data)
    torch.manual_seed(5)
    for step in range(3):
        found = other.update_parameters(again, 5, step, reverse_mask=True)
    assert list(metrics.values()) == pytest.approx(list(found), abs=0)
    for one, two in zip(other.policy.parameters(), agent.sac.policy.parameters(), strict=True):
        assert torch.equal(one, two)


def run_task(run):
    from mbrl_hdp.experiments.agent_setup import _agent_task

    return _agent_task(run.config, run.registry, run.task, run.budget)


DOCS = (ROOT / "docs" / "plugins.md").read_text()


@pytest.fixture
def documented(tmp_path, monkeypatch):
    """The two plugins of docs/plugins.md, as a reader would write them."""
    blocks = re.findall(r"```python\n(from .*?)```", DOCS, re.DOTALL)
    sources = []
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, block in zip(("my_agents", "my_planner"), blocks, strict=True):
        (tmp_path / f"{name}.py").write_text(block)
        spec = importlib.util.spec_from_file_location(name, tmp_path / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        sources.append(PluginSource(name, "my-package", "1", lambda module=module: module))
    return load_registry(sources=[*installed_sources(), *sources], strict=True)


def test_the_documented_agent_and_planner_train_and_resume(documented):
    """The second one comes through mbrl_hdp_register_planners."""
    check_agent("linear_search", SMALL[1:], documented)
    check_agent("c_cem", [*SMALL[1:], "planner=best_of", "planner.num_plans=20"], documented)


def test_check_agent_catches_a_state_that_lacks_something():
    class Forgets(Still):
        def act(self, obs, explore=False):
            return np.full(1, np.sin(self.num))

        def state_dict(self):
            return {"num": 0}

    with pytest.raises(AssertionError, match="state_dict\\(\\) lacks something"):
        check_agent("still", SMALL[1:], baseline(Forgets))
    with pytest.raises(AssertionError, match="no plugin registers"):
        check_agent("nobody", SMALL[1:])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The example plugin as an installed distribution."""
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT / "examples" / "plugin", check=True, capture_output=True)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as archive:
        archive.extractall(folder)
    return folder


KILLED = """
import os, signal, sys
import mbrl_hdp.experiments.loop as loop
real, calls = loop.write_snapshot, []

def dies(*words):
    calls.append(1)
    if len(calls) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    real(*words)

loop.write_snapshot = dies
from mbrl_hdp.cli import main
main(sys.argv[1:])
"""


def command(site, *words, code=None):
    line = [sys.executable, *(["-c", code] if code else ["-m", "mbrl_hdp"]), *map(str, words)]
    env = {**os.environ, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"}
    return subprocess.run(line, env=env, capture_output=True, text=True, timeout=300, check=False)


def test_the_example_agent_is_trained_killed_resumed_and_evaluated_by_the_command_line(site, tmp_path):
    words = ["train", "env=cartpole_hard", "agent=swing_up", "profile=smoke", "seed=5"]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    done = command(site, *words, f"hydra.run.dir={whole}")
    assert done.returncode == 0, done.stderr
    assert command(site, *words, f"hydra.run.dir={killed}", code=KILLED).returncode == -signal.SIGKILL
    assert len(list((killed / "checkpoints").glob("epoch_*"))) == 1
    assert command(site, "train", f"resume={killed}").returncode == 0
    for name in ("final/agent.safetensors", "checkpoints/epoch_00003/agent.safetensors"):
        assert (whole / name).read_bytes() == (killed / name).read_bytes(), name
    one, two = (json.loads((folder / "summary.json").read_text()) for folder in (whole, killed))
    assert one["returns"] == two["returns"]
    assert one["return_mean"] > 0.0  # random actions: about -90
    assert one["context_accuracy"] > 0.6
    assert (killed / "learning_curve.png").is_file()
    done = command(site, "evaluate", killed, "--episodes", 3, "--video", killed / "rollout.gif")
    assert done.returncode == 0, done.stderr
    assert "context accuracy" in done.stdout
    assert (killed / "rollout.gif").is_file()


def test_built_in_agents_conform():
    check_agent("fi_sac", [*SMALL[1:], "agent.hidden_sizes=[8]"])
    check_baseline(lambda: Still(None, None), obs_dim=3, act_dim=1)
    assert SacAgentConfig().target_update_interval == 1


def test_steps_of_evaluations_are_watched_and_not_observed():
    """An agent that tracks contexts itself sees every transition; what it saw is what the environment did."""
    seen = {"observe": [], "watch": []}

    class Watches(Still):
        def observe(self, obs, act, reward, next_obs, terminated):
            seen["observe"].append((obs, next_obs))

        def watch(self, obs, act, next_obs):
            seen["watch"].append((obs, next_obs))

        def context_labels(self):
            return np.zeros(10, dtype=int)

    run = run_with(baseline(Watches), "agent=still")
    evaluate(run, 2, "test", SilentLog(2, is_wanted=False))
    assert seen["observe"] == []
    assert len(seen["watch"]) == 20
    for (_, reached), (begun, _) in zip(seen["watch"][:9], seen["watch"][1:10], strict=True):
        assert np.array_equal(reached, begun)


def test_a_baseline_may_ask_for_the_reward_and_gets_the_number_of_contexts():
    found = []

    def build(config, task):
        found.append(task)
        return Still(config, task)

    spec = AgentSpec("still", NoConfig, build, "made up", budget="online", needs_reward=True)
    run = run_with(registry_with(baselines=[spec]), "agent=still", "budget.warm_episodes=null")
    assert found[0].num_contexts == 2
    assert found[0].reward_fn is not None
    assert run.budget.warm_episodes == 1
