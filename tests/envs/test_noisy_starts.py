"""Random starts of the drone and the intersection: no noise is the plain task, and all backends start alike."""

import gymnasium
import numpy as np
import pytest

import mbrl_hdp.envs  # noqa: F401 - registers the tasks
from mbrl_hdp.envs.drone_physics import euler_angles
from mbrl_hdp.envs.noisy_starts import NoisyDronePhysics, NoisyIntersectionPhysics
from mbrl_hdp.errors import ConfigError

PLAIN = {"drone": "mbrl_hdp/DroneTakeOff-v0", "intersection": "mbrl_hdp/IntersectionLeftTurn-v0"}
NOISY = {"drone": "mbrl_hdp.envs.noisy_starts:NoisyTakeOff-v0",
         "intersection": "mbrl_hdp.envs.noisy_starts:NoisyLeftTurn-v0"}  # fmt: skip
ENGINES = {"drone": "pybullet", "intersection": "highway_env"}
PHYSICS = {"drone": NoisyDronePhysics, "intersection": NoisyIntersectionPhysics}


def played(env, seed, num_steps):
    """Observations of an episode with fixed random actions."""
    rng = np.random.default_rng(3)
    seen = [env.reset(seed=seed)[0]]
    for _ in range(num_steps):
        obs, reward, *_, info = env.step(0.5 * rng.uniform(-1, 1, env.action_space.shape))
        seen.append(np.append(obs, [reward, info["context"]]))
    env.close()
    return seen


@pytest.mark.parametrize("backend", ["engine", "vector"])
@pytest.mark.parametrize("task", list(PLAIN))
def test_no_noise_is_the_plain_task_to_the_last_digit(task, backend):
    kwargs = {"backend": ENGINES[task] if backend == "engine" else backend, "switch": 0.3}
    noisy, plain = gymnasium.make(NOISY[task], **kwargs), gymnasium.make(PLAIN[task], **kwargs)
    assert type(noisy.unwrapped.physics) is PHYSICS[task]
    for ours, theirs in zip(played(noisy, 7, 30), played(plain, 7, 30), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("task", list(PLAIN))
def test_backends_start_alike_and_go_on_alike(task):
    envs = [gymnasium.make(NOISY[task], backend=name, start_noise=0.3) for name in (ENGINES[task], "vector")]
    batch = envs[0].get_wrapper_attr("as_batch")(1)
    first, second = (played(env, 11, 40) for env in envs)
    np.testing.assert_allclose(first[0], second[0], atol=1e-12)
    np.testing.assert_allclose(first[0], batch.reset(seed=11)[0][0], atol=1e-12)
    for one, other in zip(first[1:], second[1:], strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


@pytest.mark.parametrize("task", list(PLAIN))
def test_every_episode_starts_elsewhere_and_a_seed_repeats_it(task):
    env = gymnasium.make(NOISY[task], backend="vector", start_noise=0.3)
    starts = [env.reset(seed=seed)[0] for seed in (1, None, 1)]
    assert np.abs(starts[0] - starts[1]).max() > 0.01
    np.testing.assert_array_equal(starts[0], starts[2])


def test_drone_starts_are_spread_as_asked_and_consistent():
    physics, num = NoisyDronePhysics(start_noise=0.2), 4000
    state = physics.start(num, np.random.default_rng(0))
    obs = physics.observe(state)
    np.testing.assert_allclose(obs[:, 3:6], euler_angles(state.body[:, 3:7]), atol=1e-12)
    np.testing.assert_allclose(obs[:, [3, 4, 5, 9, 10, 11]].std(axis=0), 0.2, rtol=6 / np.sqrt(2 * num))
    assert (obs[:, :3] == [0.0, 0.0, physics.config.start_height]).all()
    assert not obs[:, 6:9].any()


def test_car_starts_are_spread_as_asked():
    physics, num = NoisyIntersectionPhysics(start_noise=1.5), 4000
    state = physics.start(num, np.random.default_rng(0))
    np.testing.assert_allclose(state.ego.std(axis=0), [1.5, 1.5, 0.15, 1.5], rtol=6 / np.sqrt(2 * num))
    assert (state.social == state.social[0]).all()
    np.testing.assert_array_equal(state.closest, np.hypot(*(state.ego - state.social)[:, :2].T))


@pytest.mark.parametrize("task", list(PLAIN))
@pytest.mark.parametrize("noise", [-0.1, np.nan, np.inf])
def test_a_noise_that_is_none_is_refused(task, noise):
    with pytest.raises(ConfigError, match=f"{task}.start_noise"):
        gymnasium.make(NOISY[task], backend="vector", start_noise=noise)
