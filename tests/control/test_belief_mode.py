"""`planner.context_mode=belief` and mbrl-lib's own `ModelEnv` and CEM on `FilteringBeliefModel`."""

import mbrl.models
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from mbrl.planning import TrajectoryOptimizerAgent
from omegaconf import OmegaConf

from mbrl_hdp.belief.codec import BeliefCodec
from mbrl_hdp.control.model import BeliefModel, FilteringBeliefModel
from mbrl_hdp.control.model_env import BeliefModelEnv
from mbrl_hdp.control.paths import choose_contexts
from mbrl_hdp.control.planner import make_planner
from mbrl_hdp.control.rewards import context_reward
from mbrl_hdp.control.tracker import BeliefTracker
from mbrl_hdp.experiments.episodes import run_episode
from mbrl_hdp_planners import CemConfig

PACKED = np.array([0.4, -0.6, 0.0, 0.7, 0.0, 0.3], dtype=np.float32)
PLANS = torch.tensor([[[0.9], [-0.5], [0.3]], [[-0.9], [0.2], [1.0]], [[0.1], [0.8], [-0.7]]])
OPPOSITE = (0.5, -0.5)  # the second context turns the actuator round


def curved(act, next_obs):
    return next_obs[..., :1].cos() - 0.3 * next_obs[..., 1:2].square() + 0.1 * act[..., :1]


def forwards(act, next_obs):
    return next_obs[..., 1:2]


def never(act, next_obs):
    return torch.zeros_like(next_obs[..., :1], dtype=torch.bool)


def far(act, next_obs):
    return next_obs[..., 1:2].abs() > 0.7


@context_reward
def by_slot(act, next_obs, slot):
    return torch.where(slot[:, None] == 1, next_obs[:, 1:2], 2.0 - next_obs[:, 1:2].square())


def env_of(model, mode, reward=curved, termination=never, has_noise=True, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return BeliefModelEnv(BeliefModel(model), reward, termination, [-1.0], [1.0], generator, mode, has_noise)


def mean_and_error(values):
    values = torch.stack(values).double()
    return values.mean(0), values.std(0) / len(values) ** 0.5


def assert_same_mean(one, other):
    (mean, error), (other_mean, other_error) = mean_and_error(one), mean_and_error(other)
    assert ((mean - other_mean).abs() < 6 * (error.square() + other_error.square()).sqrt()).all()


@pytest.mark.parametrize("termination", [never, far])
@pytest.mark.parametrize("reward", [curved, by_slot])
def test_fixed_plans_have_one_expected_return_however_contexts_are_drawn(affine_model, reward, termination):
    """A plan cannot use what the belief learns: belief and paths agree, and so does mbrl-lib's own evaluation."""
    model = affine_model()
    carried = env_of(model, "belief", reward, termination)
    fast = [carried.evaluate_action_sequences(PLANS, PACKED, 60) for _ in range(30)]
    stock = [mbrl.models.ModelEnv.evaluate_action_sequences(carried, PLANS, PACKED, 60) for _ in range(30)]
    drawn = env_of(model, "paths", reward, termination, seed=1)
    paths = [drawn.evaluate_action_sequences(PLANS, PACKED, 60) for _ in range(30)]
    assert_same_mean(fast, stock)
    assert_same_mean(fast, paths)


def test_particles_learn_the_context_on_the_way(affine_model):
    """Contexts that never change and clear steps: a particle that redrew from the first belief would mix them."""
    model = affine_model(transition=((1.0, 0.0), (0.0, 1.0)), noise_std=0.01, gains=OPPOSITE)
    plans = torch.ones(1, 4, 1)
    carried = env_of(model, "belief", forwards, has_noise=False)
    obs = torch.from_numpy(PACKED[:2])
    pure = [carried.evaluate_on_paths(plans, obs, torch.full((1, 4), slot)) for slot in (1, 3)]
    for _ in range(20):
        value = carried.evaluate_action_sequences(plans, PACKED, 1)
        assert min((value - one).abs().item() for one in pure) < 1e-4
    # Of ten stratified particles seven begin in the first context.
    shared = carried.evaluate_action_sequences(plans, PACKED, 10)
    torch.testing.assert_close(shared, 0.7 * pure[0] + 0.3 * pure[1], rtol=1e-4, atol=1e-4)


def test_a_plan_shares_its_numbers_among_candidates_and_calls(affine_model):
    env = env_of(affine_model(), "belief", has_noise=False)
    same = PLANS[:1].expand(5, -1, -1).contiguous()
    with env.one_plan():
        once = [env.evaluate_action_sequences(same, PACKED, 2) for _ in range(4)]
    assert all(torch.equal(values, once[0]) for values in once)
    assert (once[0] == once[0][0]).all()
    anew = [env.evaluate_action_sequences(same, PACKED, 2) for _ in range(8)]
    assert not all(torch.equal(values, anew[0]) for values in anew)


def test_contexts_are_chosen_by_the_cumulative_belief():
    belief = torch.tensor([[0.0, 0.25, 0.75, 0.0]]).expand(5, -1)
    numbers = torch.tensor([0.0, 0.24, 0.26, 0.99, 1.0])
    assert choose_contexts(belief, numbers).tolist() == [1, 1, 2, 2, 2]


class World:
    """Two contexts that the agent never sees: in the second the actuator works the other way round."""

    observation_space, action_space = Box(-np.inf, np.inf, (2,)), Box(-1.0, 1.0, (1,))

    def __init__(self, model):
        self.model = model

    def reset(self, seed):
        self.generator = torch.Generator().manual_seed(seed)
        self.state = self.model.reset(torch.zeros(1, 2), self.generator)
        self.steps = 0
        return self.state["obs"][0].numpy(), {}

    def step(self, act):
        act = torch.as_tensor(act, dtype=torch.float32).clamp(-1, 1)[None]
        next_obs, _, _, self.state = self.model.sample(act, self.state, rng=self.generator)
        self.steps += 1
        return next_obs[0].numpy(), float(forwards(act, next_obs)), False, self.steps == 25, {}


def stock_agent(model):
    """mbrl-lib alone: its ModelEnv on our model, its agent, its CEM."""
    belief_model = FilteringBeliefModel(model)
    spaces = World(model)
    spaces.observation_space = Box(-np.inf, np.inf, (belief_model.codec.width,))
    width = belief_model.codec.obs_dim
    generator = torch.Generator().manual_seed(0)
    env = mbrl.models.ModelEnv(
        spaces,
        belief_model,
        lambda act, packed: never(act, packed[:, :width]),
        lambda act, packed: forwards(act, packed[:, :width]),
        generator,
    )
    settings = {
        "_target_": "mbrl.planning.CEMOptimizer",
        "num_iterations": 3,
        "elite_ratio": 0.1,
        "population_size": 60,
        "alpha": 0.1,
        "device": "cpu",
        "return_mean_elites": True,
        "clipped_normal": True,
    }
    agent = TrajectoryOptimizerAgent(OmegaConf.create(settings), [-1.0], [1.0], planning_horizon=3)
    agent.set_trajectory_eval_fn(lambda obs, plans: env.evaluate_action_sequences(plans, obs, num_particles=5))
    return agent


def own_agent(model):
    config = CemConfig(horizon=3, population_size=60, num_elites=6, num_iterations=3, context_mode="belief")
    return make_planner(config, model, forwards, never, [-1.0], [1.0], seed=0)


def world_model(affine_model):
    return affine_model(initial=(0.5, 0.5), transition=((0.9, 0.1), (0.1, 0.9)), noise_std=0.05, gains=OPPOSITE)


@pytest.mark.parametrize("make", [stock_agent, own_agent])
def test_planning_on_the_belief_beats_what_a_blind_plan_can_reach(affine_model, make):
    """Half the time each action pushes backwards: the expected return of a plan without the belief is near zero."""
    model = world_model(affine_model)
    torch.manual_seed(0)
    agent, tracker, returns = make(model), BeliefTracker(model), []
    for seed in range(4):
        agent.reset()
        returns.append(run_episode(World(model), agent.act, tracker, seed).episode_return)
    # A return is an affine function of a plan's actions, so its largest values are those of plans at the bounds.
    signs = torch.randint(0, 2, (60, 25, 1), generator=torch.Generator().manual_seed(0)) * 2.0 - 1
    blind = torch.cat([signs, torch.ones(1, 25, 1), -torch.ones(1, 25, 1)])
    start = np.array([0.0, 0.0, 0.0, 0.5, 0.0, 0.5], np.float32)
    reach = env_of(model, "paths", forwards).evaluate_action_sequences(blind, start, 400).max().item()
    assert np.mean(returns) > 30.0 > reach + 15.0, (returns, reach)


def test_an_episode_asks_for_the_belief_once_a_step(affine_model, monkeypatch):
    model = affine_model()
    tracker = BeliefTracker(model)
    asked = []
    monkeypatch.setattr(tracker, "belief", lambda: asked.append(1) or BeliefTracker.belief(tracker))
    record = run_episode(World(model), lambda packed: packed[:1], tracker, seed=0)
    assert len(asked) == 26
    online = model.online_filter()
    online.reset(record.episode.obs[0])
    for t, act in enumerate(record.episode.act):
        belief = online.update(act, record.episode.obs[t + 1])
        np.testing.assert_array_equal(record.beliefs[t + 1, [1, 3]], belief)
    assert record.beliefs.shape == (26, 4)


def test_feedback_unpacks_the_observation_once(affine_model, monkeypatch):
    model = affine_model()
    config = CemConfig(horizon=3, population_size=8, num_elites=2, num_iterations=2, context_mode="feedback")
    agent = make_planner(config, model, forwards, never, [-1.0], [1.0], seed=0)
    unpacked = []
    real = BeliefModel.split
    monkeypatch.setattr(BeliefModel, "split", lambda self, packed: unpacked.append(1) or real(self, packed))
    packed = PACKED.copy()
    first = agent.act(packed)
    assert len(unpacked) == 1
    packed[2:] = PACKED[[2, 5, 4, 3]]  # the same array with another belief is another observation
    agent.act(packed)
    assert len(unpacked) == 2
    assert first.shape == (1,)


def test_the_model_of_a_planner_can_be_replaced(affine_model):
    agent = own_agent(affine_model())
    agent.set_model(affine_model(initial=(0.1, 0.9)))
    carried = agent.model_env.dynamics_model
    assert isinstance(carried, FilteringBeliefModel)
    state = carried.reset(PACKED[None])
    assert set(state) == {"obs", "belief"}
    packed, *_ = carried.sample(torch.ones(1, 1), state, rng=torch.Generator().manual_seed(0))
    assert BeliefCodec(2, 4).unpack(packed)[1].sum().item() == pytest.approx(1.0)
    assert agent.act(PACKED).shape == (1,)
