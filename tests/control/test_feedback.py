"""Plans with feedback (`planner.context_mode=feedback`): one action for each context that may be known by then."""

import numpy as np
import pytest
import torch

from mbrl_hdp.control.model import BeliefModel
from mbrl_hdp.control.model_env import BeliefModelEnv
from mbrl_hdp.control.planner import make_planner
from mbrl_hdp.errors import ConfigError, DataError
from mbrl_hdp.hooks import load_registry
from mbrl_hdp.inference.dynamics import ContextDynamics
from mbrl_hdp_planners import CemConfig, MbrlCemConfig

_REGISTRY = load_registry()
PLANNERS = {name: _REGISTRY.get("planner", name).spec.config for name in _REGISTRY.names("planner")}

START = np.array([0.4, -0.6], dtype=np.float32)
HALF = np.concatenate([START, [0.0, 0.5, 0.0, 0.5]]).astype(np.float32)
HELD = {"transition": ((1.0, 0.0), (0.0, 1.0)), "gains": (0.5, -0.4), "noise_std": 0.0}


def reward(act, next_obs):
    return -(next_obs[..., 1:2] - 0.3).square() - 0.01 * act.square().sum(-1, keepdim=True)


def never(act, next_obs):
    return torch.zeros_like(next_obs[..., :1], dtype=torch.bool)


def env_of(model, context_mode="feedback", act_dim=1, has_noise=False):
    generator = torch.Generator().manual_seed(0)
    low, high = [-1.0] * act_dim, [1.0] * act_dim
    return BeliefModelEnv(BeliefModel(model), reward, never, low, high, generator, context_mode, has_noise)


def planner_of(model, **settings):
    config = CemConfig(**{"horizon": 3, "num_particles": 8, "context_mode": "feedback", **settings})
    return make_planner(config, model, reward, never, [-1.0], [1.0], 0)


def test_the_compiled_rollout_takes_plans_that_react(network_model):
    dynamics = network_model().dynamics
    generator = torch.Generator().manual_seed(0)
    paths = torch.tensor([[0, 1, 1, 2], [0, 1, 2, 2], [0, 1, 2, 3], [3, 1, 2, 2]])
    by_slot = torch.randn(35, 4, 4, 2, generator=generator)
    before = torch.cat([torch.zeros(4, 1, dtype=torch.long), paths[:, :-1]], 1)
    acts = torch.stack([by_slot[:, torch.arange(4), slots] for slots in before])
    obs = torch.randn(3, generator=generator)
    with torch.no_grad():
        found = dynamics.begin_rollout(obs, paths)(acts)
        expected = ContextDynamics.rollout_blocks(dynamics, obs, acts, paths)
        for number, path in enumerate(paths):
            alone = dynamics.begin_rollout(obs, path[None])(acts[number])
            assert torch.equal(found[:, number], alone[:, 0])
        with pytest.raises(DataError, match=r"\(4, rows, 4, 2\)"):
            dynamics.begin_rollout(obs, paths)(acts[:3])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert (found[2, 1] - found[2, 2]).abs().max() == 0, "a step may not depend on the context that acts only later"
    assert (found[2, 0] - found[2, 1]).abs().max() > 0.01


@pytest.mark.parametrize("has_noise", [False, True])
def test_the_same_action_for_every_context_is_a_plain_plan(network_model, has_noise):
    plans = 2 * torch.rand(20, 5, 2, generator=torch.Generator().manual_seed(3)) - 1
    packed = np.concatenate([[0.1, 0.2, 0.3], [0.0, 0.6, 0.0, 0.4]]).astype(np.float32)
    plain = env_of(network_model(), "paths", 2, has_noise).evaluate_action_sequences(plans, packed, 6)
    found = env_of(network_model(), "feedback", 2, has_noise).evaluate_action_sequences(
        plans.repeat(1, 1, 4), packed, 6
    )
    assert torch.equal(found, plain)


def test_a_step_s_action_is_that_of_the_context_expected_after_the_one_before(affine_model):
    # Contexts take turns, so after slot 1 the plan expects slot 3, and the other way round.
    model = affine_model(transition=((0.0, 1.0), (1.0, 0.0)), noise_std=0.0)
    packed = np.concatenate([START, [0.0, 1.0, 0.0, 0.0]]).astype(np.float32)
    plans = 2 * torch.rand(9, 3, 4, generator=torch.Generator().manual_seed(1)) - 1
    found = env_of(model).evaluate_action_sequences(plans, packed, 2)
    acts = torch.stack([plans[:, 0, 1], plans[:, 1, 3], plans[:, 2, 1]], 1)[..., None]
    expected = env_of(model, "paths").evaluate_on_paths(acts, torch.from_numpy(START), torch.tensor([[1, 3, 1]]))
    torch.testing.assert_close(found, expected)


def test_plans_of_another_width_are_refused(affine_model):
    with pytest.raises(DataError, match="context_mode=feedback a step of a plan has 4 numbers, got 1"):
        env_of(affine_model()).evaluate_action_sequences(torch.zeros(3, 2, 1), HALF, 2)
    with pytest.raises(DataError, match="context_mode=paths a step of a plan has 1 numbers, got 4"):
        env_of(affine_model(), "paths").evaluate_action_sequences(torch.zeros(3, 2, 4), HALF, 2)


def test_feedback_finds_what_no_plain_plan_can_do(affine_model):
    # The belief is even and contexts stay, so whoever has seen a step knows; a plain plan must do for both to the end.
    model = affine_model(**HELD)
    grid = torch.linspace(-1, 1, 9)
    plain = torch.cartesian_prod(grid, grid, grid)[..., None]
    best_plain = float(env_of(model, "paths").evaluate_action_sequences(plain, HALF, 8).max())
    first, one, other, one_again, other_again = torch.cartesian_prod(*[grid] * 5).unbind(1)
    zero = torch.zeros_like(first)
    steps = [(first, first), (one, other), (one_again, other_again)]
    reacting = torch.stack([torch.stack([zero, a, zero, b], 1) for a, b in steps], 1)
    env = env_of(model)
    best = float(env.evaluate_action_sequences(reacting, HALF, 8).max())
    assert best > best_plain + 0.1 * abs(best_plain)
    plan = torch.from_numpy(planner_of(model, num_iterations=8).plan(HALF)).float()
    assert plan.shape == (3, 4)
    assert float(env.evaluate_action_sequences(plan[None], HALF, 8)) > best - 0.02 * abs(best)


def test_actions_that_wait_in_the_queue_react_to_what_is_known_when_they_are_taken(affine_model):
    model = affine_model(**HELD)
    planner = planner_of(model, replan_freq=3)
    planner.act(HALF)
    queued = planner.state_dict()["queued_actions"]
    assert queued.shape == (2, 4)
    for slot, planned in zip((3, 1), queued.numpy(), strict=True):
        belief = np.eye(4, dtype=np.float32)[slot]
        act = planner.act(np.concatenate([START, belief]))
        assert act.shape == (1,)
        assert act[0] == planned[slot]


@pytest.mark.parametrize("name", sorted(set(PLANNERS) - {"custom"}))
def test_a_resumed_planner_acts_bit_for_bit(affine_model, name):
    settings = {"horizon": 4, "num_particles": 3, "context_mode": "feedback", "population_size": 40, "replan_freq": 2}
    planner = make_planner(PLANNERS[name](**settings), affine_model(), reward, never, [-1.0], [1.0], 0)
    for _ in range(3):
        planner.act(HALF)
    resumed = make_planner(PLANNERS[name](**settings), affine_model(), reward, never, [-1.0], [1.0], 99)
    resumed.load_state_dict(planner.state_dict())
    for _ in range(4):
        assert np.array_equal(planner.act(HALF), resumed.act(HALF))


def test_a_model_with_other_contexts_is_used_at_once_and_one_with_other_slots_refused(affine_model):
    planner = planner_of(affine_model(**HELD))
    planner.act(HALF)
    planner.set_model(affine_model(**{**HELD, "gains": (0.5, -0.4, 0.2)} | three_contexts()))
    assert planner.act(HALF).shape == (1,)
    with pytest.raises(ConfigError, match="for 4 slots, the model 6 slots"):
        planner.set_model(affine_model(max_contexts=6))
    plain = make_planner(MbrlCemConfig(horizon=2), affine_model(), reward, never, [-1.0], [1.0])
    assert plain.plan(HALF).shape == (2, 1)


def three_contexts():
    even = (1 / 3, 1 / 3, 1 / 3)
    return {"initial": even, "transition": (even, even, even), "slots": (0, 1, 3)}
