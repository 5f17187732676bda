"""The compiled rollout against the one that steps."""

import numpy as np
import pytest
import torch

from mbrl_hdp.errors import DataError
from mbrl_hdp.inference.dynamics import ContextDynamics
from mbrl_hdp.types import TaskSpec
from mbrl_hdp_dynamics.delta_mlp import DeltaMlpConfig, build_delta_mlp
from mbrl_hdp_dynamics.drone import DroneConfig, build_drone
from mbrl_hdp_dynamics.rollout_kernels import CompiledRollout, _sine_cosine
from mbrl_hdp_dynamics.vehicle import VehicleConfig, build_vehicle


def cases(dynamics, num_plans, num_paths, horizon, seed=0):
    generator = torch.Generator().manual_seed(seed)
    acts = 2 * torch.rand(num_plans, horizon, dynamics.act_dim, generator=generator) - 1
    paths = torch.randint(dynamics.max_contexts, (num_paths, horizon), generator=generator)
    return torch.randn(dynamics.obs_dim, generator=generator), acts, paths


@pytest.mark.parametrize(("num_plans", "num_paths", "horizon"), [(1, 1, 1), (7, 5, 6), (530, 2, 3)])
def test_expected_rollouts_equal_plain_steps(network_model, num_plans, num_paths, horizon):
    dynamics = network_model().dynamics
    obs, acts, paths = cases(dynamics, num_plans, num_paths, horizon)
    with torch.no_grad():
        states = dynamics.begin_rollout(obs, paths)(acts)
        expected = ContextDynamics.rollout_blocks(dynamics, obs, acts, paths)
    assert states.shape == (horizon, num_paths, num_plans, 3)
    torch.testing.assert_close(states, expected, rtol=1e-4, atol=1e-5)


def kinematic(structure):
    """Networks of a drone or of two cars that change much in a step, with scales from data."""
    name, _, integrate = structure.partition("-")
    task = TaskSpec(3, 12, 4 if name == "drone" else 2, seed=4, dt=0.1)
    if name == "drone":
        dynamics = build_drone(DroneConfig(hidden_sizes=[13], std_floor=0.0, integrate=integrate), task)
    else:
        dynamics = build_vehicle(VehicleConfig(hidden_sizes=[13], std_floor=0.0), task)
    generator = torch.Generator().manual_seed(5)
    obs, change = torch.randn(2, 50, 12, generator=generator)
    dynamics.set_normaliser(obs + 1.0, 2.0 * torch.randn(50, task.act_dim, generator=generator), obs + 1.0 + change)
    with torch.no_grad():
        for value in dynamics.heads.parameters():
            value.mul_(4.0)
        dynamics.raw_log_std.fill_(-1.0)
    return dynamics


@pytest.mark.parametrize("structure", ["drone-next", "drone-current", "vehicle"])
def test_drone_and_vehicle_rollouts_equal_plain_steps(structure):
    dynamics = kinematic(structure)
    for num_plans, num_paths, horizon, pitch in ((1, 1, 1, 0.3), (530, 5, 4, -0.4), (7, 2, 3, np.pi / 2)):
        obs, acts, paths = cases(dynamics, num_plans, num_paths, horizon)
        obs[4] = pitch  # at pi/2 a drone is in gimbal lock
        with torch.no_grad():
            rollout = dynamics.begin_rollout(obs, paths)
            assert isinstance(rollout, CompiledRollout)
            expected = ContextDynamics.rollout_blocks(dynamics, obs, acts, paths)
        torch.testing.assert_close(rollout(acts), expected, rtol=1e-3, atol=2e-4)


def test_every_car_has_noise_of_its_own():
    dynamics = kinematic("vehicle")
    obs, acts, path = cases(dynamics, 1, 1, 1)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        drawn = dynamics.begin_rollout(obs, path.expand(20_000, -1), generator)(acts)[0, :, 0].double()
        expected = dynamics.begin_rollout(obs, path)(acts)[0, 0, 0].double()
        std = (dynamics.noise_std()[path[0, 0]] * dynamics.target_scaler.scale).double()
    wanted = torch.cat([torch.zeros(2), std, torch.zeros(2), std])
    assert ((drawn.mean(0) - expected).abs() <= 6 * wanted / 20_000**0.5 + 1e-5).all()
    torch.testing.assert_close(drawn.std(0), wanted.double(), rtol=0.03, atol=1e-5)
    assert torch.corrcoef(drawn[:, [2, 8]].T)[0, 1].abs() < 6 / 20_000**0.5


def test_paths_with_a_common_beginning_are_each_right(network_model):
    dynamics = network_model().dynamics
    obs, acts, _ = cases(dynamics, 9, 1, 5)
    paths = torch.tensor([[0, 1, 1, 2, 3], [0, 1, 1, 2, 3], [0, 1, 2, 2, 3], [3, 1, 1, 2, 3], [0, 1, 2, 2, 0]])
    with torch.no_grad():
        states = dynamics.begin_rollout(obs, paths)(acts)
        for number, path in enumerate(paths):
            alone = dynamics.begin_rollout(obs, path[None])(acts)
            assert torch.equal(states[:, number], alone[:, 0])


def test_drawn_rollouts_have_the_law_of_plain_steps(network_model):
    dynamics = network_model(noise_std=0.3).dynamics
    obs, acts, path = cases(dynamics, 1, 1, 3)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        fused = dynamics.begin_rollout(obs, path.expand(20_000, -1), generator)(acts)[:, :, 0].double()
        plain = ContextDynamics.rollout_blocks(dynamics, obs, acts, path.expand(20_000, -1), generator)[
            :, :, 0
        ].double()
    for one, other in (
        (fused, plain),
        (fused.square(), plain.square()),
        (fused[1:] * fused[:-1], plain[1:] * plain[:-1]),
    ):
        error = ((one.var(1) + other.var(1)) / one.shape[1]).sqrt()
        assert ((one.mean(1) - other.mean(1)).abs() < 6 * error).all()
    assert (fused.std(1) > 0.05).all()


def test_gradients_and_deep_networks_take_plain_steps(network_model):
    dynamics = network_model().dynamics
    obs, acts, paths = cases(dynamics, 4, 2, 3)
    start = obs.clone().requires_grad_()
    dynamics.begin_rollout(start, paths)(acts).sum().backward()
    assert start.grad is not None
    assert start.grad.abs().min() > 0
    deep = build_delta_mlp(DeltaMlpConfig(hidden_sizes=[5, 4]), TaskSpec(3, 2, 1))
    obs, acts, paths = cases(deep, 4, 2, 3)
    with torch.no_grad():
        expected = ContextDynamics.rollout_blocks(deep, obs, acts, paths)
        torch.testing.assert_close(deep.begin_rollout(obs, paths)(acts), expected)


def test_a_context_that_does_not_exist_is_refused(network_model):
    dynamics = network_model().dynamics
    obs, _, paths = cases(dynamics, 4, 2, 3)
    with torch.no_grad(), pytest.raises(DataError, match=r"\[0, 4\)"):
        dynamics.begin_rollout(obs, paths + 3)


def test_wrong_shapes_are_refused(network_model):
    dynamics = network_model().dynamics
    obs, acts, paths = cases(dynamics, 4, 2, 3)
    with torch.no_grad():
        with pytest.raises(DataError, match="obs_dim=3"):
            dynamics.begin_rollout(obs[:2], paths)
        with pytest.raises(DataError, match=r"\(rows, 3, 2\)"):
            dynamics.begin_rollout(obs, paths)(acts[:, :2])


def test_a_begun_rollout_keeps_its_noise(network_model):
    dynamics = network_model().dynamics
    obs, acts, paths = cases(dynamics, 4, 2, 3)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        rollout = dynamics.begin_rollout(obs, paths, generator)
        first = rollout(acts)
        assert torch.equal(rollout(acts.flip(0)).flip(2), first)
        assert not torch.equal(dynamics.begin_rollout(obs, paths, generator)(acts), first)


def test_sine_and_cosine_to_single_precision():
    angle = np.concatenate([np.linspace(-300, 300, 20_001), np.arange(-9, 10) * np.pi / 4]).astype(np.float32)
    sine, cosine = np.empty_like(angle), np.empty_like(angle)
    _sine_cosine(angle, sine, cosine, len(angle))
    np.testing.assert_allclose(sine, np.sin(angle.astype(np.float64)), atol=2e-7)
    np.testing.assert_allclose(cosine, np.cos(angle.astype(np.float64)), atol=2e-7)
