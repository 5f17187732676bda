"""The study `systems_control`: its environments, the model that knows everything, and its gate."""

import gymnasium
import numpy as np
import pytest
import torch

from mbrl_hdp.envs.systems import build_system
from mbrl_hdp.envs.systems.control import ENV_ID, GOALS, HORIZON, Goal
from mbrl_hdp.errors import ConfigError
from mbrl_hdp.experiments.studies import systems_control
from mbrl_hdp.experiments.studies.study import CellRecord
from mbrl_hdp.experiments.studies.told_model import told_model


@pytest.fixture(params=list(GOALS))
def name(request):
    return request.param


def played(name, num_steps=30):
    """Play one episode with random actions; return observations, actions, contexts and rewards."""
    env = gymnasium.make(ENV_ID, system=name)
    obs, _ = env.reset(seed=3)
    rng = np.random.default_rng(3)
    rows = []
    for _ in range(num_steps):
        act = rng.uniform(-1.0, 1.0, env.action_space.shape)
        after, reward, _, _, info = env.step(act)
        rows.append((obs, act, info["context"], after, reward))
        obs = after
    return [np.array(column) for column in zip(*rows, strict=True)]


def test_the_environment_is_the_system(name):
    obs, act, context, after, _ = played(name, 60)
    system = build_system(name)
    expected = system.step(obs, act, context, np.zeros(1), np.random.default_rng(0))
    np.testing.assert_allclose(after, expected, rtol=1e-12)
    assert len(set(context.tolist())) > 1


def test_the_reward_of_the_environment_is_that_of_imagined_steps(name):
    _, act, _, after, reward = played(name)
    env = gymnasium.make(ENV_ID, system=name)
    imagined = env.get_wrapper_attr("reward_fn")(torch.as_tensor(act), torch.as_tensor(after))
    np.testing.assert_allclose(imagined[:, 0], reward)
    assert ((reward > 0) & (reward <= 1)).all()


def test_a_goal_by_hand():
    goal = Goal({0: 0.5, 2: 2.0}, targets={2: 1.0}, angle_columns=(0,))
    obs = torch.tensor([[2 * np.pi, 9.0, 1.0], [np.pi, 9.0, 1.0], [0.0, 9.0, 3.0]])
    np.testing.assert_allclose(goal.reward(obs)[:, 0], [1.0, 1 / (1 + 4 / 0.25), 0.5], rtol=1e-5)


def test_an_episode_ends_at_the_horizon():
    env = gymnasium.make(ENV_ID, system="pendulum", horizon=3)
    env.reset(seed=0)
    assert [env.step(np.zeros(1))[3] for _ in range(3)] == [False, False, True]
    assert gymnasium.make(ENV_ID, system="pendulum").get_wrapper_attr("horizon") == HORIZON


def test_a_system_without_a_goal_is_refused():
    with pytest.raises(ConfigError, match="did you mean 'pendulum'"):
        gymnasium.make(ENV_ID, system="pendulums")


def test_the_told_model_predicts_exactly(name):
    """In the slot of the context that acted, plans lead where the real steps lead."""
    obs, act, context, after, _ = played(name)
    model = told_model(build_system(name), max_contexts=6)
    assert model.num_contexts == build_system(name).num_contexts
    start, plan = torch.as_tensor(obs[0]), torch.as_tensor(act)[None]
    states = model.dynamics.begin_rollout(start, torch.as_tensor(context)[None])(plan)
    np.testing.assert_allclose(states[:, 0, 0], after, rtol=1e-9)


def test_the_told_chain_stays_as_long_as_the_system():
    system = build_system("windy_point")
    model = told_model(system, max_contexts=5)
    np.testing.assert_allclose(1 / (1 - model.transition.diagonal()), 4 + 1 / system.switch, rtol=1e-5)
    np.testing.assert_allclose(model.transition.sum(1), 1.0, rtol=1e-6)


def test_the_told_model_filters_exactly(name):
    """One step later it is sure of the context that acted, wherever that made a difference."""
    obs, act, context, after, _ = played(name)
    model = told_model(build_system(name), max_contexts=6)
    online = model.online_filter()
    online.reset(obs[0])
    for now, action, acted, then in zip(obs, act, context, after, strict=True):
        guesses = [model.dynamics.predict(*map(torch.as_tensor, (now[None], action[None], np.array([number]))))
                   for number in range(model.num_contexts)]  # fmt: skip
        away = np.array([np.abs(guess.numpy() - then).max() for guess in guesses])
        online.update(action, then)
        is_other = away > 0.02
        assert not is_other[acted]
        assert online.filtered[is_other].sum() < 1e-6


def record(settings, share):
    results = {
        "summary": {
            "returns": [80 * share, 120 * share, 0.0], "truth_fed": None, "num_contexts": 2, "context_accuracy": None
        },
        "filtered": [80.0, 120.0], "told": [160.0, 240.0], "train_curve": [[100, 10.0]],
    }  # fmt: skip
    return CellRecord(settings, results, "abc", 1.0)


def gate(shares):
    cells = systems_control.cells(None, False)
    records = [record(cell, shares.get(cell["system"], 1.0)) for cell in cells if shares.get(cell["system"]) != 0]
    return systems_control.page(records).gates[0].is_met


def test_the_page_says_what_the_filter_keeps_of_what_is_known():
    page = systems_control.page([record(cell, 1.0) for cell in systems_control.cells(None, False)])
    assert page.gates[1].found == "0 of 5"  # the exact filter itself has half
    assert page.gates[1].is_met is False
    (row,) = (line for line in page.body.splitlines() if line.startswith("| unicycle |"))
    assert [cell.strip() for cell in row.split("|")[3:8]] == ["100.00", "1.000", "200.00", "0.500", "0.500"]


def test_the_gate_wants_four_of_five():
    assert gate({}) is True
    assert gate({"unicycle": 0.9}) is True
    assert gate({"unicycle": 0.9, "pendulum": 0.94}) is False
    assert gate({"unicycle": 0.9, "pendulum": 0.0}) is None
