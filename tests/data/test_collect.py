from types import MappingProxyType

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import mbrl_hdp
from mbrl_hdp.data.collect import collect
from mbrl_hdp.envs import BatchPhysics, BatchSwitchingEnv, Context, MarkovChain, SwitchingContext
from mbrl_hdp.errors import DataError


class Walk(gymnasium.Env):
    """s' = s + gain * a; terminates beyond 1 in absolute value, truncates after `horizon` steps."""

    def __init__(self, horizon=None, obs_space=None, act_space=None):
        self.horizon, self.gain = horizon, 1.0
        self.observation_space = obs_space or Box(-np.inf, np.inf, (2,), np.float64)
        self.action_space = act_space or Box(-0.4, 0.5, (2,), np.float64)
        self.seeds = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.state, self.num_steps = self.np_random.uniform(-0.1, 0.1, 2), 0
        return self.state, {}

    def step(self, act):
        assert self.action_space.contains(act)
        self.state += self.gain * act  # the same array every time, so collecting without a copy would be seen
        self.num_steps += 1
        terminated = bool(np.abs(self.state).max() > 1.0)
        return self.state, float(self.state.sum()), terminated, self.num_steps == self.horizon, {}


class WalkPhysics(BatchPhysics):
    """The batched twin without terminations."""

    obs_dim = act_dim = 2
    act_low, act_high = np.full(2, -0.4), np.full(2, 0.5)
    dt, horizon = 1.0, 9
    defaults = MappingProxyType({"gain": 1.0})

    def start(self, num, rng):
        return rng.uniform(-0.1, 0.1, (num, 2))

    def observe(self, state):
        return state

    def step(self, state, act, params):
        return state + params["gain"][:, None] * act

    def reward(self, act, next_obs):
        return next_obs.sum(-1)


CHAIN = MarkovChain.symmetric(2, switch=0.4, cool_off=2)


def switching(horizon=9):
    contexts = [Context(), Context(attributes={"gain": -0.5})]
    return SwitchingContext(Walk(horizon), contexts=contexts, chain=CHAIN)


def batch(num_envs):
    return BatchSwitchingEnv(WalkPhysics(), [{"gain": 1.0}, {"gain": -0.5}], CHAIN, num_envs)


class Proportional:
    """a = -s / 4 within the bounds; counts its resets."""

    num_resets = 0

    def act(self, obs):
        return np.clip(-0.25 * obs, -0.4, 0.5)

    def reset(self):
        self.num_resets += 1


@pytest.mark.parametrize("env", [switching(), batch(3)], ids=["one", "batch"])
def test_what_is_kept_obeys_the_physics_of_the_reported_context(env):
    data = mbrl_hdp.collect(env, num_episodes=7, seed=2)
    assert mbrl_hdp.collect is collect
    assert data.num_episodes == 7
    assert set(data.context[data.is_step].tolist()) == {0, 1}
    gain = np.where(data.context == 0, 1.0, -0.5)[..., None]
    moved = data.obs[:, :-1] + gain * data.act
    assert np.allclose(data.obs[:, 1:][data.is_step], moved[data.is_step], rtol=0, atol=1e-15)
    assert np.allclose(data.reward[data.is_step], data.obs[:, 1:].sum(-1)[data.is_step], rtol=0, atol=1e-15)


def test_episodes_end_where_the_environment_ends_them():
    data = collect(Walk(horizon=6), num_episodes=40, seed=0)
    is_out = np.abs(data.obs).max(-1) > 1.0
    for episode, out in zip(data, is_out, strict=True):
        length = len(episode.act)
        assert episode.terminated == out[length]
        assert not out[:length].any()
        assert length == 6 or episode.terminated
    assert len(set(data.lengths.tolist())) > 1
    assert 0 < data.terminated.sum() < 40


@pytest.mark.parametrize("make_env", [switching, lambda: batch(3)], ids=["one", "batch"])
def test_seeds_hold_whatever_the_number_of_episodes(make_env):
    many = collect(make_env(), num_episodes=8, seed=5)
    assert collect(make_env(), num_episodes=8, seed=5) == many
    assert collect(make_env(), num_episodes=4, seed=5) == many.select(slice(4))
    assert collect(make_env(), num_episodes=8, seed=6) != many
    used = make_env()
    collect(used, num_episodes=2, seed=0)
    assert collect(used, num_episodes=8, seed=5) == many


def test_episodes_differ_from_each_other_and_actions_from_the_start():
    env = Walk(horizon=3)
    data = collect(env, num_episodes=20, seed=0)
    assert len(set(env.seeds)) == 20
    assert len(np.unique(data.act[:, 0, 0])) == 20
    # Start and first action come from streams of their own.
    start, act = (data.obs[:, 0, 0] + 0.1) / 0.2, (data.act[:, 0, 0] + 0.4) / 0.9
    assert not np.isclose(start, act).any()


def test_random_actions_fill_the_box_and_keep_its_kind():
    env = Walk(horizon=5, act_space=Box(np.float32([-0.01, 0.002]), np.float32([0.01, 0.004])))
    act = collect(env, num_episodes=200, seed=1).act.reshape(-1, 2)
    assert act.dtype == np.float32
    unit = (act - [-0.01, 0.002]) / [0.02, 0.002]
    assert unit.min() > -1e-6
    assert unit.max() < 1 + 1e-6
    # Uniform on [0, 1]: mean 1/2, standard error sqrt(1/12/1000).
    assert np.abs(unit.mean(0) - 0.5).max() < 6 * np.sqrt(1 / 12 / len(unit))


def test_one_batch_row_is_the_single_environment():
    single = collect(switching(), Proportional(), num_episodes=3, seed=4)
    rows = collect(batch(1), Proportional(), num_episodes=3, seed=4)
    assert single == rows


def test_rows_of_a_batch_may_end_one_by_one():
    class Ending(BatchSwitchingEnv):
        def step(self, act):
            obs, reward, terminated, truncated, info = super().step(act)
            return obs, reward, terminated | (np.abs(obs).max(-1) > 1.0), truncated, info

    env = Ending(WalkPhysics(), [{"gain": 1.0}, {"gain": -0.5}], CHAIN, 50)
    data = collect(env, num_episodes=50, seed=0)
    full = collect(batch(50), num_episodes=50, seed=0)
    is_out = np.abs(full.obs).max(-1) > 1.0
    lengths = np.where(is_out.any(1), is_out.argmax(1), 9)
    assert data.lengths.tolist() == lengths.tolist()
    assert len(set(lengths.tolist())) > 3
    assert np.array_equal(data.terminated.any(1), is_out.any(1))
    assert np.array_equal(data.context[data.is_step], full.context[:, : data.max_steps][data.is_step])


@pytest.mark.parametrize(("env", "num_resets"), [(switching(), 5), (batch(2), 3)], ids=["one", "batch"])
def test_an_agent_acts_and_is_reset_before_every_episode(env, num_resets):
    agent = Proportional()
    data = collect(env, agent, num_episodes=5, seed=0)
    assert agent.num_resets == num_resets
    expected = np.clip(-0.25 * data.obs[:, :-1], -0.4, 0.5)
    assert np.array_equal(data.act[data.is_step], expected[data.is_step])


def test_mbrl_libs_random_agent_is_an_agent():
    from mbrl.planning import RandomAgent

    env = Walk(horizon=3)
    assert collect(env, RandomAgent(env), num_episodes=2).num_episodes == 2


@pytest.mark.parametrize("env", [switching(), batch(3)], ids=["one", "batch"])
def test_max_steps_cuts(env):
    data = collect(env, Proportional(), num_episodes=4, max_steps=3)
    assert data.lengths.tolist() == [3] * 4
    assert not data.terminated.any()


def test_the_spec_tells_the_horizon():
    gymnasium.register("test_collect/Walk-v0", entry_point=Walk, max_episode_steps=4)
    try:
        env = gymnasium.make("test_collect/Walk-v0", disable_env_checker=True)
        assert collect(env, Proportional(), num_episodes=2).lengths.tolist() == [4, 4]
    finally:
        del gymnasium.registry["test_collect/Walk-v0"]


def test_an_environment_that_never_ends_is_noticed(monkeypatch):
    monkeypatch.setattr("mbrl_hdp.data.collect._LIMIT", 50)
    with pytest.raises(DataError, match=r"has not ended after 50 steps; pass max_steps="):
        collect(Walk(), Proportional())


@pytest.mark.parametrize("reported", [None, -1])
def test_without_contexts_the_set_has_none(reported):
    class Plain(Walk):
        def step(self, act):
            *rest, _ = super().step(act)
            # Known at first, then not: all or nothing.
            return *rest, {"context": 0 if self.num_steps < 3 else reported}

    assert collect(Plain(horizon=5), Proportional(), num_episodes=2).context is None
    assert collect(Plain(horizon=2), Proportional(), num_episodes=2).context.tolist() == [[0, 0]] * 2


FLAT = Box(-1, 1, (2,))


@pytest.mark.parametrize(
    ("env", "options", "words"),
    [
        (Walk(obs_space=Discrete(3)), {}, "observation space must be a Box of flat vectors, got Discrete"),
        (Walk(obs_space=Box(0, 1, (2, 2))), {}, "observation space must be a Box of flat vectors"),
        (Walk(act_space=Discrete(3)), {}, "action space must be a Box of flat vectors, got Discrete"),
        (Walk(act_space=Box(-np.inf, 1, (2,))), {}, "cannot draw random actions from the unbounded"),
        (Walk(act_space=Box(0, 3, (2,), np.int64)), {}, "action space must hold floats"),
        (Walk(2), {"num_episodes": 0}, "num_episodes must be at least 1, got 0"),
        (Walk(2), {"seed": -1}, "seed must be at least 0, got -1"),
        (Walk(2), {"max_steps": 0}, "max_steps must be at least 1, got 0"),
        (Walk(2), {"agent": "random"}, "needs a method act"),
        ("CartPole-v1", {}, "cannot collect from str"),
        (gymnasium.vector.SyncVectorEnv([Walk]), {}, "SyncVectorEnv.*restart episodes by themselves"),
    ],
)
def test_refusals(env, options, words):
    with pytest.raises(DataError, match=words):
        collect(env, **options)


@pytest.mark.parametrize(("env", "words"), [(Walk(2), r"\[2\], got \[3\]"), (batch(4), r"\[4, 2\], got \[3\]")])
def test_actions_of_the_wrong_shape_are_refused(env, words):
    class Wrong:
        def act(self, obs):
            return np.zeros(3)

    with pytest.raises(DataError, match=f"actions must have shape {words}"):
        collect(env, Wrong())


def test_observations_that_are_not_finite_are_refused():
    class Broken(Walk):
        def step(self, act):
            obs, *rest = super().step(act)
            return (obs * np.nan if self.num_steps == 2 else obs), *rest

    with pytest.raises(DataError, match="obs is nan at episode 0, step 2, column 0"):
        collect(Broken(horizon=3), num_episodes=2)


def test_a_terminal_shows_progress(monkeypatch, capsys):
    env = Walk(horizon=2)
    collect(env, num_episodes=2)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    collect(env, num_episodes=2, progress=False)
    assert capsys.readouterr().err == ""
    collect(env, num_episodes=2)
    assert "collecting episodes" in capsys.readouterr().err
