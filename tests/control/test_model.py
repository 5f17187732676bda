"""The belief model: both modes have the distribution of the learned model; the fast evaluation equals mbrl-lib's."""

import itertools

import mbrl.models
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

from mbrl_hdp.belief.codec import BeliefCodec
from mbrl_hdp.control.model import BeliefModel, FilteringBeliefModel
from mbrl_hdp.control.model_env import WORST_VALUE, BeliefModelEnv
from mbrl_hdp.control.paths import draw_paths
from mbrl_hdp.errors import ConfigError, DataError

START = np.array([0.4, -0.6], dtype=np.float32)
BELIEF = np.array([0.0, 0.7, 0.0, 0.3], dtype=np.float32)
PACKED = np.concatenate([START, BELIEF])
PLAN = torch.tensor([[0.9], [-0.5], [0.3], [0.8]])


def reward(act, next_obs):
    assert next_obs.shape[-1] in (2, 3), "the belief must be stripped"
    return next_obs[..., :1].cos() - 0.3 * next_obs[..., 1:2].square() + 0.1 * act[..., :1]


def never(act, next_obs):
    return torch.zeros_like(next_obs[..., :1], dtype=torch.bool)


def far(act, next_obs):
    return next_obs[..., 1:2].abs() > 0.7


def make_env(model, termination=never, seed=0, act_dim=1, **settings):
    generator = torch.Generator().manual_seed(seed)
    return BeliefModelEnv(
        BeliefModel(model), reward, termination, [-1.0] * act_dim, [1.0] * act_dim, generator, **settings
    )


def roll(model, num, seed):
    """Return states `T num S` of a plan from one packed observation."""
    generator = torch.Generator().manual_seed(seed)
    state = model.reset(np.tile(PACKED, (num, 1)), generator)
    states = []
    for act in PLAN:
        packed, _, _, state = model.sample(act.expand(num, 1), state, rng=generator)
        states.append(BeliefCodec(2, 4).unpack(packed)[0])
    return torch.stack(states).double()


def enumerated_mean(model):
    """Sum over all paths of contexts; the dynamics are affine, so expectations pass through."""
    chain, slots = model.chain, model.slots.tolist()
    means = torch.zeros(len(PLAN), 2, dtype=torch.float64)
    for path in itertools.product(range(2), repeat=len(PLAN)):
        weight, state = torch.tensor(BELIEF)[slots[path[0]]].double(), torch.tensor(START)[None]
        for step, context in enumerate(path):
            if step:
                weight = weight * chain.transition[path[step - 1], context].double()
            state = model.dynamics.predict(state, PLAN[step][None], torch.tensor([slots[context]]))
            path_mean = state[0].double()
            means[step] += weight * path_mean if step == len(PLAN) - 1 else 0.0
    return means[-1]


def assert_same_mean(one, other):
    """Two samples along the first axis, within six standard errors."""
    error = (one.var(0) / len(one) + other.var(0) / len(other)).sqrt()
    assert ((one.mean(0) - other.mean(0)).abs() < 6 * error).all()


def test_both_modes_have_the_law_of_the_states(affine_model):
    model = affine_model()
    drawn = roll(BeliefModel(model), 20_000, seed=1)
    filtered = roll(FilteringBeliefModel(model), 20_000, seed=2)
    for one, other in zip(drawn, filtered, strict=True):
        assert_same_mean(one, other)
        assert_same_mean(one.square(), other.square())
    # Contexts leave their mark on pairs of steps: the distribution of whole trajectories, not only of single states.
    for step in range(len(PLAN) - 1):
        assert_same_mean(drawn[step] * drawn[step + 1], filtered[step] * filtered[step + 1])
    exact, last = enumerated_mean(model), drawn[-1]
    assert ((last.mean(0) - exact).abs() < 6 * last.std(0) / len(last) ** 0.5).all()


def test_the_carried_belief_is_the_online_filter(affine_model):
    model = affine_model()
    imagined = FilteringBeliefModel(model)
    generator = torch.Generator().manual_seed(3)
    first = np.concatenate([START, [0.0, *model.initial[:1], 0.0, *model.initial[1:]]]).astype(np.float32)
    state = imagined.reset(first[None], generator)
    online = model.online_filter()
    online.reset(START)
    for act in PLAN:
        packed, _, _, state = imagined.sample(act[None], state, rng=generator)
        obs, belief = BeliefCodec(2, 4).unpack(packed)
        expected = online.update(act.numpy(), obs[0].numpy())
        np.testing.assert_allclose(belief[0, [1, 3]], expected, rtol=1e-4, atol=1e-6)
        assert belief[0, [0, 2]].tolist() == [0.0, 0.0]


def test_deterministic_imagination_takes_the_mean_over_the_belief(affine_model):
    model = affine_model()
    imagined = FilteringBeliefModel(model)
    packed, _, _, _ = imagined.sample(PLAN[:1], imagined.reset(PACKED[None]), deterministic=True)
    heads = [model.dynamics.predict(torch.tensor(START)[None], PLAN[:1], torch.tensor([slot])) for slot in (1, 3)]
    torch.testing.assert_close(packed[:, :2], 0.7 * heads[0] + 0.3 * heads[1])


def test_planning_steps_carry_a_one_hot_context(affine_model):
    model = BeliefModel(affine_model())
    generator = torch.Generator().manual_seed(0)
    packed, _, _, state = model.sample(PLAN[:1].expand(5, 1), model.reset(np.tile(PACKED, (5, 1)), generator))
    belief = BeliefCodec(2, 4).unpack(packed)[1]
    assert belief.sum(-1).tolist() == [1.0] * 5
    assert belief.argmax(-1).tolist() == [[1, 3][context] for context in state["context"].tolist()]


@pytest.mark.parametrize("termination", [never, far])
@pytest.mark.parametrize("kind", ["affine_model", "network_model"])
def test_fast_evaluation_equals_mbrl_lib_for_fixed_contexts(request, kind, termination):
    # Contexts that take turns and no noise: every particle of mbrl-lib goes the same way.
    model = request.getfixturevalue(kind)(initial=(1.0, 0.0), transition=((0.0, 1.0), (1.0, 0.0)), noise_std=0.0)
    env = make_env(model, termination, act_dim=model.task.act_dim)
    plans = torch.rand(37, 5, model.task.act_dim, generator=torch.Generator().manual_seed(1)) * 2 - 1
    start = np.array([*(0.4, -0.6, 0.2)[: model.task.obs_dim], 0.0, 1.0, 0.0, 0.0], dtype=np.float32)
    stock = mbrl.models.ModelEnv.evaluate_action_sequences(env, plans, start, num_particles=3)
    torch.testing.assert_close(env.evaluate_action_sequences(plans, start, 3), stock, rtol=1e-5, atol=1e-5)
    paths = torch.tensor([[1, 3, 1, 3, 1], [1, 3, 1, 3, 1]])
    obs = torch.from_numpy(start[: model.task.obs_dim])
    torch.testing.assert_close(env.evaluate_on_paths(plans, obs, paths), stock, rtol=1e-5, atol=1e-5)
    if termination is far:
        untouched = make_env(model, never, act_dim=model.task.act_dim).evaluate_action_sequences(plans, start, 3)
        assert (untouched - stock).abs().max() > 0.1, "no plan was cut short: the case tests nothing"


@pytest.mark.parametrize("kind", ["affine_model", "network_model"])
def test_fast_evaluation_has_mbrl_lib_s_expectation(request, kind):
    model = request.getfixturevalue(kind)()
    env = make_env(model, far, act_dim=model.task.act_dim)
    plans = torch.tensor([[[0.9], [-0.5], [0.3]], [[-0.9], [0.2], [1.0]]]).expand(2, 3, model.task.act_dim).contiguous()
    start = np.array([*(0.1, -0.2, 0.3)[: model.task.obs_dim], 0.0, 0.7, 0.0, 0.3], dtype=np.float32)
    stock = [mbrl.models.ModelEnv.evaluate_action_sequences(env, plans, start, 100) for _ in range(60)]
    fast = [env.evaluate_action_sequences(plans, start, 100) for _ in range(60)]
    assert_same_mean(torch.stack(stock).double(), torch.stack(fast).double())


def test_paths_have_the_law_of_the_chain():
    belief, transition = (
        torch.tensor([0.2, 0.5, 0.3]),
        torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.5, 0.1, 0.4]]),
    )
    generator = torch.Generator().manual_seed(0)
    counts = torch.zeros(27, dtype=torch.float64)
    num_draws, num_paths = 3000, 4
    for _ in range(num_draws):
        paths = draw_paths(belief, transition, num_paths, 3, generator)
        counts += torch.bincount(paths[:, 0] * 9 + paths[:, 1] * 3 + paths[:, 2], minlength=27)
    num = num_draws * num_paths
    for a, b, c in itertools.product(range(3), repeat=3):
        share = float(belief[a] * transition[a, b] * transition[b, c])
        error = (share * (1 - share) / num) ** 0.5
        assert abs(float(counts[a * 9 + b * 3 + c]) / num - share) < 6 * error


def test_paths_represent_the_belief_as_evenly_as_they_can():
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        first = draw_paths(torch.tensor([0.25, 0.75]), torch.eye(2), 6, 3, generator)
        # 6 * 0.25 = 1.5: one or two paths, never none; held contexts never change.
        assert int((first[:, 0] == 0).sum()) in (1, 2)
        assert (first == first[:, :1]).all()


def test_a_plan_draws_its_paths_once(affine_model):
    env = make_env(affine_model(noise_std=0.0))
    plans = PLAN[None].expand(3, -1, -1).contiguous()
    with env.one_plan():
        once = [env.evaluate_action_sequences(plans, PACKED, 2) for _ in range(8)]
        elsewhere = env.evaluate_action_sequences(plans, PACKED + 0.0, 2)
    assert all(torch.equal(values, once[0]) for values in once)
    anew = [env.evaluate_action_sequences(plans, PACKED, 2) for _ in range(8)]
    assert not all(torch.equal(values, anew[0]) for values in anew)
    assert elsewhere.shape == (3,)


def test_held_contexts_are_the_most_likely_one(affine_model):
    model = affine_model(noise_std=0.0)
    env = make_env(model, context_mode="held", has_noise=False)
    plans = torch.stack([PLAN, -PLAN])
    held = env.evaluate_on_paths(plans, torch.from_numpy(START), torch.ones(1, len(PLAN), dtype=torch.long))
    torch.testing.assert_close(env.evaluate_action_sequences(plans, PACKED, 7), held)


def test_plans_that_leave_the_numbers_lose(affine_model):
    env = make_env(affine_model())
    env.plain_reward_fn = lambda act, next_obs: torch.where(act > 0.5, torch.nan, -100.0 + act)
    plans = torch.tensor([[[0.1], [0.1]], [[0.1], [0.9]], [[-0.2], [0.3]]])
    values = env.evaluate_action_sequences(plans, PACKED, 3)
    torch.testing.assert_close(values, torch.tensor([-199.8, WORST_VALUE, -199.9]))


def test_a_belief_in_forgotten_contexts_falls_back_to_the_initial_law(affine_model):
    model = BeliefModel(affine_model())
    _, belief = model.split(np.array([[0.0, 0.0, 0.5, 0.0, 0.5, 0.0], [0.0, 0.0, 0.4, 0.1, 0.0, 0.5]], np.float32))
    torch.testing.assert_close(belief, torch.tensor([[0.7, 0.3], [1 / 6, 5 / 6]]))


def test_one_context_imagines_as_plain_mbrl_lib(affine_model):
    model = affine_model(initial=(1.0,), transition=((1.0,),), slots=(0,), max_contexts=1)
    packed = np.append(START, np.float32(1.0))
    plans = torch.rand(20, 4, 1, generator=torch.Generator().manual_seed(2)) * 2 - 1
    env = make_env(model, seed=9)

    class Spaces:
        observation_space, action_space = Box(-1.0, 1.0, (2,)), Box(-1.0, 1.0, (1,))

    plain = mbrl.models.ModelEnv(Spaces, model, never, reward, torch.Generator().manual_seed(9))
    expected = plain.evaluate_action_sequences(plans, START, 4)
    found = mbrl.models.ModelEnv.evaluate_action_sequences(env, plans, packed, 4)
    assert torch.equal(found, expected), "with the same generator the imagined noise must be the same, bit for bit"


def test_unknown_context_modes_are_refused(affine_model):
    with pytest.raises(ConfigError, match=r"planner\.context_mode"):
        make_env(affine_model(), context_mode="both")


def test_a_plan_starts_from_one_packed_vector(affine_model):
    with pytest.raises(DataError, match=r"of width 6, got shape \(2,\)"):
        make_env(affine_model()).evaluate_action_sequences(PLAN[None], START, 2)
