"""What is left of the data by a model whose predictions are known: how much of it could be explained, and in which
context."""

from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from mbrl_hdp import Trajectories
from mbrl_hdp.inference import residual_split
from mbrl_hdp.inference.analysis import Analysis
from mbrl_hdp.inference.model import ContextModel
from mbrl_hdp.inference.residuals import explainable_share, own_residuals
from mbrl_hdp.inference.search.rows import make_rows

SLOTS = [2, 1]


def make_model(num_contexts=2, slots=SLOTS):
    """Return a model that knows the true contexts and predicts no change but 0.01 times the slot in the last column."""

    def predict(obs, _, slot):
        return obs + torch.stack([torch.zeros(len(slot)), 0.01 * slot], 1)

    model = Mock(spec=ContextModel)
    model.num_contexts, model.slots, model.device = num_contexts, torch.tensor(slots), torch.device("cpu")
    model.most_likely = lambda data: data.context
    model.dynamics = SimpleNamespace(predict=predict)
    return model


def make_data(force, noise, num_episodes=3, num_steps=120):
    """Column 0 moves by force(context, column 0) and noise, column 1 never changes, nor does the action."""
    rng = np.random.default_rng(0)
    obs, context = np.full((num_episodes, num_steps + 1, 2), 5.0), np.zeros((num_episodes, num_steps), int)
    obs[:, 0, 0] = rng.normal(size=num_episodes)
    for step in range(num_steps):
        context[:, step] = (step // 30) % 2
        before = obs[:, step, 0]
        obs[:, step + 1, 0] = before + force(context[:, step], before) + noise * rng.normal(size=num_episodes)
    return Trajectories(obs, np.ones((num_episodes, num_steps, 1)), context=context)


def pull(context, column):
    """Another bend in each context, within bounds."""
    return np.where(context == 0, np.sin(2.0 * column), np.cos(3.0 * column)) - 0.3 * column


def test_what_every_context_could_explain_by_itself_is_found():
    data = make_data(pull, noise=0.05)
    assert 0.9 < explainable_share(make_model(), data) < 1.0


def test_noise_cannot_be_explained():
    assert explainable_share(make_model(), make_data(lambda *_: 0.0, noise=1.0)) < 0.1


def test_what_is_left_by_rounding_is_nothing_to_explain():
    data = make_data(lambda _, column: np.cos(3.0 * column), noise=0.0)
    exact = make_model()
    exact.dynamics.predict = lambda obs, *_: torch.stack([obs[:, 0] + torch.cos(3.0 * obs[:, 0]), obs[:, 1]], 1)
    assert (data.obs[:, 1:] - data.obs[:, :-1])[..., 0].std() > 0.1
    assert explainable_share(exact, data) == 0.0


def test_the_head_of_a_step_is_that_of_its_contexts_slot():
    data = make_data(lambda *_: 0.0, noise=0.1)
    labels = data.context[data.is_observed]
    left = own_residuals(make_model(), data, labels)
    np.testing.assert_allclose(left[:, 1], -0.01 * np.array(SLOTS)[labels], atol=1e-6)


def test_contexts_are_divided_by_their_own_rows_if_these_are_enough(monkeypatch):
    data = make_data(pull, noise=0.1, num_steps=150)
    labels = np.repeat([0, 1, 2], [60, 240, 150]).reshape(3, 150)
    # The first half has the larger residuals, so it comes second.
    found = Mock(spec=Analysis, data=data, most_likely=labels)
    size = np.abs(own_residuals(make_model(3, [0, 1, 2]), data, labels.ravel())[:, 0])

    def halve(rows, _):
        is_large = np.abs(rows.targets[:, 0]) > np.median(np.abs(rows.targets[:, 0]))
        return float(len(rows)), np.stack([is_large, ~is_large], 1).astype(float)

    monkeypatch.setattr(residual_split, "_halve", halve)
    halves = residual_split.divisions(make_model(3, [0, 1, 2]), found)
    assert {context: each.gain for context, each in halves.items()} == pytest.approx({1: 240 / 450, 2: 150 / 450})
    assert halves[1].index.tolist() == list(range(60, 300))
    for each in halves.values():
        small, large = each.weight.T.astype(bool)
        assert size[each.index][small].max() <= size[each.index][large].min()


@pytest.mark.parametrize(("of_two", "gain"), [(7.0, 0.0), (10.25, 0.25)])
def test_the_gain_of_a_division_is_that_over_one_head_or_none(of_two, gain, monkeypatch):
    monkeypatch.setattr(residual_split, "_evidence", lambda state: (10.0, of_two)[state.num_contexts - 1])
    found, weight = residual_split._halve(make_rows(make_data(pull, noise=0.1)), 0.1)
    assert found == gain
    assert weight.shape == (360, 2)
