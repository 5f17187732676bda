"""Rewards that depend on the context: the planner that knows them finds the optimum; a learned one is the formula."""

import mbrl.models
import numpy as np
import pytest
import torch

from mbrl_hdp.control.model import BeliefModel, FilteringBeliefModel
from mbrl_hdp.control.model_env import BeliefModelEnv
from mbrl_hdp.control.planner import make_planner
from mbrl_hdp.control.rewards import LearnedReward, context_reward, expected_reward, uses_context
from mbrl_hdp.control.tracker import BeliefTracker
from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.errors import DataError
from mbrl_hdp_planners import CemConfig

START = np.array([0.4, -0.6], dtype=np.float32)
BELIEF = np.array([0.0, 0.7, 0.0, 0.3], dtype=np.float32)
PACKED = np.concatenate([START, BELIEF])


@context_reward
def tug(act, next_obs, slot):
    """In slot 1 it pays to push up, in slot 3 to push down, and a little less."""
    return torch.where(slot[:, None] == 1, act[:, :1], -0.8 * act[:, :1])


@context_reward
def rich(act, next_obs, slot):
    """Depends on everything, differently in every slot."""
    sign = 1.0 - slot[:, None].float()
    return sign * next_obs[:, 1:2].cos() + 0.3 * sign.square() * next_obs[:, :1] * act + 0.1 * act


def averaged(act, next_obs):
    return 0.5 * (act[:, :1] - 0.8 * act[:, :1])


def never(act, next_obs):
    return torch.zeros_like(next_obs[:, :1], dtype=torch.bool)


def far(act, next_obs):
    return next_obs[:, 1:2].abs() > 0.7


def env_of(model, reward_fn, termination=never, filtering=False, seed=0):
    belief_model = (FilteringBeliefModel if filtering else BeliefModel)(model)
    return BeliefModelEnv(belief_model, reward_fn, termination, [-1.0], [1.0], torch.Generator().manual_seed(seed))


def assert_same_mean(one, other):
    error = (one.var(0) / len(one) + other.var(0) / len(other)).sqrt()
    assert ((one.mean(0) - other.mean(0)).abs() < 6 * error).all()


class TestPlanning:
    # Hardly ever the same context twice: the best plan turns its sign at every step.
    RESTLESS = ((0.1, 0.9), (0.95, 0.05))

    def expected_gain(self, belief, num_steps):
        """Return E[d reward / d act] of every step of a plan: belief @ transition^t @ gains."""
        laws = [np.asarray(belief) @ np.linalg.matrix_power(np.array(self.RESTLESS), t) for t in range(num_steps)]
        return np.array(laws) @ [1.0, -0.8]

    def test_the_plan_is_the_known_optimum(self, affine_model):
        model = affine_model(transition=self.RESTLESS)
        start = np.concatenate([START, [0.0, 0.95, 0.0, 0.05]]).astype(np.float32)
        config = CemConfig(horizon=4, num_particles=200, num_iterations=10, noise_color=0.0)
        plan = make_planner(config, model, tug, never, [-1.0], [1.0]).plan(start)[:, 0]
        gain = self.expected_gain([0.95, 0.05], 4)
        assert np.sign(gain).tolist() == [1.0, -1.0, 1.0, -1.0]
        np.testing.assert_allclose(plan, np.sign(gain), atol=0.05)
        value = env_of(model, tug).evaluate_action_sequences(torch.from_numpy(plan[None, :, None]).float(), start, 4000)
        assert float(value) == pytest.approx(np.abs(gain).sum(), abs=0.1)

    def test_an_averaged_reward_misses_it(self, affine_model):
        """Play the world: knowing the context's reward gives its optimum, the averaged reward is blind."""
        sticky = ((0.95, 0.05), (0.05, 0.95))
        # Next observations tell the contexts apart at once, so the belief is nearly sure: 0.95 of the next context.
        model = affine_model(initial=(0.5, 0.5), transition=sticky, noise_std=0.01, gains=(0.5, -0.4))
        returns = {}
        for name, reward_fn in (("context", tug), ("averaged", averaged)):
            planner = make_planner(
                CemConfig(horizon=2, population_size=48, num_iterations=3), model, reward_fn, never, [-1.0], [1.0]
            )
            returns[name] = np.mean([self.play(model, planner, seed) for seed in range(4)])
        # After the first step (a guess): 0.95 right, 0.05 wrong, at 1 or 0.8 a step, both equally often.
        optimum = 19 * (0.95 - 0.05) * (1.0 + 0.8) / 2
        assert returns["context"] > 0.9 * optimum, returns
        assert abs(returns["averaged"]) < 0.35 * optimum, returns

    def play(self, model, planner, seed):
        world, tracker = torch.Generator().manual_seed(seed), BeliefTracker(model)
        state = model.reset(torch.from_numpy(START)[None], world)
        planner.reset()
        packed, total = tracker.reset(START.astype(np.float64)), 0.0
        for _ in range(20):
            act = planner.act(packed)
            slot = model.slots[state["context"]]
            next_obs, _, _, state = model.sample(torch.from_numpy(act)[None].float(), state, rng=world)
            total += float(tug(torch.from_numpy(act)[None].float(), next_obs, slot))
            packed = tracker.update(act, next_obs[0].double().numpy())
        return total

    def test_a_new_model_keeps_the_reward(self, affine_model):
        planner = make_planner(CemConfig(horizon=1), affine_model(), tug, never, [-1.0], [1.0])
        planner.set_model(affine_model(initial=(0.2, 0.8)))
        certain = np.concatenate([START, [0.0, 0.0, 0.0, 1.0]]).astype(np.float32)
        assert planner.act(certain)[0] == pytest.approx(-1.0, abs=0.05)
        _, reward, _, _ = planner.model_env.step(
            np.array([[0.5]], np.float32), planner.model_env.reset(certain[None]), sample=True
        )
        assert reward.item() == pytest.approx(-0.4)


class TestImaginedSteps:
    @pytest.mark.parametrize("termination", [never, far])
    def test_the_fast_path_is_mbrl_lib_s_for_fixed_contexts(self, affine_model, termination):
        model = affine_model(initial=(1.0, 0.0), transition=((0.0, 1.0), (1.0, 0.0)), noise_std=0.0)
        env = env_of(model, rich, termination)
        plans = torch.rand(37, 5, 1, generator=torch.Generator().manual_seed(1)) * 2 - 1
        start = np.array([0.4, -0.6, 0.0, 1.0, 0.0, 0.0], dtype=np.float32)
        stock = mbrl.models.ModelEnv.evaluate_action_sequences(env, plans, start, num_particles=3)
        torch.testing.assert_close(env.evaluate_action_sequences(plans, start, 3), stock, rtol=1e-5, atol=1e-5)
        paths = torch.tensor([[1, 3, 1, 3, 1]])
        torch.testing.assert_close(
            env.evaluate_on_paths(plans, torch.from_numpy(START), paths), stock, rtol=1e-5, atol=1e-5
        )
        shifted = env.evaluate_on_paths(plans, torch.from_numpy(START), torch.full((1, 5), 1))
        assert (shifted - stock).abs().max() > 0.1, "the contexts make no difference: the case tests nothing"

    @pytest.mark.parametrize("filtering", [False, True])
    def test_all_ways_to_imagine_have_one_expectation(self, affine_model, filtering):
        model = affine_model()
        plans = torch.tensor([[[0.9], [-0.5], [0.3]], [[-0.9], [0.2], [1.0]]])
        env, slow = env_of(model, rich, far), env_of(model, rich, far, filtering, seed=1)
        fast = [env.evaluate_action_sequences(plans, PACKED, 100) for _ in range(60)]
        stock = [mbrl.models.ModelEnv.evaluate_action_sequences(slow, plans, PACKED, 100) for _ in range(60)]
        assert_same_mean(torch.stack(fast).double(), torch.stack(stock).double())

    def test_the_belief_s_reward_is_theorem_2_s(self, affine_model):
        """r(s, b, a) = sum_k b_k E[r_k(a, s') | k], here with s' all but fixed by the context."""
        model = affine_model(noise_std=1e-4)
        act = torch.tensor([[0.6]])
        parts = []
        for slot, share in ((1, 0.7), (3, 0.3)):
            next_obs = model.dynamics.predict(torch.from_numpy(START)[None], act, torch.tensor([slot]))
            parts.append(share * rich(act, next_obs, torch.tensor([slot])).item())
        imagined = FilteringBeliefModel(model, rich)
        _, reward, _, _ = imagined.sample(act, imagined.reset(PACKED[None]), deterministic=True)
        assert float(reward) == pytest.approx(sum(parts), rel=1e-5)
        generator = torch.Generator().manual_seed(0)
        num = 20_000
        _, drawn, _, _ = imagined.sample(act.expand(num, 1), imagined.reset(np.tile(PACKED, (num, 1))), rng=generator)
        assert abs(float(drawn.mean()) - sum(parts)) < 6 * float(drawn.std()) / num**0.5 + 1e-4

    def test_the_expectation_is_a_weighted_sum(self):
        act, next_obs = torch.tensor([[0.5], [-1.0]]), torch.zeros(2, 2)
        belief, slots = torch.tensor([[0.25, 0.75], [1.0, 0.0]]), torch.tensor([1, 3])
        found = expected_reward(tug, act, next_obs, belief, slots)
        torch.testing.assert_close(found, torch.tensor([[0.25 * 0.5 - 0.75 * 0.4], [-1.0]]))

    def test_ordinary_rewards_are_called_as_ever(self, affine_model):
        assert uses_context(tug)
        assert not uses_context(averaged)
        env = env_of(affine_model(), averaged)
        assert env.dynamics_model.context_reward is None
        _, reward, _, _ = env.step(np.array([[0.5]], np.float32), env.reset(PACKED[None]))
        assert reward.item() == pytest.approx(0.05)


def world_data(model, num_episodes=200, num_steps=10, seed=0, reward_fn=rich):
    """Draw episodes from a model, with rewards of the context that truly acted."""
    generator = torch.Generator().manual_seed(seed)
    state = model.reset(torch.rand(num_episodes, 2, generator=generator) * 3 - 1.5, generator)
    obs, acts, rewards, slots = [state["obs"]], [], [], []
    for _ in range(num_steps):
        act = torch.rand(num_episodes, 1, generator=generator) * 2 - 1
        slot = model.slots[state["context"]]
        next_obs, _, _, state = model.sample(act, state, rng=generator)
        obs.append(next_obs)
        acts.append(act)
        rewards.append(reward_fn(act, next_obs, slot)[:, 0])
        slots.append(slot)
    arrays = [torch.stack(part, 1).double().numpy() for part in (obs, acts, rewards)]
    return Trajectories(arrays[0], arrays[1], reward=arrays[2], context=torch.stack(slots, 1).numpy())


def steps_like(data, seed=7):
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, data.obs[:, 1:, 0].size, 400)
    next_obs = torch.as_tensor(data.obs[:, 1:].reshape(-1, 2)[rows], dtype=torch.float32)
    return torch.as_tensor(rng.uniform(-1, 1, (400, 1)), dtype=torch.float32), next_obs


def error_of(reward, slot, model):
    """Return the error against the formula on steps of a context, from episodes that nobody has seen."""
    fresh = world_data(model, seed=99)
    is_slot = fresh.context == slot
    act, next_obs = (torch.as_tensor(part[is_slot], dtype=torch.float32) for part in (fresh.act, fresh.obs[:, 1:]))
    slots = torch.full((len(act),), slot)
    with torch.no_grad():
        return float((reward(act, next_obs, slots) - rich(act, next_obs, slots)).square().mean().sqrt())


class TestLearned:
    @pytest.fixture
    def model(self, affine_model):
        return affine_model(noise_std=0.004, gains=(0.9, -0.9))

    def test_it_recovers_the_formula_of_every_context(self, model):
        data = world_data(model)
        reward = LearnedReward(2, 1, 4, seed=3)
        rmse = reward.fit(model, data, num_steps=400)
        spread = data.reward.std()
        assert spread > 0.7
        assert rmse < 0.1 * spread
        for slot in (1, 3):
            assert error_of(reward, slot, model) < 0.12 * spread
        # A slot that never acted answers with the reward of all steps alike, which is no context's own.
        assert reward.is_learned.tolist() == [False, True, False, True]
        act, next_obs = steps_like(data)
        with torch.no_grad():
            pooled = reward(act, next_obs, torch.zeros(400, dtype=torch.long))
        for slot in (1, 3):
            own = rich(act, next_obs, torch.full((400,), slot))
            assert float((pooled - own).square().mean().sqrt()) > 0.2 * spread

    def test_it_goes_on_from_what_it_knows(self, model):
        first, later = world_data(model, 100), world_data(model, 100, seed=1)
        both = Trajectories.concatenate([first, later])
        reward = LearnedReward(2, 1, 4)
        reward.fit(model, first, 500)
        fresh = LearnedReward(2, 1, 4)
        for each in (reward, fresh):
            each.fit(model, both, 1)
        # One step, and new units of inputs and rewards, do not undo what was learned.
        assert error_of(reward, 3, model) < 0.25 * error_of(fresh, 3, model)
        assert reward.fit(model, both, 200) < 0.1 * first.reward.std()

    def test_new_units_leave_the_functions_alone(self, model):
        data = world_data(model, 20)
        reward = LearnedReward(2, 1, 4)
        reward.fit(model, data, 50)
        act, next_obs = steps_like(data)
        slots = torch.tensor([1, 3]).repeat(200)
        with torch.no_grad():
            before = reward(act, next_obs, slots)
            shifted = Trajectories(3.0 * data.obs + 2.0, 0.5 * data.act, reward=10.0 * data.reward - 4.0)
            rows, _ = reward._rows(model, shifted)
            reward._set_units(rows)
            after = reward(act, next_obs, slots)
        assert float(reward.reward_scale) == pytest.approx(10.0 * data.reward.std(), rel=1e-4)
        torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-4)

    def test_a_context_found_later_gets_a_head_and_the_others_stay(self, affine_model, model):
        data = world_data(model)
        reward = LearnedReward(2, 1, 4)
        reward.fit(model, data, 400)
        known = error_of(reward, 1, model)
        wider = affine_model(
            initial=(0.5, 0.3, 0.2),
            transition=((0.8, 0.1, 0.1), (0.2, 0.7, 0.1), (0.1, 0.1, 0.8)),
            slots=(1, 3, 2),
            noise_std=0.004,
            gains=(0.9, -0.9, 0.1),
        )
        both = Trajectories.concatenate([data, world_data(wider, seed=2)])
        reward.fit(wider, both, 400)
        assert reward.is_learned.tolist() == [False, True, True, True]
        assert error_of(reward, 2, wider) < 0.15 * both.reward.std()
        assert error_of(reward, 1, model) < known + 0.05

    def test_the_same_calls_give_the_same_numbers(self, model):
        data = world_data(model, 20)
        states = []
        for noise in (1, 2):
            torch.manual_seed(noise)
            reward = LearnedReward(2, 1, 4, seed=5)
            reward.fit(model, data, 60, seed=1)
            states.append(reward.state_dict())
        assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
        reward.fit(model, data, 5, seed=2)
        assert not torch.equal(reward.state_dict()["heads.weights.0"], states[0]["heads.weights.0"])

    def test_a_constant_reward_is_learned_exactly_and_one_that_appears_later_too(self, model):
        flat = world_data(model, 20, reward_fn=lambda act, next_obs, slot: torch.full_like(act, -2.5))
        reward = LearnedReward(2, 1, 4)
        assert reward.fit(model, flat, 100) < 0.05
        later = world_data(model)  # in the flat episodes' place: both kinds at once would be no function
        assert reward.fit(model, later, 400) < 0.3 * later.reward.std()

    def test_angles_are_seen_as_sine_and_cosine(self, model):
        data = world_data(model, 20)
        reward = LearnedReward(2, 1, 4, angle_columns=(1,))
        reward.fit(model, data, 30)
        act, next_obs = steps_like(data)
        slots = torch.tensor([1, 3]).repeat(200)
        turned = next_obs + torch.tensor([0.0, 2 * torch.pi])
        with torch.no_grad():
            torch.testing.assert_close(reward(act, turned, slots), reward(act, next_obs, slots), atol=1e-4, rtol=1e-4)
        assert reward.heads.weights[0].shape[2] == 4

    def test_held_out_episodes_are_never_trained_on(self, model):
        data = world_data(model, 10)
        lies = data.reward.copy()
        lies[4] = 1e6
        states = []
        for rewards in (data.reward, lies):
            reward = LearnedReward(2, 1, 4)
            rmse = reward.fit(model, Trajectories(data.obs, data.act, reward=rewards), 20)
            states.append(reward.state_dict())
        assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
        assert rmse > 1e5

    def test_too_few_episodes_hold_none_out(self, model):
        assert np.isnan(LearnedReward(2, 1, 4).fit(model, world_data(model, 3), 5))

    def test_data_without_rewards_and_slots_that_do_not_exist_are_refused(self, model):
        data = world_data(model, 3)
        reward = LearnedReward(2, 1, 4)
        with pytest.raises(DataError, match="rewards"):
            reward.fit(model, Trajectories(data.obs, data.act), 5)
        with pytest.raises(DataError, match="slots"):
            reward(torch.zeros(1, 1), torch.zeros(1, 2), torch.tensor([4]))

    def test_planners_take_it(self, model):
        data = world_data(model, 100, reward_fn=tug)
        reward = LearnedReward(2, 1, 4)
        reward.fit(model, data, 300)
        planner = make_planner(CemConfig(horizon=2), model, reward, never, [-1.0], [1.0])
        for slot, best in ((1, 1.0), (3, -1.0)):
            certain = np.concatenate([START, np.eye(4)[slot]]).astype(np.float32)
            planner.reset()
            assert planner.act(certain)[0] == pytest.approx(best, abs=0.1)
