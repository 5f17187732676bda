"""Planners by config: they plan well, keep to themselves, resume bit for bit; one context is plain mbrl-lib."""

import dataclasses
import sys
from types import SimpleNamespace

import mbrl.models
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from mbrl.planning import TrajectoryOptimizerAgent, create_trajectory_optim_agent_for_model
from mbrl.planning.trajectory_opt import Optimizer
from omegaconf import OmegaConf

from mbrl_hdp.control.optimizers import ColoredCemOptimizer, RandomShootingOptimizer
from mbrl_hdp.control.planner import make_planner
from mbrl_hdp.control.tracker import BeliefTracker
from mbrl_hdp.errors import CheckpointError, ConfigError
from mbrl_hdp.hooks import load_registry
from mbrl_hdp.seeding import sub_seed
from mbrl_hdp_planners import CemConfig, CustomConfig, IcemConfig, MbrlCemConfig

_REGISTRY = load_registry()
PLANNERS = {name: _REGISTRY.get("planner", name).spec.config for name in _REGISTRY.names("planner")}

START = np.array([0.4, -0.6], dtype=np.float32)
PACKED = np.concatenate([START, [0.0, 0.7, 0.0, 0.3]]).astype(np.float32)
STOCK_CEM = {"num_iterations": 3, "elite_ratio": 0.2, "population_size": 40, "alpha": 0.1}


def reward(act, next_obs):
    return -(next_obs[..., 1:2] - 0.8).square()


def never(act, next_obs):
    return torch.zeros_like(next_obs[..., :1], dtype=torch.bool)


def config_of(name, **settings):
    common = {"horizon": 4, "num_particles": 3, **settings}
    if name == "custom":
        common["kwargs"] = dict(STOCK_CEM)
    elif name == "random_shooting":
        common.setdefault("population_size", 300)
    else:
        common.setdefault("population_size", 60)
    return PLANNERS[name](**common)


def planner_of(config, model, seed=0):
    return make_planner(config, model, reward, never, [-1.0], [1.0], seed)


ALL = sorted(PLANNERS)


@pytest.mark.parametrize("name", ALL)
def test_every_planner_finds_nearly_the_best_plan(affine_model, name):
    model = affine_model(initial=(1.0,), transition=((1.0,),), slots=(0,), max_contexts=1, noise_std=0.0)
    planner = planner_of(config_of(name), model)
    packed = np.append(START, np.float32(1.0))
    plan = torch.from_numpy(planner.plan(packed)).float()
    assert plan.abs().max() <= 1.0
    steps = torch.cartesian_prod(*[torch.linspace(-1, 1, 11)] * 4)[..., None]
    best = planner.model_env.evaluate_action_sequences(steps, packed, 1).max()
    value, idle = planner.model_env.evaluate_action_sequences(torch.stack([plan, torch.zeros(4, 1)]), packed, 1)
    assert best - value < 0.1 * (best - idle)


def test_one_context_is_plain_mbrl_lib_cem(affine_model):
    model = affine_model(initial=(1.0,), transition=((1.0,),), slots=(0,), max_contexts=1, noise_std=0.0)
    # Fast evaluation, packed observations and a stream of its own against the plain agent: same seeds, same plans.
    ours = planner_of(CustomConfig(horizon=5, num_particles=2, kwargs=dict(STOCK_CEM)), model, seed=7)
    spaces = SimpleNamespace(observation_space=Box(-9, 9, (2,)), action_space=Box(-1.0, 1.0, (1,)))
    plain_env = mbrl.models.ModelEnv(spaces, model, never, reward, torch.Generator().manual_seed(0))
    agent_config = OmegaConf.create(
        {
            "_target_": "mbrl.planning.TrajectoryOptimizerAgent",
            "_recursive_": False,
            "planning_horizon": 5,
            "action_lb": "???",
            "action_ub": "???",
            "optimizer_cfg": {"_target_": "mbrl.planning.CEMOptimizer", "device": "cpu", **STOCK_CEM},
        }
    )
    plain = create_trajectory_optim_agent_for_model(plain_env, agent_config, num_particles=2)
    assert type(plain) is TrajectoryOptimizerAgent
    torch.manual_seed(sub_seed(7, "planner", "optimizer"))
    obs = START
    for _ in range(4):
        expected = plain.act(obs)
        found = ours.act(np.append(obs, np.float32(1.0)))
        np.testing.assert_allclose(found, expected, atol=1e-5)
        obs = obs + np.float32(0.1) * found
    np.testing.assert_allclose(ours.plan(np.append(obs, np.float32(1.0))), plain.plan(obs), atol=1e-5)


def test_stock_agents_work_on_the_belief_environment(affine_model):
    env = planner_of(CemConfig(horizon=3), affine_model()).model_env
    optimizer = {"_target_": "mbrl.planning.MPPIOptimizer", "num_iterations": 2, "population_size": 20, "gamma": 1.0}
    agent_config = OmegaConf.create(
        {
            "_target_": "mbrl.planning.TrajectoryOptimizerAgent",
            "_recursive_": False,
            "planning_horizon": 3,
            "action_lb": "???",
            "action_ub": "???",
            "optimizer_cfg": {**optimizer, "sigma": 1.0, "beta": 0.9, "device": "cpu"},
        }
    )
    act = create_trajectory_optim_agent_for_model(env, agent_config, num_particles=2).act(PACKED)
    assert act.shape == (1,)


@pytest.mark.parametrize("name", ALL)
def test_planners_leave_the_global_generator_and_their_config_alone(affine_model, name):
    config = config_of(name)
    before_config = dataclasses.asdict(config)
    planner = planner_of(config, affine_model())
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    planner.act(PACKED)
    planner.plan(PACKED)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert dataclasses.asdict(config) == before_config


@pytest.mark.parametrize("name", ALL)
def test_planners_do_not_depend_on_the_global_generator(affine_model, name):
    torch.manual_seed(1)
    one = planner_of(config_of(name), affine_model(), seed=5).act(PACKED)
    torch.manual_seed(2)
    two = planner_of(config_of(name), affine_model(), seed=5).act(PACKED)
    other = planner_of(config_of(name), affine_model(), seed=6).act(PACKED)
    np.testing.assert_array_equal(one, two)
    assert not np.array_equal(one, other)


@pytest.mark.parametrize("has_noise", [False, True])
@pytest.mark.parametrize("name", ALL)
def test_a_resumed_planner_acts_bit_for_bit(affine_model, name, has_noise):
    config, model = config_of(name, replan_freq=2, has_noise=has_noise), affine_model()
    planner = planner_of(config, model)
    for _ in range(3):
        planner.act(PACKED)
    state = planner.state_dict()
    assert all(isinstance(value, torch.Tensor) for value in state.values())
    expected = [planner.act(PACKED) for _ in range(4)]
    resumed = planner_of(config, model, seed=99)
    resumed.act(PACKED)
    resumed.load_state_dict(state)
    for act in expected:
        np.testing.assert_array_equal(resumed.act(PACKED), act)


def test_a_state_of_another_planner_is_refused(affine_model):
    planner = planner_of(CemConfig(horizon=4), affine_model())
    with pytest.raises(CheckpointError, match="other settings"):
        planner.load_state_dict(planner_of(CemConfig(horizon=5), affine_model()).state_dict())
    with pytest.raises(CheckpointError, match="other settings"):
        planner.load_state_dict({})
    icem = planner_of(IcemConfig(horizon=4), affine_model())
    icem.act(PACKED)
    with pytest.raises(CheckpointError, match="other settings"):
        planner.load_state_dict(icem.state_dict())


@pytest.mark.parametrize("name", ALL)
def test_an_episode_begins_afresh(affine_model, name):
    """Queued actions, iCEM's elites and MPPI's mean must not outlive `reset`."""
    config, model = config_of(name, replan_freq=3), affine_model()
    used, fresh = planner_of(config, model), planner_of(config, model)
    for _ in range(4):
        used.act(-PACKED)
    used.reset()
    generators = {key: value for key, value in used.state_dict().items() if key in ("stream", "model_generator")}
    fresh.load_state_dict({**fresh.state_dict(), **generators})
    for _ in range(3):
        np.testing.assert_array_equal(used.act(PACKED), fresh.act(PACKED))


def test_a_new_horizon_keeps_the_settings(affine_model):
    planner = planner_of(CemConfig(horizon=4, keep_last_solution=False), affine_model())
    planner.reset(planning_horizon=6)
    assert planner.plan(PACKED).shape == (6, 1)
    assert not planner.optimizer.previous_solution.any()


def test_the_next_plan_starts_from_the_last_one_shifted(affine_model):
    planner = planner_of(CemConfig(horizon=4), affine_model())
    plan = planner.plan(PACKED)
    shifted = planner.optimizer.previous_solution.numpy()
    np.testing.assert_array_equal(shifted[:3], plan[1:])
    np.testing.assert_array_equal(shifted[3], [0.0])


def test_a_refitted_model_is_used_at_once(affine_model):
    model, mirrored = affine_model(noise_std=0.0), affine_model(noise_std=0.0, gains=(-0.5, 0.4))
    planner = planner_of(CemConfig(horizon=3), model)
    before = planner.act(PACKED)
    planner.set_model(mirrored)
    planner.reset()
    assert np.sign(planner.act(PACKED)) == -np.sign(before)


def test_icem_needs_no_population_of_a_given_multiple(affine_model):
    config = IcemConfig(horizon=3, population_size=37, elite_ratio=0.13, num_particles=5)
    planner = planner_of(config, affine_model())
    sizes = []
    planner.act(PACKED, optimizer_callback=lambda plans, values, iteration: sizes.append(len(plans)))
    planner.act(PACKED, optimizer_callback=lambda plans, values, iteration: sizes.append(len(plans)))
    assert any(size % 5 for size in sizes)


def test_the_paper_s_update_rule():
    seen = []
    optimizer = ColoredCemOptimizer(
        *(2, 5000, 7, 0.3, 0.2, 0.0, 0.5), lower_bound=[[-50.0], [-50.0]], upper_bound=[[50.0], [50.0]]
    )
    torch.manual_seed(0)
    start = torch.tensor([[3.0], [-2.0]])
    found = optimizer.optimize(
        lambda plans: -(plans - 10.0).square().sum((1, 2)), start, lambda plans, values, _: seen.append((plans, values))
    )
    mean, variance = start, torch.full((2, 1), (0.2 * 50.0) ** 2)
    for plans, values in seen:
        elites = plans[values.argsort(descending=True)[:7]]
        mean = 0.7 * mean + 0.3 * elites.mean(0)
        variance = 0.7 * variance + 0.3 * elites.var(0, correction=0)
    torch.testing.assert_close(found, mean)
    # The spread of the second iteration's candidates tells that the variance was updated by the same rule.
    first_plans, first_values = seen[0]
    elites = first_plans[first_values.argsort(descending=True)[:7]]
    expected = 0.7 * (0.2 * 50.0) ** 2 + 0.3 * elites.var(0, correction=0)
    torch.testing.assert_close(seen[1][0][1:].var(0), expected, rtol=6 * (2 / 5000) ** 0.5, atol=0.0)


def test_the_noise_is_an_ar1_process():
    optimizer = ColoredCemOptimizer(
        *(1, 40_001, 5, 1.0, 0.02, 0.0, 0.8), lower_bound=[[-1.0]] * 5, upper_bound=[[1.0]] * 5
    )
    torch.manual_seed(0)
    noise = optimizer._candidates(torch.zeros(5, 1), torch.ones(5, 1) * 0.02)[1:, :, 0].double() / 0.02
    lag = (torch.arange(5)[:, None] - torch.arange(5)).abs()
    correlation = noise.T @ noise / len(noise)
    assert (correlation - 0.8**lag).abs().max() < 6 * (2 / len(noise)) ** 0.5


def test_the_best_candidate_can_be_asked_for():
    settings = {
        "num_iterations": 3,
        "population_size": 30,
        "num_elites": 5,
        "update_rate": 0.5,
        "initial_std": 1.0,
        "min_std": 0.0,
        "noise_color": 0.0,
        "lower_bound": [[-1.0]] * 2,
        "upper_bound": [[1.0]] * 2,
    }
    seen = []

    def value(plans):
        seen.append(plans)
        return -(plans - 0.3).square().sum((1, 2))

    torch.manual_seed(0)
    found = ColoredCemOptimizer(**settings, return_mean=False).optimize(value)
    candidates = torch.cat(seen)
    torch.testing.assert_close(found, candidates[(candidates - 0.3).square().sum((1, 2)).argmin()])


def test_optimizers_pass_over_values_that_are_no_numbers():
    def value(plans):
        return torch.where(plans[:, 0, 0] > 0, torch.nan, plans[:, 0, 0] - 5.0)

    bounds = {"lower_bound": [[-1.0]], "upper_bound": [[1.0]]}
    torch.manual_seed(0)
    assert RandomShootingOptimizer(200, **bounds).optimize(value)[0, 0] <= 0
    assert ColoredCemOptimizer(3, 200, 10, 1.0, 1.0, 0.0, 0.0, **bounds).optimize(value)[0, 0] <= 0


@pytest.mark.parametrize("color", [0.0, 0.7])
def test_random_shooting_stays_within_bounds_and_takes_the_best(color):
    optimizer = RandomShootingOptimizer(500, [[-1.0, 2.0]] * 3, [[0.0, 6.0]] * 3, noise_color=color)
    seen = []

    def value(plans):
        seen.append(plans)
        return -(plans - torch.tensor([-0.5, 3.0])).square().sum((1, 2))

    torch.manual_seed(0)
    previous = torch.tensor([[-0.5, 3.0]] * 3)
    torch.testing.assert_close(optimizer.optimize(value, previous), previous)
    assert seen[0].amin((0, 1)).tolist() >= [-1.0, 2.0]
    assert seen[0].amax((0, 1)).tolist() <= [0.0, 6.0]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (CemConfig(population_size=1), "planner.population_size must be at least 2"),
        (CemConfig(noise_color=1.0), "planner.noise_color must be below 1"),
        (CemConfig(context_mode="path"), "did you mean 'paths'"),
        (CemConfig(num_elites=200), "planner.num_elites=200 exceeds planner.population_size=128"),
        (CemConfig(horizon=3, replan_freq=4), "planner.replan_freq=4 exceeds planner.horizon=3"),
        (CustomConfig(optimizer="mbrl.planning.NoSuch"), "planner.optimizer='mbrl.planning.NoSuch' cannot be imported"),
        (CustomConfig(optimizer="no_such_package.Thing"), "cannot be imported"),
        (CustomConfig(optimizer="nothing"), "is no import path"),
        (CustomConfig(optimizer="collections.OrderedDict"), "has no method optimize"),
        (CustomConfig(kwargs={"no_such": 1}), "planner.kwargs"),
    ],
)
def test_wrong_settings_are_refused(affine_model, config, message):
    with pytest.raises(ConfigError) as caught:
        planner_of(config, affine_model())
    assert message in str(caught.value)


class Bang(Optimizer):
    """A user's own optimiser: full speed one way or the other."""

    def __init__(self, speed, lower_bound, upper_bound, device):
        self.plans = torch.stack([speed * torch.tensor(lower_bound), speed * torch.tensor(upper_bound)])

    def optimize(self, obj_fun, x0=None, callback=None):
        return self.plans[obj_fun(self.plans).argmax()]


def test_a_user_s_optimizer_comes_by_its_import_path(affine_model, monkeypatch):
    monkeypatch.setitem(sys.modules, "somebodys_planners", SimpleNamespace(Bang=Bang, __name__="somebodys_planners"))
    config = CustomConfig(horizon=3, optimizer="somebodys_planners.Bang", kwargs={"speed": 0.75})
    planner = planner_of(config, affine_model(noise_std=0.0))
    assert abs(float(planner.act(PACKED)[0])) == 0.75
    assert float(planner.act(PACKED * [1, -4, 1, 1, 1, 1])[0]) == -float(planner.act(PACKED)[0])


def test_unbounded_actions_are_refused(affine_model):
    with pytest.raises(ConfigError, match="bounded actions"):
        make_planner(CemConfig(), affine_model(), reward, never, [-np.inf], [np.inf])


def episode_return(model, planner, seed, num_steps=15):
    """Play a world that the two-context model describes exactly; the agent only sees observations."""
    world = torch.Generator().manual_seed(seed)
    truth, tracker = WORLD["model"], BeliefTracker(model)
    state = truth.reset(torch.from_numpy(START)[None], world)
    planner.reset()
    packed, total = tracker.reset(START.astype(np.float64)), 0.0
    for _ in range(num_steps):
        act = planner.act(packed)
        next_obs, _, _, state = truth.sample(torch.from_numpy(act)[None].float(), state, rng=world)
        total += float(reward(None, next_obs))
        packed = tracker.update(act, next_obs[0].double().numpy())
    return total


WORLD = {}


def test_contexts_pay_and_blindness_does_not(affine_model):
    """A context-blind agent (one context that is the average of both) cannot pass the threshold."""
    gains = (0.9, -0.9)
    sticky = ((0.95, 0.05), (0.05, 0.95))
    aware = affine_model(initial=(0.5, 0.5), transition=sticky, noise_std=0.05, gains=gains)
    WORLD["model"] = aware
    blind = affine_model(
        initial=(1.0,), transition=((1.0,),), slots=(0,), max_contexts=1, noise_std=0.05, gains=(sum(gains) / 2,)
    )
    returns = {}
    for name, model in (("aware", aware), ("blind", blind)):
        planner = planner_of(CemConfig(horizon=4, population_size=32, num_iterations=2, num_particles=4), model)
        returns[name] = np.mean([episode_return(model, planner, seed) for seed in range(4)])
    threshold = -12.0
    assert returns["aware"] > threshold > returns["blind"], returns


def test_mbrl_lib_s_own_cem_is_reachable_unchanged(affine_model):
    planner = planner_of(MbrlCemConfig(horizon=3), affine_model())
    assert type(planner.optimizer.optimizer) is __import__("mbrl").planning.CEMOptimizer
