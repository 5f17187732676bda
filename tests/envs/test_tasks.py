"""The promises that every task keeps, whatever its physics."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from stable_baselines3.common.env_checker import check_env as check_env_sb3

from mbrl_hdp.envs.cartpole import make_cartpole
from mbrl_hdp.envs.drone import make_drone
from mbrl_hdp.envs.intersection import make_intersection
from mbrl_hdp.errors import ConfigError

CASES = {
    "cartpole": (make_cartpole, {}),
    "drone": (make_drone, {"backend": "pybullet"}),
    "drone_vector": (make_drone, {"backend": "vector"}),
    "intersection": (make_intersection, {"backend": "highway_env"}),
    "intersection_vector": (make_intersection, {"backend": "vector"}),
}
# One copy of the numpy physics each, with numbers of its reward changed where there are some.
TASKS = {
    "cartpole": (make_cartpole, {}),
    "drone": (make_drone, {"backend": "vector", "tilt_weight": 0.7}),
    "intersection": (
        make_intersection,
        {"backend": "vector", "speed_weight": 0.7, "lane_scale": 6.0, "steering_weight": 0.2, "heading_weight": 1.3},
    ),
}


@pytest.fixture(params=CASES)
def make_case(request):
    make, settings = CASES[request.param]
    return lambda **more: make(**settings, **more)


@pytest.fixture(params=TASKS)
def make_task(request):
    make, settings = TASKS[request.param]
    return lambda **more: make(**settings, **more)


def random_acts(env, seed, num=None):
    shape = (num or env.unwrapped.horizon, *env.action_space.shape)
    return np.random.default_rng(seed).uniform(-1.0, 1.0, shape)


def test_batch_is_the_same_episode(make_task, rollout):
    acts = random_acts(make_task(), 4)
    obs, rewards, contexts, last = rollout(make_task(), acts, seed=9)
    batch = make_task().as_batch(1)
    first, _ = batch.reset(seed=9)
    np.testing.assert_array_equal(first[0], obs[0])
    for t, act in enumerate(acts):
        batch_obs, reward, terminated, truncated, info = batch.step(act[None])
        np.testing.assert_allclose(batch_obs[0], obs[t + 1], rtol=1e-10, atol=1e-12)
        assert reward[0] == pytest.approx(rewards[t], rel=1e-10)
        assert info["context"][0] == contexts[t]
        assert not terminated[0]
        assert truncated[0] == (t + 1 == batch.horizon)
    for name in set(last) - {"context", "next_context"}:
        assert info[name][0] == pytest.approx(last[name])


def test_seeds_hold_and_resets_leave_nothing_behind(make_case):
    env = make_case()
    acts = random_acts(env, 1, 40)

    def episode(seed):
        obs, info = env.reset(seed=seed)
        return [(obs, info["next_context"])] + [(step[0], step[4]["context"]) for step in map(env.step, acts)]

    first, other, again = episode(7), episode(8), episode(7)
    env.close()
    assert [context for _, context in first] == [context for _, context in again]
    assert [context for _, context in first] != [context for _, context in other]
    np.testing.assert_array_equal([obs for obs, _ in first], [obs for obs, _ in again])


def test_reward_and_termination_functions(make_task, rollout):
    env = make_task()
    acts = random_acts(env, 6)
    obs, rewards, _, _ = rollout(env, acts)
    task, act, next_obs = env.unwrapped, torch.as_tensor(acts), torch.as_tensor(obs[1:])
    found, done = task.reward_fn(act, next_obs), task.termination_fn(act, next_obs)
    assert found.shape == done.shape == (len(acts), 1)
    np.testing.assert_allclose(found[:, 0], rewards, rtol=1e-12)
    assert done.dtype == torch.bool
    assert not done.any()
    assert task.reward_fn(act.float(), next_obs.float()).dtype == torch.float32


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_checkers(make_case):
    env = make_case(render_mode="rgb_array")
    check_env(env, skip_render_check=True)
    check_env_sb3(env)
    env.close()


def test_picture_shows_context_and_belief(make_task):
    env = make_task(render_mode="rgb_array")
    env.reset(seed=0)
    frames = [env.render()]
    for act in random_acts(env, 0, 20):
        env.step(act)
    frames.append(env.render())
    env.show_belief([0.3, 0.7])
    frames.append(env.render())
    assert all(frame.dtype == np.uint8 and frame.ndim == 3 and frame.shape == frames[0].shape for frame in frames)
    scene = slice(0, env.unwrapped.render().shape[0])
    assert (frames[0][scene] != frames[1][scene]).any()
    assert (frames[1][scene] == frames[2][scene]).all()
    assert (frames[1] != frames[2]).any()
    assert make_task().render() is None


def test_actions_are_clipped(make_task):
    far, near = (make_task() for _ in range(2))
    for env in (far, near):
        env.reset(seed=3)
    width = far.action_space.shape[0]
    for sign in (1.0, -1.0):
        np.testing.assert_array_equal(
            far.step(np.full(width, sign * 7.0))[0], near.step(np.full(width, sign))[0], strict=True
        )


@pytest.mark.parametrize(("make", "title"), [(make_cartpole, "cart-pole"), (make_drone, "the drone")])
def test_unknown_settings_are_refused(make, title):
    with pytest.raises(ConfigError, match=f"{title} has no setting 'horizn'; did you mean 'horizon'"):
        make(horizn=3)
