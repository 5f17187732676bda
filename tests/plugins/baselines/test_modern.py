"""PETS and SAC on a stack, windows of history, and the extra that is missing."""

import importlib.util
import subprocess
import sys

import gymnasium
import mbrl.models
import numpy as np
import pytest
import torch
from mbrl.types import TransitionBatch

from mbrl_hdp.control.agent import Epoch
from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.errors import ConfigError
from mbrl_hdp.experiments.config import check_config, load_config
from mbrl_hdp.experiments.loop import start_run
from mbrl_hdp.hooks import load_registry
from mbrl_hdp.testing import check_agent
from mbrl_hdp_baselines.history import History, transitions
from mbrl_hdp_baselines.mbpo import Mbpo
from mbrl_hdp_baselines.pets import Pets
from mbrl_hdp_baselines.sac_stack import SacStack
from mbrl_hdp_baselines.settings import MbpoConfig, PetsConfig, SacStackConfig

HORIZON = ["env=cartpole_hard", "env.kwargs.horizon=8"]
PLANNER = ["planner.horizon=2", "planner.population_size=10", "planner.num_elites=2", "planner.num_iterations=2"]


class TestHistory:
    def test_windows_by_hand(self):
        history = History(2, 1, 2)
        obs, act = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), np.array([[0.1], [0.2]])
        assert history.windows(obs, act).tolist() == [
            [1, 2, 0, 0, 0, 0, 0, 0],
            [3, 4, 1, 2, 0.1, 0, 0, 0],
            [5, 6, 3, 4, 0.2, 1, 2, 0.1],
        ]
        assert history.angles([1]) == [1, 3, 6]
        assert History(2, 1, 0).windows(obs, act).tolist() == obs.tolist()
        assert History(2, 1, 0).angles([1]) == [1]

    def test_transitions_do_not_cross_episodes(self):
        obs, act = np.arange(12.0).reshape(2, 3, 2), np.ones((2, 2, 1))
        data = Trajectories(obs, act, lengths=[2, 1], reward=np.full((2, 2), 0.5),
                            terminated=[[False, True], [False, False]])  # fmt: skip
        before, acts, rewards, after, ended = transitions(data, History(2, 1, 1))
        assert before[:, :2].tolist() == [[0, 1], [2, 3], [6, 7]]
        assert after[:, :2].tolist() == [[2, 3], [4, 5], [8, 9]]
        assert before[:, 2:].tolist() == [[0, 0, 0], [0, 1, 1], [0, 0, 0]]
        assert ended.tolist() == [0, 1, 0]
        assert len(acts) == len(rewards) == 3


def made_up(num=6, length=10):
    rng = np.random.default_rng(0)
    obs, act = rng.normal(size=(num, length + 1, 2)), rng.uniform(-1, 1, (num, length, 1))
    return Trajectories(obs, act, reward=rng.normal(size=(num, length)))


class TestPets:
    def test_blind_it_is_mbrl_libs_own_model(self, task_of):
        """Same weights, same data: inputs, targets, loss and samples of `OneDTransitionRewardModel`."""
        agent = Pets(PetsConfig(ensemble_size=3, hid_size=8, num_layers=2), task_of(obs_dim=2))
        own = mbrl.models.OneDTransitionRewardModel(
            agent.model.model, normalize=True, normalize_double_precision=True, learned_rewards=False
        )
        obs, act, reward, after, ended = transitions(made_up(), agent.history)
        batch = TransitionBatch(obs, act, after, reward, ended, ended)
        for model in (agent.model, own):
            model.update_normalizer(batch)
        for one, two in zip(agent.model._process_batch(batch), own._process_batch(batch), strict=True):
            assert torch.equal(one, two)
        found = []
        for model in (agent.model, own):
            torch.manual_seed(0)
            rng = torch.Generator().manual_seed(1)
            state = model.reset(obs[:6].astype(np.float32), rng=rng)
            found.append(model.sample(torch.tensor(act[:6], dtype=torch.float32), state, rng=rng)[0])
        torch.testing.assert_close(*found)

    def test_windows_move_on_while_imagining(self, task_of):
        agent = Pets(PetsConfig(history=2, ensemble_size=1, hid_size=8, num_layers=1), task_of(obs_dim=2))
        window = np.arange(8.0, dtype=np.float32)[None]
        act = torch.tensor([[0.5]])
        with torch.no_grad():
            moved, *_ = agent.model.sample(act, agent.model.reset(window, rng=torch.Generator()), deterministic=True)
        assert moved[0, 2:].tolist() == [0.0, 1.0, 0.5, 2.0, 3.0, 4.0]

    def test_it_learns_what_only_history_tells(self, task_of):
        """The sign of the action is constant within an episode: a window predicts it, one observation cannot."""
        rng = np.random.default_rng(1)
        act, obs = rng.uniform(-1, 1, (40, 12, 1)), np.zeros((40, 13, 1))
        for number in range(40):
            for t in range(12):
                obs[number, t + 1] = (-1) ** number * act[number, t]
        errors = []
        for length in (0, 1):
            config = PetsConfig(history=length, ensemble_size=2, hid_size=32, num_layers=2, num_epochs=40, lr=3e-3,
                                batch_size=32)  # fmt: skip
            found = Pets(config, task_of(obs_dim=1)).learn(Epoch(Trajectories(obs, act), None, None, False, 0))
            errors.append(found["model_mse"])
        assert errors[1] < 0.5 * errors[0]

    @pytest.mark.parametrize("history", [0, 2])
    def test_a_resumed_run_is_the_same_run(self, history):
        small = ["agent.hid_size=8", "agent.num_layers=1", "agent.num_epochs=2", f"agent.history={history}"]
        check_agent("pets", [*HORIZON, *PLANNER, *small, "budget.warm_episodes=3"])


class TestMbpo:
    SMALL = ("agent.hid_size=8", "agent.num_layers=1", "agent.num_epochs=2", "agent.num_rollouts=10",
             "agent.hidden_size=8", "agent.sac_batch_size=4", "agent.fit_every=2")  # fmt: skip

    def agent(self, task_of, **named):
        config = MbpoConfig(hid_size=8, num_layers=1, num_epochs=1, hidden_size=8, ensemble_size=2, **named)
        return Mbpo(config, task_of(obs_dim=2, angle_columns=(1,), reward_fn=lambda act, obs: obs[:, :1] + act))

    def test_imagined_steps_begin_at_real_ones_and_have_the_formula_s_reward(self, task_of):
        agent = self.agent(task_of, num_rollouts=7, rollout_horizon=2)
        real = agent.keep(made_up())
        agent.fit(real)
        found = agent.imagine(real).steps
        assert len(found) == 8 * 2  # a multiple of the ensemble
        known = agent.agent.see(real.obs)
        assert all(np.isclose(known, row, atol=1e-6).all(1).any() for row in found.obs[:8])
        np.testing.assert_array_equal(found.obs[8:], found.next_obs[:8])
        np.testing.assert_allclose(found.rewards, found.next_obs[:, 0] + found.act[:, 0], rtol=1e-5)

    def test_the_ensemble_learns_when_it_is_due(self, task_of):
        agent = self.agent(task_of, num_rollouts=6, fit_every=2, sac_batch_size=4)
        for number, wanted in enumerate((1, 1, 2)):
            agent.learn(Epoch(made_up(), None, None, False, number))
            assert agent.num_fits == wanted
        assert agent.num_updates == 3
        assert agent.data.num_episodes == 18

    def test_a_resumed_run_is_the_same_run(self):
        check_agent("mbpo", [*HORIZON, *self.SMALL, "budget.warm_episodes=3"])


class TestSacStack:
    def test_the_buffer_holds_windows_and_scaled_actions(self, task_of):
        space = gymnasium.spaces.Box(-2.0, 2.0, (1,))
        agent = SacStack(
            SacStackConfig(stack=1, buffer_size=100, hidden_sizes=[4]), task_of(obs_dim=2, action_space=space)
        )
        data = made_up(num=2, length=3)
        agent.learn(Epoch(data, None, None, False, 0))
        buffer = agent.sac.replay_buffer
        assert buffer.pos == 6
        np.testing.assert_allclose(
            buffer.observations[1, 0], [*data.obs[0, 1], *data.obs[0, 0], *data.act[0, 0]], rtol=1e-6
        )
        np.testing.assert_allclose(buffer.next_observations[2, 0, :2], data.obs[0, 3], rtol=1e-6)
        np.testing.assert_allclose(buffer.actions[1, 0], data.act[0, 1] / 2.0, rtol=1e-6)
        assert not agent.is_ready
        agent.learn(Epoch(data, None, None, False, 2))
        assert agent.is_ready

    def test_a_resumed_run_is_the_same_run(self):
        check_agent("sac_stack", [*HORIZON, "agent.hidden_sizes=[8]", "agent.batch_size=8", "budget.warm_episodes=3"])


@pytest.mark.parametrize(("agent", "package"), [("gpmm", "gpytorch"), ("rnn_ppo", "sb3_contrib"),
                                                ("sac_stack", "stable_baselines3")])  # fmt: skip
def test_a_missing_extra_is_named(agent, package, monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == package else real(name, *more))
    registry = load_registry()
    with pytest.raises(ConfigError, match=rf"{package}.*mbrl-hdp\[baselines\]"):
        start_run(check_config(load_config(["profile=smoke", f"agent={agent}", *HORIZON], registry)), registry)


def test_listing_the_plugins_imports_nothing_heavy():
    code = (
        "import sys; from mbrl_hdp.hooks import load_registry; names = load_registry().names('baseline');"
        "assert {'gpmm', 'rnn_ppo', 'rnn_ppo_plain'} <= set(names), names;"
        "heavy = {'gpytorch', 'stable_baselines3', 'sb3_contrib', 'mbrl'} & set(sys.modules); assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
