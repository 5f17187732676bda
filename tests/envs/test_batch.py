"""The batched environment against the single one and against a physics with known answers."""

from __future__ import annotations

import numpy as np
import pytest

from mbrl_hdp.envs import BatchPhysics, BatchSwitchingEnv, Context, MarkovChain, ScheduleChain, StateDependentChain
from mbrl_hdp.envs.cartpole import make_cartpole
from mbrl_hdp.errors import ConfigError


class Drift(BatchPhysics):
    """Position += gain * sum(push * act) + wind, from a drawn start; two actions."""

    obs_dim, act_dim, dt, horizon = 1, 2, 0.1, 4
    act_low, act_high = np.array([-1.0, -2.0]), np.array([1.0, 2.0])
    defaults = {"wind": 0.25, "push": 1.0, "gain": 1.0}  # noqa: RUF012

    def start(self, num, rng):
        return rng.normal(size=num)

    def observe(self, state):
        return state[:, None]

    def step(self, state, act, params):
        push = np.broadcast_to(params.get("push", 1.0), act.shape) if "push" in params else np.ones(act.shape)
        return state + params.get("gain", 1.0) * (push * act).sum(1) + params.get("wind", 0.25)

    def reward(self, act, next_obs):
        return next_obs[:, 0] - act[:, 0]

    def info(self, state):
        return {"is_far": np.abs(state) > 3.0}


CONTEXTS = [{"wind": -3.0}, {"push": [2.0, 0.5]}, Context(action_scale=(-1.0, 4.0)), {"gain": 7.0, "wind": 0.0}]


def expected_drift(act, context):
    push, wind, gain = np.ones(2), 0.25, 1.0
    if context == 0:
        wind = -3.0
    elif context == 1:
        push = np.array([2.0, 0.5])
    elif context == 2:
        push = np.array([-1.0, 4.0])
    else:
        gain, wind = 7.0, 0.0
    return gain * (push * act).sum() + wind


@pytest.mark.parametrize("preset", [{}, {"contexts": [{"gravity": 20.0}, {"friction": 0.5, "force": 30.0}, {}]}])
def test_one_row_is_the_single_environment(preset):
    env = make_cartpole(**preset)
    batch = env.as_batch(1)
    rng = np.random.default_rng(0)
    for seed in (3, None):
        obs, info = env.reset(seed=seed)
        batch_obs, batch_info = batch.reset(seed=seed)
        assert info["next_context"] == batch_info["next_context"][0]
        for _ in range(100):
            act = rng.uniform(-1.2, 1.2, 1)
            obs, reward, terminated, truncated, info = env.step(act)
            batch_obs, rewards, ends, stops, batch_info = batch.step(act[None])
            assert np.array(env.unwrapped.core.state) == pytest.approx(batch_obs[0], rel=1e-9, abs=1e-9)
            assert obs == pytest.approx(batch_obs[0], rel=1e-6, abs=1e-6)
            assert (info["context"], info["next_context"]) == (
                batch_info["context"][0],
                batch_info["next_context"][0],
            )
            assert reward == pytest.approx(rewards[0], abs=1e-9)
            assert (terminated, truncated) == (ends[0], stops[0])


def test_every_row_gets_the_parameters_of_its_own_context():
    batch = BatchSwitchingEnv(Drift(), CONTEXTS, MarkovChain.symmetric(4, 0.6, cool_off=0), num_envs=50)
    obs, info = batch.reset(seed=0)
    rng = np.random.default_rng(1)
    seen = set()
    for _ in range(4):
        act = batch.sample_actions(rng)
        announced = info["next_context"].copy()
        next_obs, reward, _, _, info = batch.step(act)
        assert (info["context"] == announced).all()
        for row in range(50):
            moved = next_obs[row, 0] - obs[row, 0]
            assert moved == pytest.approx(expected_drift(act[row], announced[row]), abs=1e-12)
            assert reward[row] == pytest.approx(next_obs[row, 0] - act[row, 0])
        assert (info["is_far"] == (np.abs(next_obs[:, 0]) > 3.0)).all()
        seen |= set(announced.tolist())
        obs = next_obs
    assert seen == {0, 1, 2, 3}


def test_actions_are_clipped_before_they_are_scaled():
    batch = BatchSwitchingEnv(Drift(), CONTEXTS, ScheduleChain([2], num_contexts=4))
    obs, _ = batch.reset(seed=0)
    next_obs, reward, *_ = batch.step(np.array([[9.0, -9.0]]))
    assert next_obs[0, 0] - obs[0, 0] == pytest.approx(expected_drift(np.array([1.0, -2.0]), 2))
    assert reward[0] == pytest.approx(next_obs[0, 0] - 1.0)  # the reward sees the action that was asked for


def test_all_rows_truncate_together_at_the_horizon():
    batch = BatchSwitchingEnv(Drift(), CONTEXTS, num_envs=3)
    batch.reset(seed=0)
    flags = [batch.step(np.zeros((3, 2)))[2:4] for _ in range(4)]
    assert [bool(truncated.all()) for _, truncated in flags] == [False, False, False, True]
    assert not any(terminated.any() for terminated, _ in flags)
    batch.reset()
    assert not batch.step(np.zeros((3, 2)))[3].any()


def test_seeds_rows_and_actions():
    def contexts(seed, act_seed):
        batch = BatchSwitchingEnv(Drift(), CONTEXTS, num_envs=20)
        _, info = batch.reset(seed=seed)
        rng, rows = np.random.default_rng(act_seed), [info["next_context"]]
        for _ in range(40):
            rows.append(batch.step(batch.sample_actions(rng))[4]["next_context"])
        return np.stack(rows, 1)

    assert (contexts(1, 0) == contexts(1, 5)).all()
    assert (contexts(1, 0) != contexts(2, 0)).any()
    assert len({tuple(row) for row in contexts(1, 0)}) == 20  # rows are independent


def test_state_dependent_chain_sees_every_row():
    chain = StateDependentChain(lambda obs: (obs[:, 0] > 0.0).astype(int), num_contexts=4)
    batch = BatchSwitchingEnv(Drift(), CONTEXTS, chain, num_envs=30)
    obs, info = batch.reset(seed=0)
    for _ in range(4):
        assert (info["next_context"] == (obs[:, 0] > 0.0)).all()
        obs, *_, info = batch.step(np.zeros((30, 2)))


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: BatchSwitchingEnv(Drift(), [], None, 2), "empty list"),
        (lambda: BatchSwitchingEnv(Drift(), CONTEXTS, None, 0), "num_envs"),
        (lambda: BatchSwitchingEnv(Drift(), [{"wnid": 1.0}]), "did you mean 'wind'"),
        (lambda: BatchSwitchingEnv(Drift(), [{"push": [1.0, 2.0, 3.0]}]), "one number or 2"),
        (lambda: BatchSwitchingEnv(Drift(), [Context(action_scale=(1.0, 2.0, 3.0))]), "action_scale of context 0"),
        (lambda: BatchSwitchingEnv(Drift(), [Context(apply=lambda env: None)]), "callable"),
        (lambda: BatchSwitchingEnv(Drift(), CONTEXTS, MarkovChain.symmetric(2)), "over 2 contexts, but 4"),
        (lambda: BatchSwitchingEnv(Drift(), CONTEXTS).step(np.zeros((1, 2))), "reset"),
        (lambda: _reset(BatchSwitchingEnv(Drift(), CONTEXTS, None, 3)).step(np.zeros((3, 1))), r"\(3, 2\)"),
    ],
)
def test_errors(build, words):
    with pytest.raises(ConfigError, match=words):
        build()


def _reset(batch):
    batch.reset(seed=0)
    return batch
