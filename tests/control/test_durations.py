"""Planners, trackers and imagined steps know how long a context has lasted."""

import numpy as np
import pytest
import torch

from mbrl_hdp.control.model import BeliefModel, FilteringBeliefModel
from mbrl_hdp.control.model_env import BeliefModelEnv
from mbrl_hdp.control.replay import model_beliefs
from mbrl_hdp.control.tracker import BeliefTracker
from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.hooks import load_registry
from mbrl_hdp.inference.building import build_model
from mbrl_hdp.inference.model import ModelParts, Part
from mbrl_hdp.types import PhaseChain, TaskSpec

SIZES = (3, 1)


@pytest.fixture
def model():
    """Two linear contexts that drift apart; the first one acts for three steps at least."""
    registry = load_registry()
    names = {"prior": "hdp", "dynamics": "linear", "distillation": "stationary"}
    parts = {kind: Part(name, registry.get(kind, name).spec.config()) for kind, name in names.items()}
    made = build_model(ModelParts(**parts), TaskSpec(max_contexts=2, obs_dim=1, act_dim=1), registry)
    generator = torch.Generator().manual_seed(0)
    obs, act = (torch.randn(400, 1, generator=generator) for _ in range(2))
    context = torch.arange(400) % 2
    drift = torch.where(context == 0, 0.3, -0.2)[:, None]
    share = torch.nn.functional.one_hot(context, 2).float()
    made.dynamics.set_normaliser(obs, act, obs + drift)
    made.dynamics.fit_heads(obs, act, obs + drift + 0.05 * torch.randn(400, 1, generator=generator), share)
    made.is_settled = True
    made.extract()
    values = ([0.5, 0, 0, 0.5], [0, 0, 0.6, 0.9], [0.999, 0.999, 0, 0], [0.001, 0.001, 0.4, 0.1])
    tensors = [torch.tensor(value, dtype=torch.float64) for value in values]
    made.use_phases(PhaseChain(*tensors, torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64), SIZES))
    return made


def episode(drifts):
    obs = np.cumsum([0.0, *drifts])[None, :, None]
    return Trajectories(obs, np.zeros((1, len(drifts), 1)))


DRIFTS = [-0.2, -0.2, 0.3, 0.3, 0.3, 0.3, -0.2, -0.2]


def test_tracker_online_filter_and_recorded_episodes_agree(model):
    data, tracker = episode(DRIFTS), BeliefTracker(model)
    found = model.analyse(data)
    beliefs = model_beliefs(model, data)[0]
    np.testing.assert_allclose(tracker.reset(data.obs[0, 0])[1:], beliefs[0])
    for step in range(len(DRIFTS)):
        packed = tracker.update(data.act[0, step], data.obs[0, step + 1])
        np.testing.assert_allclose(packed[1:], beliefs[step + 1], atol=1e-5)
        np.testing.assert_allclose(tracker.filtered, found.filtered[0, step], atol=1e-5)
        np.testing.assert_allclose(packed.states.sum(), 1.0)
    # Just entered, the first context cannot be left; after three steps it can.
    assert beliefs[3][1] < 0.01
    assert beliefs[5][1] > 0.3
    np.testing.assert_allclose(found.predictive_belief[0, 1:], beliefs[1:-1], atol=1e-6)


def first_leave(env, packed, horizon=6):
    """The share of paths that are in the second context at each step."""
    contexts, following = env._draw_contexts(packed, torch.tensor([1.0, 0.0]), (4000, horizon))
    assert following.shape == (4000, horizon - 1)
    return (contexts == 1).double().mean(0)


def make_env(model, mode="paths"):
    zero = lambda act, obs: torch.zeros(len(obs), 1)  # noqa: E731
    never = lambda act, obs: torch.zeros(len(obs), 1, dtype=torch.bool)  # noqa: E731
    generator = torch.Generator().manual_seed(0)
    wrapped = (FilteringBeliefModel if mode == "belief" else BeliefModel)(model)
    return BeliefModelEnv(wrapped, zero, never, [-1.0], [1.0], generator, mode)


def test_planned_paths_wait_for_the_minimum(model):
    """Paths from the tracker's belief; the same packed numbers alone would leave a context too early."""
    data, tracker = episode(DRIFTS), BeliefTracker(model)
    env = make_env(model)
    tracker.reset(data.obs[0, 0])
    for step in range(3):
        packed = tracker.update(data.act[0, step], data.obs[0, step + 1])
    early = first_leave(env, packed)  # the first context has acted for one step, the next one is its second
    assert early[:2].max() < 0.02
    assert abs(early[2] - 0.4) < 0.05
    assert first_leave(env, np.asarray(packed))[1] > 0.1


@pytest.mark.parametrize("mode", ["paths", "held", "feedback", "belief"])
def test_every_context_mode_plans_with_phases(model, mode):
    env, tracker = make_env(model, mode), BeliefTracker(model)
    packed = tracker.reset(np.zeros(1))
    plans = torch.zeros(5, 4, env.plan_width)
    assert torch.equal(env.evaluate_action_sequences(plans, packed, 8), torch.zeros(5))


def test_imagined_beliefs_follow_the_online_filter(model):
    carrying, tracker = FilteringBeliefModel(model), BeliefTracker(model)
    packed = tracker.reset(np.zeros(1))
    carried = carrying.carried(packed, carrying.split(packed[None])[1][0])
    state = carrying.reset(packed[None]) | {"belief": carried[None]}
    assert state["belief"].shape == (1, 4)
    for _ in range(5):
        packed, _, _, state = carrying.sample(torch.zeros(1, 1), state, deterministic=True)
        tracked = tracker.update(np.zeros(1), packed[0, :1].numpy())
        np.testing.assert_allclose(packed[0, 1:], tracked[1:], atol=1e-4)


def test_imagined_contexts_last_as_the_phases_say(model):
    generator = torch.Generator().manual_seed(3)
    state = model.reset(np.zeros((3000, 1)), generator)
    contexts = [state["context"]]
    for _ in range(4):
        _, _, _, state = model.sample(torch.zeros(3000, 1), state, rng=generator)
        contexts.append(state["context"])
    path = torch.stack(contexts)
    started = path[:, path[0] == 0]
    assert ((started[1:3] == 1).double().mean() < 0.005) & (abs((started[3] == 1).double().mean() - 0.4) < 0.05)
