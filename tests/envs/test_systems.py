"""The suite: exact equations, and variants that change what their name says and nothing else."""

import numpy as np
import pytest
from scipy.integrate import solve_ivp

from mbrl_hdp.envs.systems import SYSTEMS, build_system, simulate
from mbrl_hdp.errors import ConfigError


@pytest.mark.parametrize("name", ["van_der_pol", "cartpole_raw", "quadrotor", "linear_6d_4"])
def test_a_step_solves_the_equation(name):
    system = build_system(name)
    rollouts = simulate(name, seed=3, num_episodes=2)
    for t in (0, 40):
        start, act, context = rollouts.obs[1, t], rollouts.act[1, t], rollouts.context[1, t]
        exact = solve_ivp(
            lambda _, s, act=act, context=context: system.derivative(
                s[:, None], act[:, None], system.contexts[context][:, None]
            )[:, 0],
            (0.0, system.dt), start, rtol=1e-10, atol=1e-12,
        ).y[:, -1]  # fmt: skip
        np.testing.assert_allclose(rollouts.obs[1, t + 1], exact, atol=2e-5)


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_system_stays_finite_and_visits_every_context(name):
    if name.startswith("mujoco_"):
        pytest.importorskip("mujoco")
    rollouts = simulate(name, seed=1)
    assert np.isfinite(rollouts.obs).all()
    assert np.abs(rollouts.obs).max() < 1e3
    shares = np.bincount(rollouts.context.ravel(), minlength=build_system(name).num_contexts) / rollouts.context.size
    assert shares.min() > 0.5 / len(shares)


def test_observation_noise_is_one_percent_of_the_spread_and_leaves_the_states_alone():
    quiet, noisy = simulate("pendulum", "plain", seed=5), simulate("pendulum", "observation", seed=5)
    error = noisy.obs - quiet.obs
    np.testing.assert_allclose(error.std((0, 1)) / quiet.obs.std((0, 1)), 0.01, rtol=0.1)
    assert abs(np.corrcoef(error[:, 1:, 0].ravel(), error[:, :-1, 0].ravel())[0, 1]) < 0.05


def test_process_noise_enters_the_speed_and_reaches_the_angle_through_the_equation():
    system = build_system("pendulum", "process")
    state, act = np.zeros((4000, 2)), np.zeros((4000, 1))
    noise = np.array([0.0, 0.1])
    after = system.step(state, act, np.zeros(4000, dtype=int), noise, np.random.default_rng(0))
    # Noise of a substep is integrated by the later ones only: 3, 2, 1 and 0 substeps of dt / 4.
    expected = 0.1 * system.dt / 4 * np.sqrt((9 + 4 + 1) / 4)
    assert after[:, 1].std() == pytest.approx(0.1, rel=0.06)
    assert after[:, 0].std() == pytest.approx(expected, rel=0.06)


def test_close_contexts_keep_their_mean_and_still_ones_never_switch():
    plain, close = build_system("duffing"), build_system("duffing", "close")
    np.testing.assert_allclose(close.contexts.mean(0), plain.contexts.mean(0))
    np.testing.assert_allclose(np.ptp(close.contexts, 0), 0.3 * np.ptp(plain.contexts, 0))
    assert (simulate("duffing", "still").context == 0).all()
    assert simulate("duffing", "few").obs.shape[0] == 30


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match="pendulum"):
        build_system("pendulm")
    with pytest.raises(ConfigError, match="variant"):
        build_system("pendulum", "noisy")


def test_stripes_follow_the_position_and_vanish_without_switching():
    rollouts = simulate("cartpole_stripes", seed=2, num_episodes=5)
    place = rollouts.obs[:, :-1, 0]
    np.testing.assert_array_equal(rollouts.context, np.floor(place).astype(int) % 2)
    assert (simulate("cartpole_stripes", "still", seed=2, num_episodes=5).context == 0).all()


def test_contexts_of_mujoco_bodies_reverse_or_disable_joints():
    pytest.importorskip("mujoco")
    rng = np.random.default_rng(0)
    for name, matched in (("mujoco_reacher", [-1.0, 1.0]), ("mujoco_swimmer", [0.0, 1.0])):
        body = build_system(name)
        state = body.start(rng, 3)
        act = rng.uniform(-1.0, 1.0, (3, 2))
        step = [
            body.step(state, a, np.full(3, k), np.zeros(1), rng) for a, k in ((act, 1), (act * matched, 0), (act, 0))
        ]
        np.testing.assert_allclose(step[0], step[1], atol=1e-12)
        assert np.abs(step[0] - step[2]).max() > 1e-3


def test_a_mujoco_body_moves_as_gymnasium_moves_it():
    pytest.importorskip("mujoco")
    import gymnasium

    env = gymnasium.make("Swimmer-v5").unwrapped
    env.reset(seed=0)
    body = build_system("mujoco_swimmer")
    state, act = body.start(np.random.default_rng(1), 1), np.array([[0.4, -0.7]])
    env.set_state(state[0, :5], state[0, 5:])
    obs = env.step(act[0])[0]
    after = body.step(state, act, np.zeros(1, dtype=int), np.zeros(1), np.random.default_rng(0))
    np.testing.assert_allclose(body.observe(after)[0], obs, atol=1e-8)
