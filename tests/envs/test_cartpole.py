"""Cart-pole against the package's own step, a second derivation of its physics, and outside checkers."""

from __future__ import annotations

from pathlib import Path

import gymnasium
import numpy as np
import pytest
import yaml

import mbrl_hdp.envs
from mbrl_hdp.envs import BatchSwitchingEnv
from mbrl_hdp.envs.cartpole import CONTEXT_PARAMETERS, CartPolePhysics, CartPoleSwingUp, make_cartpole
from mbrl_hdp.envs.rendering import context_color
from mbrl_hdp.errors import ConfigError

ENV_ID = "mbrl_hdp/CartPoleSwingUp-v0"
PRESETS = sorted((Path(__file__).parents[2] / "conf" / "env").glob("cartpole_*.yaml"))
RANGES = {
    "actuation": (-1.0, 1.0),
    "force": (5.0, 40.0),
    "gravity": (1.0, 50.0),
    "friction": (0.0, 1.0),
    "cart_mass": (0.2, 5.0),
    "pole_mass": (0.1, 1.0),
    "pole_length": (0.3, 1.2),
}


def lagrangian_step(state, act, dt=0.04, **params):
    """One Euler step with accelerations from the Lagrangian: solve the two coupled equations of motion.

    The rod's centre is at (x - l/2 sin, l/2 cos):
    (m_c + m_p) x'' - (m_p l / 2) cos th'' = f - b v - (m_p l / 2) sin w^2
    -(m_p l / 2) cos x'' + (m_p l^2 / 3) th'' = m_p g (l / 2) sin
    """
    p = {**CartPolePhysics().defaults, **params}
    x, v, angle, rate = state
    half = 0.5 * p["pole_mass"] * p["pole_length"]
    inertia = p["pole_mass"] * p["pole_length"] ** 2 / 3.0
    matrix = [[p["cart_mass"] + p["pole_mass"], -half * np.cos(angle)], [-half * np.cos(angle), inertia]]
    push = p["actuation"] * p["force"] * np.clip(act, -1.0, 1.0) - p["friction"] * v
    cart, pole = np.linalg.solve(matrix, [push - half * np.sin(angle) * rate**2, half * p["gravity"] * np.sin(angle)])
    return np.array([x + dt * v, v + dt * cart, angle + dt * rate, rate + dt * pole])


def test_batch_equals_the_packages_step():
    rng = np.random.default_rng(0)
    physics = CartPolePhysics()
    params = {name: rng.uniform(*RANGES[name], 200) for name in CONTEXT_PARAMETERS}
    state, act = 3.0 * rng.normal(size=(200, 4)), rng.uniform(-1.0, 1.0, (200, 1))
    ours = physics.step(state, act, params)
    env = CartPoleSwingUp()
    for row in range(200):
        env.reset(options={"state": state[row]})
        for name in CONTEXT_PARAMETERS:
            setattr(env, name, params[name][row])
        env.step(act[row])
        assert np.abs(np.array(env.core.state) - ours[row]).max() < 1e-12 * max(1.0, np.abs(ours[row]).max())


def test_batch_equals_the_lagrangian():
    rng = np.random.default_rng(1)
    params = {name: rng.uniform(*RANGES[name], 50) for name in CONTEXT_PARAMETERS}
    state, act = 3.0 * rng.normal(size=(50, 4)), rng.uniform(-1.0, 1.0, (50, 1))
    ours = CartPolePhysics(dt=0.03).step(state, act, params)
    for row in range(50):
        one = {name: values[row] for name, values in params.items()}
        assert ours[row] == pytest.approx(lagrangian_step(state[row], act[row, 0], dt=0.03, **one), rel=1e-10)


@pytest.mark.parametrize("name", CONTEXT_PARAMETERS)
def test_every_context_parameter_acts_as_the_physics_says(name):
    low, high = RANGES[name]
    values = (low + 0.1 * (high - low), high - 0.2 * (high - low))
    env = gymnasium.make(ENV_ID, contexts=[{name: values[0]}, {name: values[1]}], switch=0.5, cool_off=2)
    _, info = env.reset(seed=4)
    rng = np.random.default_rng(2)
    seen = set()
    for _ in range(60):
        before, acting = np.array(env.unwrapped.core.state), info["next_context"]
        act = rng.uniform(-1.0, 1.0, 1).astype(np.float32)
        obs, _, _, _, info = env.step(act)
        assert info["context"] == acting
        after = np.array(env.unwrapped.core.state)
        assert after == pytest.approx(lagrangian_step(before, float(act[0]), **{name: values[acting]}), abs=1e-9)
        other = lagrangian_step(before, float(act[0]), **{name: values[1 - acting]})
        assert np.abs(after - other).max() > 1e-6
        assert obs == pytest.approx(after, rel=1e-6)
        seen.add(acting)
    assert seen == {0, 1}
    env.close()
    assert getattr(env.unwrapped, name) == CartPolePhysics().defaults[name]


def test_defaults_are_the_papers():
    env = gymnasium.make(ENV_ID).unwrapped
    core = env.core.params
    assert (core.forcemag, core.deltat, core.gravity, core.friction) == (20.0, 0.04, 9.82, 0.1)
    assert (core.cart.mass, core.pole.mass, core.pole.length, env.horizon) == (0.5, 0.5, 0.6, 100)
    chain = gymnasium.make(ENV_ID).get_wrapper_attr("chain")
    assert chain.matrix == pytest.approx(np.array([[0.8, 0.2], [0.2, 0.8]]))
    assert (chain.cool_off, chain.counter_at_reset) == (5, 5)
    starts = CartPolePhysics().start(20_000, np.random.default_rng(0))
    assert starts.mean(0) == pytest.approx([0.0, 0.0, np.pi, 0.0], abs=0.01)
    assert starts.std(0) == pytest.approx([0.2] * 4, abs=0.01)


def test_doing_nothing_from_rest_scores_minus_one_a_step():
    env = gymnasium.make(ENV_ID, start_std=0.0)
    env.reset(seed=0)
    assert sum(env.step(np.zeros(1, np.float32))[1] for _ in range(100)) == pytest.approx(-100.0, abs=1e-6)


def test_truncates_at_the_horizon_and_never_terminates():
    env = gymnasium.make(ENV_ID, actuation=[1.0], horizon=70)
    env.reset(seed=0)
    flags = [env.step(np.ones(1, np.float32))[2:4] for _ in range(70)]
    assert flags == [(False, False)] * 69 + [(False, True)]
    assert env.unwrapped.core.state.x_pos > 2.4  # the package would have ended the episode
    env.reset()
    assert env.step(np.ones(1, np.float32))[2:4] == (False, False)


def test_an_env_can_be_made_again_from_its_spec():
    env = gymnasium.make(ENV_ID, actuation=(1.0, 0.3, -1.0), chain={"kind": "ring", "stay": 0.5}, force=40.0)
    again = gymnasium.make(env.spec)
    (first, info), (second, info_again) = env.reset(seed=2), again.reset(seed=2)
    assert (first == second).all()
    assert info == info_again
    for _ in range(30):
        act = np.array([0.7], np.float32)
        (first, *_, info), (second, *_, info_again) = env.step(act), again.step(act)
        assert (first == second).all()
        assert info == info_again


@pytest.mark.parametrize("kwargs", [{}, "cartpole_sixteen", "cartpole_stripes", "cartpole_non_markovian"])
def test_a_thousand_random_episodes(kwargs):
    if isinstance(kwargs, str):
        kwargs = next(yaml.safe_load(path.read_text())["kwargs"] for path in PRESETS if path.stem == kwargs)
    batch = make_cartpole(**kwargs).as_batch(1000)
    obs, _ = batch.reset(seed=0)
    rng = np.random.default_rng(1)
    truncated = np.zeros(1000, dtype=bool)
    num_steps, contexts = 0, set()
    while not truncated.any():
        obs, reward, terminated, truncated, info = batch.step(batch.sample_actions(rng))
        assert np.isfinite(obs).all()
        assert np.isfinite(reward).all()
        assert not terminated.any()
        contexts |= set(info["context"].tolist())
        num_steps += 1
    assert truncated.all()
    assert num_steps == 100
    assert contexts == set(range(batch.num_contexts))
    assert np.abs(obs).max() < 1e3


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_presets(path):
    preset = yaml.safe_load(path.read_text())
    assert set(preset) == {"defaults", "name", "id", "kwargs", "reward"}
    assert preset["name"] == path.stem
    assert preset["reward"] is None
    env = gymnasium.make(preset["id"], **preset["kwargs"])
    env.reset(seed=0)
    assert env.step(env.action_space.sample())[4].keys() == {"context", "next_context"}


def test_presets_hold_the_papers_contexts():
    def contexts(stem):
        path = next(path for path in PRESETS if path.stem == stem)
        env = gymnasium.make(ENV_ID, **yaml.safe_load(path.read_text())["kwargs"])
        values = [dict(context.attributes) for context in env.get_wrapper_attr("contexts")]
        return values, env.unwrapped.force, env.get_wrapper_attr("chain")

    assert contexts("cartpole_hard")[:2] == ([{"actuation": 1.0}, {"actuation": -1.0}], 20.0)
    for stem, chi in (("cartpole_soft01", 0.1), ("cartpole_soft03", 0.3), ("cartpole_soft05", 0.5)):
        assert contexts(stem)[:2] == ([{"actuation": 1.0}, {"actuation": chi}], 40.0)
    six, force, _ = contexts("cartpole_six")
    assert ([item["actuation"] for item in six], force) == ([-1.0, -0.5, 0.05, 0.1, 0.5, 1.0], 40.0)
    sixteen, _, ring = contexts("cartpole_sixteen")
    assert sixteen[0] == {"friction": 0.1, "gravity": 9.82, "cart_mass": 0.5, "force": 40.0}
    assert sixteen[6] == {"friction": 0.1, "gravity": 50.0, "cart_mass": 5.0, "force": 40.0}
    assert sixteen[11] == {"friction": 0.0, "gravity": 9.82, "cart_mass": 5.0, "force": 20.0}
    assert len({tuple(item.items()) for item in sixteen}) == 16
    assert (ring.matrix[0, 15], ring.matrix[15, 0], ring.matrix[3, 3]) == pytest.approx((0.2, 0.2, 0.6))


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"forse": 3.0}, "did you mean 'force'"),
        ({"contexts": [{"grvity": 3.0}]}, "did you mean 'gravity'"),
        ({"contexts": [{"gravity": 3.0}], "actuation": [1.0]}, "not both"),
        ({"chain": {"kind": "stripes"}, "actuation": [1.0, 0.5, 0.1]}, "over 2 contexts, but 3"),
        ({"horizon": 0}, "horizon must be above 0"),
        ({"start_mean": [0.0, 1.0]}, "start_mean"),
    ],
)
def test_wrong_settings_are_refused(kwargs, words):
    with pytest.raises(ConfigError, match=words):
        make_cartpole(**kwargs)


def test_picture_shows_the_contexts_of_the_episode():
    env = gymnasium.make(ENV_ID, render_mode="rgb_array", chain={"kind": "schedule", "sequence": [0] * 50 + [1] * 50})
    env.reset(seed=0)
    for step in range(100):
        env.get_wrapper_attr("show_belief")([1.0, 0.0] if step < 25 else [0.0, 1.0])
        env.step(np.ones(1, np.float32))
    frame = env.render()
    assert frame.shape == (340, 600, 3)
    context, belief = frame[310], frame[330]
    assert (context[60:320] == context_color(0)).all()
    assert (context[335:] == context_color(1)).all()
    assert (belief[60:185] == context_color(0)).all()
    assert (belief[200:] == context_color(1)).all()
    assert gymnasium.make(ENV_ID).unwrapped.render() is None


def test_pole_tip_is_drawn_where_the_angle_says():
    env = CartPoleSwingUp(render_mode="rgb_array")
    env.reset(options={"state": (5.0, 0.0, np.pi / 2.0, 0.0)})  # a positive angle leans to the left
    red = np.argwhere((env.render().astype(int) - np.array([214, 69, 65]) == 0).all(-1))
    assert abs(red[:, 1].min() - (300 - 0.645 * 160)) < 4
    assert abs(np.median(red[:, 0]) - 150) < 4


def test_batched_contexts_take_the_environments_names():
    batch = BatchSwitchingEnv(CartPolePhysics(), [{"gravity": 5.0}], num_envs=2)
    assert isinstance(batch.physics, CartPolePhysics)
    assert mbrl_hdp.envs.BatchSwitchingEnv is BatchSwitchingEnv
