"""The built-in transition models: scales, densities, kinematics, sampling, slots, and what they refuse."""

import math

import pytest
import torch
from scipy.spatial.transform import Rotation
from scipy.stats import multivariate_normal

from mbrl_hdp.errors import ConfigError, DataError
from mbrl_hdp.hooks.registry import PluginSource, load_registry
from mbrl_hdp.inference.dynamics import ContextDynamics
from mbrl_hdp.testing import check_dynamics
from mbrl_hdp.types import TaskSpec
from mbrl_hdp_dynamics import CartpoleConfig, DeltaMlpConfig, DroneConfig, LinearConfig, VehicleConfig
from mbrl_hdp_dynamics.delta_mlp import build_cartpole, build_delta_mlp
from mbrl_hdp_dynamics.drone import build_drone, euler_rates
from mbrl_hdp_dynamics.linear import build_linear
from mbrl_hdp_dynamics.vehicle import build_vehicle

SMALL = {"hidden_sizes": [8]}


def build(name, max_contexts=3, **changes):
    """Build one of the structures by a short name, in double precision."""
    makers = {
        "delta_mlp": lambda: build_delta_mlp(DeltaMlpConfig(**SMALL, **changes), task(max_contexts, 3, 2)),
        "angles": lambda: build_delta_mlp(DeltaMlpConfig(**SMALL, angle_columns=[2, 0]), task(max_contexts, 3, 2)),
        "deep": lambda: build_delta_mlp(DeltaMlpConfig(hidden_sizes=[7, 6]), task(max_contexts, 3, 2)),
        "no_actions": lambda: build_delta_mlp(DeltaMlpConfig(**SMALL), task(max_contexts, 3, 0)),
        "linear": lambda: build_linear(LinearConfig(**changes), task(max_contexts, 3, 2)),
        "linear_full": lambda: build_linear(LinearConfig(noise="full", **changes), task(max_contexts, 3, 2)),
        "cartpole": lambda: build_cartpole(CartpoleConfig(**SMALL), task(max_contexts, 4, 1)),
        "drone": lambda: build_drone(DroneConfig(**SMALL, **changes), task(max_contexts, 12, 4)),
        "vehicle": lambda: build_vehicle(VehicleConfig(**SMALL), task(max_contexts, 12, 2)),
        "vehicle_all": lambda: build_vehicle(VehicleConfig(**SMALL, density="all"), task(max_contexts, 12, 2)),
    }
    model = makers[name]().double()
    if name == "linear_full":
        with torch.no_grad():
            model.lower.copy_(torch.randn(model.lower.shape, generator=torch.Generator().manual_seed(7)))
    with torch.no_grad():
        noise = 0.3 * torch.randn(model.raw_log_std.shape, generator=torch.Generator().manual_seed(8))
        model.raw_log_std.add_(noise - 1.0)
    return model


ALL = [
    "delta_mlp",
    "angles",
    "deep",
    "no_actions",
    "linear",
    "linear_full",
    "cartpole",
    "drone",
    "vehicle",
    "vehicle_all",
]


def task(max_contexts, obs_dim, act_dim, dt=0.1):
    return TaskSpec(max_contexts, obs_dim, act_dim, dt=dt, seed=5)


def make_rows(model, rows=40, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    spread = 0.5 + torch.arange(model.obs_dim, dtype=dtype)
    obs = spread * torch.randn(rows, model.obs_dim, generator=generator).to(dtype)
    act = 2.0 * torch.rand(rows, model.act_dim, generator=generator).to(dtype) - 1.0
    change = 0.1 * spread * torch.randn(rows, model.obs_dim, generator=generator).to(dtype)
    return obs, act, obs + change + 0.05


def test_the_plugin_registers_five_structures():
    import mbrl_hdp_dynamics

    source = PluginSource("dynamics", "mbrl-hdp", "0", lambda: mbrl_hdp_dynamics)
    registry = load_registry(sources=[source], strict=True)
    assert registry.names("dynamics") == ["auto", "cartpole", "delta_mlp", "drone", "linear", "sparse", "vehicle"]
    assert registry.build_dynamics("cartpole", task(2, 4, 1)).heads.weights[0].shape == (2, 128, 6)
    assert registry.build_dynamics("drone", task(2, 12, 4)).heads.weights[0].shape == (2, 128, 20)
    assert registry.build_dynamics("vehicle", task(2, 12, 2)).heads.weights[0].shape == (2, 64, 6)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("max_contexts", [1, 3])
def test_conformance(name, max_contexts):
    check_dynamics(build(name, max_contexts).float())


@pytest.mark.parametrize("name", ALL)
def test_gradients_equal_finite_differences(name):
    model = build(name, 2)
    data = make_rows(model, 6)
    model.set_normaliser(*data)
    names, values = zip(*model.named_parameters(), strict=True)

    def run(*parameters):
        with torch.nn.utils.stateless._reparametrize_module(model, dict(zip(names, parameters, strict=True))):
            return model.log_prob(*data), model.log_prior()

    assert torch.autograd.gradcheck(run, values)


def scaled_copies(name):
    """One model twice: on data, and on the same data in other units, with the same weights."""
    first, second = build(name), build(name)
    data = make_rows(first)
    units = torch.tensor([1e-6, 1e6, 3.0], dtype=torch.float64)
    shift = torch.tensor([5e-6, -2e6, 7.0], dtype=torch.float64)
    other = (data[0] * units + shift, data[1] * 1e3 - 4.0, data[2] * units + shift)
    first.set_normaliser(*data)
    second.set_normaliser(*other)
    return first, second, data, other, units


@pytest.mark.parametrize("name", ["delta_mlp", "deep", "no_actions", "linear", "linear_full"])
def test_units_change_the_density_by_the_jacobian_only(name):
    first, second, data, other, units = scaled_copies(name)
    expected = first.log_prob(*data) - units.log().sum()
    torch.testing.assert_close(second.log_prob(*other), expected, rtol=1e-8, atol=1e-8)
    context = torch.arange(len(data[0])) % 3
    predicted = first.predict(*data[:2], context) * units + torch.tensor([5e-6, -2e6, 7.0], dtype=torch.float64)
    torch.testing.assert_close(second.predict(*other[:2], context), predicted, rtol=1e-8, atol=1e-12)


def test_density_integrates_to_one_in_data_units():
    model = build_delta_mlp(DeltaMlpConfig(**SMALL), task(2, 1, 1)).double()
    obs, act, next_obs = make_rows(model, 200)
    model.set_normaliser(obs, act, 1e3 * next_obs)
    grid = torch.linspace(-2e4, 2e4, 40_001, dtype=torch.float64)[:, None]
    density = model.log_prob(obs[:1].expand_as(grid), act[:1].expand_as(grid), grid).exp()
    torch.testing.assert_close(density.sum(0) * float(grid[1] - grid[0]), torch.ones(2, dtype=torch.float64))


@pytest.mark.parametrize("name", ["delta_mlp", "linear", "linear_full"])
def test_constant_columns_are_ignored_as_inputs_and_exact_as_targets(name):
    model = build(name)
    obs, act, next_obs = make_rows(model)
    obs[:, 1], act[:, 0], next_obs[:, 1] = 4.0, 1.0, 4.25
    model.set_normaliser(obs, act, next_obs)
    log_prob = model.log_prob(obs, act, next_obs)
    assert bool(log_prob.isfinite().all())
    context = torch.zeros(len(obs), dtype=torch.long)
    for draw in (model.predict(obs, act, context), model.sample(obs, act, context)):
        torch.testing.assert_close(draw[:, 1], next_obs[:, 1])
    obs[:, 1], next_obs[:, 1] = 9.0, 1.0
    torch.testing.assert_close(model.log_prob(obs, act, next_obs), log_prob)
    model.log_prob(obs, act, next_obs).sum().backward()
    assert all(bool(value.grad.isfinite().all()) for value in model.parameters())


def test_missing_rows_do_not_reach_the_scales():
    model, other = build("cartpole"), build("cartpole")
    data = make_rows(model)
    other.set_normaliser(*data)
    broken = [torch.cat([column, column[:3]]) for column in data]
    broken[0][-1, 2] = broken[1][-2, 0] = broken[2][-3, 1] = torch.nan
    model.set_normaliser(*broken)
    for mine, theirs in zip(model.buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(mine, theirs)
    with pytest.raises(DataError, match="at least one transition"):
        model.set_normaliser(*(column[-1:] for column in broken))


def test_scales_and_weights_are_saved():
    model, other = build("drone"), build_drone(DroneConfig(**SMALL), task(3, 12, 4)).double()
    data = make_rows(model)
    model.set_normaliser(*data)
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(other.log_prob(*data), model.log_prob(*data))


@pytest.mark.parametrize("name", ["delta_mlp", "cartpole", "drone", "vehicle_all"])
def test_single_precision_agrees_with_double(name):
    model = build(name)
    data = make_rows(model)
    model.set_normaliser(*data)
    exact = model.log_prob(*data)
    rough = model.float().log_prob(*(column.float() for column in data))
    assert rough.dtype == torch.float32
    torch.testing.assert_close(rough.double(), exact, rtol=1e-3, atol=1e-3)
    context = torch.zeros(len(data[0]), dtype=torch.long)
    assert model.predict(*data[:2], context).dtype == torch.float64, "predictions follow the data"


def test_noise_starts_at_the_targets_spread_and_stays_above_its_floor():
    model = build_drone(DroneConfig(), task(2, 12, 4))
    torch.testing.assert_close(model.noise_std(), torch.ones(2, 6))
    with torch.no_grad():
        model.raw_log_std.fill_(-30.0)
    torch.testing.assert_close(model.noise_std(), torch.full((2, 6), 0.2))


def test_sharpening_lowers_the_floor_for_good():
    config = DroneConfig(final_std_floor=0.01)
    model, loaded = build_drone(config, task(2, 12, 4)), build_drone(config, task(2, 12, 4))
    with torch.no_grad():
        model.raw_log_std.fill_(-30.0)
    model.sharpen()
    torch.testing.assert_close(model.noise_std(), torch.full((2, 6), 0.01))
    loaded.load_state_dict(model.state_dict())
    torch.testing.assert_close(loaded.noise_std(), model.noise_std())
    model.reset_slots(torch.tensor([1]))
    torch.testing.assert_close(model.noise_std()[1], torch.ones(6))
    blunt = build_drone(DroneConfig(std_floor=0.1, final_std_floor=0.3), task(2, 12, 4))
    blunt.sharpen()
    assert float(blunt.std_floor) == pytest.approx(0.1), "the floor never rises"


def test_log_prior_is_the_normal_of_all_weights():
    model = build("deep")
    values = torch.cat([value.flatten() for value in model.heads.parameters()])
    expected = torch.distributions.Normal(0.0, 0.1).log_prob(values).sum()
    torch.testing.assert_close(model.log_prior(), expected)
    assert abs(float(build("cartpole", 20).heads.weights[0].detach().std()) - 0.1) < 0.015


def relevant(name, rows):
    """The columns of next_obs that carry noise."""
    return {"drone": rows[..., 6:], "vehicle": rows[..., 2:6], "vehicle_all": rows[..., 2:6]}.get(name, rows)


@pytest.mark.parametrize("name", ALL)
def test_sample_has_the_mean_of_predict_and_the_density_of_log_prob(name):
    """Mean and second moments of draws within 6 standard errors of what predict and log_prob say."""
    model, draws = build(name), 20_000
    data = make_rows(model)
    model.set_normaliser(*data)
    for k in (0, 2):
        obs, act = (column[3:4].expand(draws, -1) for column in data[:2])
        context = torch.full((draws,), k)
        drawn = relevant(name, model.sample(obs, act, context, torch.Generator().manual_seed(k))).detach()
        mean = relevant(name, model.predict(obs[:1], act[:1], context[:1]))[0].detach()
        covariance = noise_covariance(model)[k]
        deviation = (drawn - mean) / covariance.diagonal().sqrt()
        assert float(deviation.mean(0).abs().max()) < 6.0 / math.sqrt(draws)
        correlation = covariance / torch.outer(covariance.diagonal(), covariance.diagonal()).sqrt()
        assert float((deviation.T @ deviation / draws - correlation).abs().max()) < 6.0 * math.sqrt(2.0 / draws)
        if name != "vehicle_all":
            normal = multivariate_normal(mean.numpy(), covariance.numpy())
            again = model.sample(obs[:5], act[:5], context[:5], torch.Generator().manual_seed(1))
            found = model.log_prob(obs[:5], act[:5], again)[:, k]
            expected = normal.logpdf(relevant(name, again).detach().numpy())
            torch.testing.assert_close(found, torch.from_numpy(expected))


def noise_covariance(model):
    """Per context, in data units, by a route of its own: whiten unit vectors and invert."""
    scale = model.target_scaler.scale
    factor = torch.diag_embed(1.0 / model.noise_std())
    if hasattr(model, "lower"):
        factor = (torch.eye(len(scale)) + model.lower.tril(-1)) @ factor
    factor = factor / scale
    return torch.linalg.inv(factor.mT @ factor).detach()


@pytest.mark.parametrize("name", ALL)
def test_predict_in_own_context_equals_each_context_alone(name):
    model = build(name)
    obs, act, next_obs = make_rows(model, 30)
    model.set_normaliser(obs, act, next_obs)
    context = torch.arange(30) * 7 % 3
    alone = torch.stack([model.predict(obs, act, torch.full((30,), k)) for k in range(3)])
    expected = alone[context, torch.arange(30)]
    torch.testing.assert_close(model.predict(obs, act, context), expected)
    with torch.no_grad():
        torch.testing.assert_close(model.predict(obs, act, context), expected)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("is_learning", [False, True])
def test_blocks_equal_rows(name, is_learning):
    model = build(name)
    obs, act, next_obs = make_rows(model, 30)
    model.set_normaliser(obs, act, next_obs)
    context = torch.tensor([2, 0, 2, 1, 0])
    blocks = obs.view(5, 6, -1)
    with torch.set_grad_enabled(is_learning):
        own = model.predict_blocks(blocks, act.view(5, 6, -1), context)
        rows = model.predict(obs, act, context.repeat_interleave(6))
        torch.testing.assert_close(own.flatten(0, 1), rows)
        shared = model.predict_blocks(blocks, act[:6], context)
        rows = model.predict(obs, act[:6].repeat(5, 1), context.repeat_interleave(6))
        torch.testing.assert_close(shared.flatten(0, 1), rows)
        drawn = model.sample_blocks(blocks, act[:6], context, torch.Generator().manual_seed(3))
        flat = model.sample(obs, act[:6].repeat(5, 1), context.repeat_interleave(6), torch.Generator().manual_seed(3))
        torch.testing.assert_close(drawn.flatten(0, 1), flat)


def test_a_model_without_blocks_of_its_own_sorts_nothing_wrong():
    """The methods that every plugin inherits, with more than one action, on plans of their own and on shared ones."""
    model = build("vehicle")
    obs, act, next_obs = make_rows(model, 30)
    assert act.shape[1] > 1
    model.set_normaliser(obs, act, next_obs)
    blocks, context = obs.view(5, 6, -1), torch.tensor([2, 0, 2, 1, 0])
    for acts, rows in ((act.view(5, 6, -1), act), (act[:6], act[:6].repeat(5, 1))):
        found = ContextDynamics.predict_blocks(model, blocks, acts, context)
        torch.testing.assert_close(found.flatten(0, 1), model.predict(obs, rows, context.repeat_interleave(6)))
        drawn = ContextDynamics.sample_blocks(model, blocks, acts, context, torch.Generator().manual_seed(3))
        flat = model.sample(obs, rows, context.repeat_interleave(6), torch.Generator().manual_seed(3))
        torch.testing.assert_close(drawn.flatten(0, 1), flat)


@pytest.mark.parametrize("name", ALL)
def test_slots_are_their_parameters_rows_and_can_be_reset(name):
    model = build(name, 4)
    data = make_rows(model)
    model.set_normaliser(*data)
    before = model.log_prob(*data).detach()
    order = torch.tensor([2, 0, 3, 1])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter[order].clone())
    torch.testing.assert_close(model.log_prob(*data).detach(), before[:, order])
    model.reset_slots(torch.tensor([3, 1]), torch.Generator().manual_seed(0))
    after = model.log_prob(*data).detach()
    torch.testing.assert_close(after[:, [0, 2]], before[:, order][:, [0, 2]])
    assert not bool(torch.isclose(after[:, [1, 3]], before[:, order][:, [1, 3]]).all(0).any())
    torch.testing.assert_close(model.noise_std()[[1, 3]], torch.ones_like(model.noise_std()[[1, 3]]))
    assert all(value.shape[0] == 4 for value in model.parameters())


@pytest.mark.parametrize("name", ALL)
def test_some_slots_equal_all_slots(name):
    model = build(name, 4)
    data = make_rows(model)
    model.set_normaliser(*data)
    slots = torch.tensor([3, 1])
    some, every = model.log_prob_slots(*data, slots), model.log_prob(*data)[:, slots]
    torch.testing.assert_close(some, every)
    weight = torch.randn(some.shape, generator=torch.Generator().manual_seed(0), dtype=some.dtype)
    values = list(model.parameters())
    both = [torch.autograd.grad((weight * part).sum(), values) for part in (some, every)]
    torch.testing.assert_close(*both)
    assert bool((both[0][0][[0, 2]] == 0).all())


def test_the_seed_of_the_task_decides_the_start():
    first, again = (build_cartpole(CartpoleConfig(**SMALL), task(3, 4, 1)) for _ in range(2))
    other = build_cartpole(CartpoleConfig(**SMALL), TaskSpec(3, 4, 1, seed=6))
    assert torch.equal(first.heads.weights[0], again.heads.weights[0])
    assert not torch.equal(first.heads.weights[0], other.heads.weights[0])


def test_cartpole_sees_sine_and_cosine_and_moves_the_angle():
    model = build("cartpole")
    obs, act, next_obs = make_rows(model)
    features = model.features(obs, act)
    expected = [obs[:, 0], obs[:, 1], obs[:, 2].sin(), obs[:, 2].cos(), obs[:, 3], act[:, 0]]
    torch.testing.assert_close(features, torch.stack(expected, -1))
    model.set_normaliser(obs, act, next_obs)
    turn = torch.tensor([0.0, 0.0, 2.0 * torch.pi, 0.0], dtype=torch.float64)
    context = torch.zeros(len(obs), dtype=torch.long)
    torch.testing.assert_close(model.predict(obs + turn, act, context), model.predict(obs, act, context) + turn)


def test_angles_of_delta_mlp_in_any_order():
    model = build("angles")
    obs, act, _ = make_rows(model)
    expected = [obs[:, 0].sin(), obs[:, 0].cos(), obs[:, 1], obs[:, 2].sin(), obs[:, 2].cos(), act[:, 0], act[:, 1]]
    torch.testing.assert_close(model.features(obs, act), torch.stack(expected, -1))


@pytest.mark.parametrize(
    "attitude",
    [(0.0, 0.0, 0.0), (0.02, -0.03, 1.2), (0.9, -1.1, 2.5), (-2.4, 1.3, -0.7)],
    ids=["level", "near", "a", "b"],
)
def test_euler_rates_equal_the_rotation_by_finite_differences(attitude):
    """Turn a rotation matrix by the world angular velocity for a short time and read the angles off again."""
    spin, time = torch.tensor([0.7, -1.9, 1.1], dtype=torch.float64), 1e-6
    start = Rotation.from_euler("ZYX", attitude[::-1])
    turned = Rotation.from_rotvec(time * spin.numpy()) * start
    rates = torch.from_numpy((turned.as_euler("ZYX") - start.as_euler("ZYX"))[::-1].copy() / time)
    torch.testing.assert_close(
        euler_rates(torch.tensor(attitude, dtype=torch.float64), spin), rates, rtol=1e-4, atol=1e-4
    )


def test_euler_rates_stay_finite_at_the_gimbal_lock():
    pitch = torch.tensor([math.pi / 2, -math.pi / 2, math.pi / 2 + 1e-9])
    attitude = torch.stack([0 * pitch, pitch, 0 * pitch], -1)
    rates = euler_rates(attitude, torch.ones(3, 3))
    assert float(rates.abs().max()) < 102.0


@pytest.mark.parametrize("integrate", ["next", "current"])
def test_drone_integrates_position_and_attitude(integrate):
    model = build("drone", integrate=integrate)
    obs, act, next_obs = make_rows(model)
    model.set_normaliser(obs, act, next_obs)
    context = torch.arange(len(obs)) % 3
    found = model.sample(obs, act, context)
    moving = found[:, 6:] if integrate == "next" else obs[:, 6:]
    torch.testing.assert_close(found[:, :3], obs[:, :3] + 0.1 * moving[:, :3])
    torch.testing.assert_close(found[:, 3:6], obs[:, 3:6] + 0.1 * euler_rates(obs[:, 3:6], moving[:, 3:]))
    moved = next_obs.clone()
    moved[:, :6] += 3.0
    torch.testing.assert_close(model.log_prob(obs, act, moved), model.log_prob(obs, act, next_obs))


def test_vehicle_moves_every_car_by_the_same_network():
    model = build("vehicle")
    obs, act, next_obs = make_rows(model)
    model.set_normaliser(obs, act, next_obs)
    context = torch.arange(len(obs)) % 3
    found = model.predict(obs, act, context)
    for car in (slice(0, 6), slice(6, 12)):
        torch.testing.assert_close(found[:, car][:, :2], obs[:, car][:, :2] + 0.1 * obs[:, car][:, 2:4])
    swapped = torch.cat([obs[:, 6:], obs[:, :6]], -1)
    as_ego = model.predict(swapped, torch.zeros_like(act), context)
    torch.testing.assert_close(as_ego[:, :6], found[:, 6:])
    moved = next_obs.clone()
    moved[:, :2] += 1.0
    moved[:, 6:] -= 2.0
    torch.testing.assert_close(model.log_prob(obs, act, moved), model.log_prob(obs, act, next_obs))


def test_vehicle_density_of_all_cars_is_the_sum():
    model = build("vehicle_all")
    data = make_rows(model)
    model.set_normaliser(*data)
    one = build_vehicle(VehicleConfig(**SMALL), task(3, 6, 2)).double()
    one.load_state_dict(model.state_dict())
    obs, act, next_obs = data
    ego = one.log_prob(obs[:, :6], act, next_obs[:, :6])
    social = one.log_prob(obs[:, 6:], torch.zeros_like(act), next_obs[:, 6:])
    torch.testing.assert_close(model.log_prob(*data), ego + social)


@pytest.mark.parametrize("name", ALL)
def test_rows_of_the_wrong_width_are_refused(name):
    model = build(name)
    obs, act, _ = make_rows(model, 4)
    context = torch.zeros(4, dtype=torch.long)
    wide = torch.cat([obs, obs], -1)
    with pytest.raises(DataError, match="obs has"):
        model.log_prob(wide, act, wide)
    with pytest.raises(DataError, match="act has"):
        model.predict(obs, torch.cat([act, obs], -1), context)
    with pytest.raises(DataError, match="obs has"):
        model.sample(wide, act, context)
    with pytest.raises(DataError, match=r"\[0, 3\)"):
        model.predict(obs, act, context + 3)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: build_cartpole(CartpoleConfig(), task(2, 5, 1)), "obs_dim 5"),
        (lambda: build_drone(DroneConfig(), task(2, 12, 3)), "act_dim 3"),
        (lambda: build_drone(DroneConfig(), task(2, 12, 4, dt=None)), r"dynamics\.dt"),
        (lambda: build_vehicle(VehicleConfig(), task(2, 12, 2, dt=None)), r"dynamics\.dt"),
        (lambda: build_vehicle(VehicleConfig(), task(2, 13, 2)), "obs_dim 13"),
        (lambda: build_vehicle(VehicleConfig(density="social"), task(2, 12, 2)), r"dynamics\.density"),
        (lambda: build_delta_mlp(DeltaMlpConfig(angle_columns=[3]), task(2, 3, 1)), r"dynamics\.angle_columns"),
        (lambda: build_delta_mlp(DeltaMlpConfig(angle_columns=[1, 1]), task(2, 3, 1)), r"dynamics\.angle_columns"),
        (lambda: build_delta_mlp(DeltaMlpConfig(hidden_sizes=[0]), task(2, 3, 1)), r"dynamics\.hidden_sizes\[0\]"),
        (lambda: build_linear(LinearConfig(noise="block"), task(2, 3, 1)), r"dynamics\.noise"),
        (lambda: build_linear(LinearConfig(std_floor=1.0), task(2, 3, 1)), r"dynamics\.std_floor"),
    ],
)
def test_what_does_not_fit_is_refused(make, words):
    with pytest.raises(ConfigError, match=words):
        make()


def test_the_setting_for_dt_wins_over_the_task():
    assert build_drone(DroneConfig(dt=0.5), task(2, 12, 4, dt=None)).dt == 0.5
    assert build_vehicle(VehicleConfig(dt=0.25), task(2, 12, 2)).dt == 0.25
