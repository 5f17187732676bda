"""Drone take-off: one physics in every backend, contexts that really act, and the promises of every environment."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import yaml

from mbrl_hdp.envs.drone import make_drone
from mbrl_hdp.envs.drone_backends import PybulletBackend, vehicle_description
from mbrl_hdp.envs.drone_physics import DronePhysics, TakeOffConfig, euler_angles
from mbrl_hdp.errors import ConfigError

BACKENDS = ["pybullet", "vector"]
PRESETS = Path(__file__).parents[2] / "conf" / "env"
HAS_PACKAGE = importlib.util.find_spec("gym_pybullet_drones") is not None


def random_acts(seed, num=80):
    return np.random.default_rng(seed).uniform(-1.0, 1.0, (num, 4))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "numbers", [{}, {"mass": 0.03, "arm": 0.031, "control_rate": 48, "angular_damping": 0.1, "inertia_z": 2.6e-5}]
)
def test_vector_tracks_pybullet(rollout, seed, numbers):
    acts = random_acts(seed)
    ours, _, _, _ = rollout(make_drone(backend="vector", **numbers), acts, seed)
    theirs, _, _, _ = rollout(make_drone(backend="pybullet", **numbers), acts, seed)
    assert np.abs(theirs[1:]).max(axis=0).min() > 1e-3  # every coordinate moved
    relative = np.abs(ours - theirs).max(axis=0) / np.abs(theirs).max(axis=0)
    assert relative.max() < 1e-6


@pytest.mark.skipif(not HAS_PACKAGE, reason="gym-pybullet-drones is not installed (it is on no package index)")
def test_package_has_the_same_physics(rollout):
    acts = random_acts(3)
    ours, _, _, _ = rollout(make_drone(backend="vector"), acts, 1)
    env = make_drone(backend="gym_pybullet_drones")
    rollout_before = [env.reset(seed=5), *(env.step(act) for act in acts[:40])]
    assert len(rollout_before) == 41
    theirs, _, _, _ = rollout(env, acts, 1)  # after a first episode: the reset must leave nothing behind
    relative = np.abs(ours - theirs).max(axis=0) / np.abs(theirs).max(axis=0)
    assert relative.max() < 1e-3


@pytest.mark.skipif(HAS_PACKAGE, reason="gym-pybullet-drones is installed")
def test_missing_package_says_how_to_install_it():
    with pytest.raises(ConfigError, match=r"clone .*gym-pybullet-drones.*pip install --no-deps"):
        make_drone(backend="gym_pybullet_drones")


def climb_after_one_step(factor):
    """v_z after three damped physics steps of a level drone whose motors run at hover (1 + 0.05 factor)."""
    speed = 0.0
    for _ in range(3):
        speed += (9.8 * ((1 + 0.05 * factor) ** 2 - 1) - speed * (0.04 + 0.04 * abs(speed))) / 240
    return speed


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("actuation", [1.0, -1.0, 0.3])
def test_actuation_scales_the_thrust(rollout, backend, actuation):
    obs, rewards, _, _ = rollout(make_drone(backend=backend, actuation=[actuation]), np.full((1, 4), 0.8))
    expected = climb_after_one_step(0.8 * actuation)
    assert obs[1, 8] == pytest.approx(expected, rel=1e-9)
    assert rewards[0] == pytest.approx(expected, rel=1e-9)
    assert np.abs(obs[1, [0, 1, 3, 4, 5, 6, 7, 9, 10, 11]]).max() < 1e-12


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("actuation", [1.0, -1.0, 0.3])
def test_actuation_scales_the_torques(rollout, backend, actuation):
    # Propellers 2 and 3 (+y) faster: roll; 1 and 2 (-x): pitch; 1 and 3: yaw.
    for pattern, axis, arm, inertia in (
        ([-1, -1, 1, 1], 0, 0.028, 1.4e-5),
        ([-1, 1, 1, -1], 1, 0.028, 1.4e-5),
        ([-1, 1, -1, 1], 2, 7.94e-12 / 3.16e-10, 2.17e-5),
    ):
        act = 0.01 * np.array(pattern, dtype=float)
        obs, _, _, _ = rollout(make_drone(backend=backend, actuation=[actuation]), act[None])
        # Force difference to first order in the action: 8 F_hover 0.05 a = 2 m g 0.05 a in all.
        expected = actuation * 2 * 0.027 * 9.8 * 0.05 * 0.01 * arm / inertia * 3 / 240
        assert obs[1, 9 + axis] == pytest.approx(expected, rel=1e-2)
        assert np.abs(np.delete(obs[1, 9:], axis)).max() < 1e-3 * abs(expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_actuation_may_differ_between_motors(rollout, backend):
    weak = [[1.0, 1.0, 0.2, 1.0]]
    full, _, _, _ = rollout(make_drone(backend=backend, actuation=[1.0]), np.array([[0.5, 0.5, 0.1, 0.5]]))
    single, _, _, _ = rollout(make_drone(backend=backend, actuation=weak), np.full((1, 4), 0.5))
    np.testing.assert_allclose(single, full, atol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
def test_report_is_what_acted(rollout, backend):
    obs, _, contexts, _ = rollout(make_drone(backend=backend), np.full((80, 4), 0.7), seed=2)
    is_lifted = np.diff(obs[:, 8]) > 0
    assert 10 < contexts.sum() < 70
    np.testing.assert_array_equal(is_lifted, contexts == 0)


def test_full_thrust_return(rollout):
    """Full thrust with the context known, the ceiling found for this task: 39.88."""
    for backend in BACKENDS:
        _, rewards, _, _ = rollout(make_drone(backend=backend, actuation=[1.0]), np.ones((80, 4)))
        assert rewards.sum() == pytest.approx(39.88, abs=0.005)


def test_copies_of_a_batch_do_not_mix():
    physics = DronePhysics()
    rng = np.random.default_rng(0)
    acts, actuation = rng.uniform(-1, 1, (10, 7, 4)), rng.uniform(-1, 1, 7)
    together = physics.start(7, rng)
    for act in acts:
        kept = together.body.copy()
        following = physics.step(together, act, {"actuation": actuation})
        np.testing.assert_array_equal(together.body, kept)  # the old state is left alone
        together = following
    for index in range(7):
        alone = physics.start(1, rng)
        for act in acts:
            alone = physics.step(alone, act[index : index + 1], {"actuation": actuation[index : index + 1]})
        np.testing.assert_allclose(alone.body[0], together.body[index], rtol=1e-12, atol=1e-15)


def test_close_disconnects():
    import pybullet

    backend = PybulletBackend(TakeOffConfig())
    client = backend._client
    assert pybullet.isConnected(client)
    backend.close()
    backend.close()
    assert not pybullet.isConnected(client)


def test_angles_are_continued_beyond_a_turn(rollout):
    acts = np.tile(0.18 * np.array([-1.0, -1.0, 1.0, 1.0]), (80, 1))
    for backend in BACKENDS:
        free, _, _, _ = rollout(make_drone(backend=backend, actuation=[1.0], horizon=80), acts)
        engine, _, _, _ = rollout(make_drone(backend=backend, actuation=[1.0], attitude="engine"), acts)
        assert free[-1, 3] > math.pi + 0.5
        assert np.abs(np.diff(free[:, 3])).max() < 0.2
        assert np.abs(engine[:, 3]).max() <= math.pi
        np.testing.assert_allclose(np.exp(1j * free[:, 3]), np.exp(1j * engine[:, 3]), atol=1e-12)


def test_euler_angles_are_the_engines():
    import pybullet

    rng = np.random.default_rng(0)
    quaternions = rng.normal(size=(200, 4))
    pitched = [pybullet.getQuaternionFromEuler((0.0, s * math.pi / 2, yaw)) for s in (1, -1) for yaw in (0.4, -2.0)]
    quaternions = np.concatenate([quaternions, pitched])
    quaternions /= np.linalg.norm(quaternions, axis=1, keepdims=True)
    expected = np.array([pybullet.getEulerFromQuaternion(row) for row in quaternions])
    np.testing.assert_allclose(np.exp(1j * euler_angles(quaternions)), np.exp(1j * expected), atol=1e-7)


def test_thousand_random_episodes():
    batch = make_drone(backend="vector").as_batch(1000)
    rng = np.random.default_rng(0)
    obs, _ = batch.reset(seed=0)
    for _ in range(80):
        obs, reward, terminated, truncated, info = batch.step(batch.sample_actions(rng))
        assert np.isfinite(obs).all()
        assert np.isfinite(reward).all()
        assert not terminated.any()
    assert truncated.all()
    assert set(info["context"]) == {0, 1}
    assert np.abs(obs[:, :3]).max() < 10  # one second of free fall is 5 m
    assert np.abs(obs[:, 6:]).max() < 40


def test_random_episodes_on_the_engine():
    env = make_drone()
    for episode in range(30):
        env.reset(seed=episode)
        steps = [env.step(act) for act in random_acts(episode)]
        assert all(np.isfinite(step[0]).all() and math.isfinite(step[1]) for step in steps)
        assert steps[-1][3]
    env.close()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"backend": "pybulet"}, "did you mean 'pybullet'"),
        ({"mas": 1.0}, "did you mean .*'mass'"),
        ({"mass": -1.0}, r"drone\.mass must be above 0"),
        ({"control_rate": 70}, r"control_rate must divide drone\.physics_rate \(240\), got 70"),
        ({"inertia_z": 3e-5}, r"inertia_z must be at most twice drone\.inertia_xy"),
        ({"attitude": "wrapped"}, "did you mean 'unwrapped'"),
        ({"contexts": [{"gravity": 1.0}]}, r"contexts\[0\]\.gravity is unknown"),
        ({"backend": "gym_pybullet_drones", "mass": 0.03}, "vehicle of its own with mass=0.027"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        make_drone(**settings)


def test_vehicle_description_follows_the_config():
    text = vehicle_description(TakeOffConfig(mass=0.031, arm=0.04))
    assert 'mass value="0.031"' in text
    assert 'xyz="0.04 -0.04 0"' in text
    assert text.count('<mass value="0"/>') == 5


@pytest.mark.parametrize("name", ["drone", "drone_vector"])
def test_presets(name):
    preset = yaml.safe_load((PRESETS / f"{name}.yaml").read_text())
    assert set(preset) - {"report_kwargs"} == {"defaults", "name", "id", "kwargs", "reward"}
    assert preset.get("report_kwargs") == ({"backend": "pybullet"} if name.endswith("vector") else None)
    assert preset["name"] == name
    env = gymnasium.make(f"mbrl_hdp.envs:{preset['id']}", **preset["kwargs"])
    core = env.unwrapped
    assert core.config == TakeOffConfig()
    assert core.backend == {"drone": "pybullet", "drone_vector": "vector"}[name]
    assert env.get_wrapper_attr("num_contexts") == 2
    env.close()
