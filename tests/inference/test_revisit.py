"""Refits may change the contexts: more where residuals say so, fewer where one is not needed, soon if nothing did."""

import copy

import numpy as np
import pytest
import torch

import mbrl_hdp
from mbrl_hdp.inference.levels import one_fewer
from mbrl_hdp.inference.residual_split import Look, look_at
from mbrl_hdp.inference.revisit import LEAST_GAIN, _is_due, _places, _regrouped
from mbrl_hdp.inference.schedule import FitConfig
from mbrl_hdp.inference.scoring import align
from mbrl_hdp.inference.search import Structure
from mbrl_hdp.inference.search.features import Features, Library
from mbrl_hdp.inference.search.rows import make_rows
from tests.inference.test_fit import weak_prior, world

CONFIG = FitConfig(halves_within_s=0.0)


@pytest.fixture(scope="module")
def two_data():
    return world(30, 5)


@pytest.fixture(scope="module")
def one_model(two_data):
    fitted = mbrl_hdp.fit(two_data, weak_prior(), dynamics="linear", max_contexts=4, config=CONFIG, progress=False)
    return fitted.at_level(1)


@pytest.fixture(scope="module")
def two_model(one_model, two_data):
    """The model with one context, refitted on data with two."""
    return mbrl_hdp.fit(two_data, warm_start=one_model, config=CONFIG, progress=False)


def test_a_context_comes_back(one_model, two_model, two_data):
    assert one_model.num_contexts == 1
    assert two_model.num_contexts == 2
    assert align(two_model.most_likely(two_data), two_data.context).accuracy > 0.97
    assert [run["schedule"] for run in two_model.report.runs] == ["refit", "search"]
    assert two_model.report.runs[1]["taken"]
    assert two_model.report.search["look"]["gain"] > 0.5
    # Agents see the belief slot by slot: the larger part of the old context is in its old slot.
    (slot,) = one_model.slots.tolist()
    assert two_model.slots.tolist().index(slot) == two_model.stationary.argmax()


def test_nothing_is_searched_where_nothing_changed(two_model, monkeypatch):
    more = world(30, 6)
    monkeypatch.setattr("mbrl_hdp.inference.structure.search_structure", lambda *_: pytest.fail("no search is needed"))
    again = mbrl_hdp.fit(more, warm_start=two_model, config=CONFIG, progress=False)
    assert again.num_contexts == 2
    assert [run["schedule"] for run in again.report.runs] == ["refit"]
    look = again.report.search["look"]
    assert look["gain"] < LEAST_GAIN
    assert look["merge"] is None
    # The last search is remembered from refit to refit.
    assert again.report.search["last_search"] == two_model.report.search["last_search"]


def test_the_paper_recipe_and_random_starts_do_not_look_again(one_model, two_data):
    quick = FitConfig(start="random", num_steps=2, polish_steps=0)
    again = mbrl_hdp.fit(two_data, warm_start=one_model, config=quick, progress=False)
    assert [run["schedule"] for run in again.report.runs] == ["refit"]
    assert "look" not in again.report.search


def test_a_context_that_is_not_needed_goes(two_model, two_data):
    """A copy of a context in a third slot: the look names the two copies, and without them there are two contexts."""
    double = copy.deepcopy(two_model)
    first, second = double.slots.tolist()
    (free,) = [slot for slot in range(4) if slot not in (first, second)][:1]
    with torch.no_grad():
        for values in double.dynamics.parameters():
            values[free] = values[second]
        chain = double.chain
        initial, rows = torch.zeros(4), torch.full((4, 4), 0.25)
        old = torch.zeros(3, 3)
        old[:2, :2], old[2, :2] = chain.transition, chain.transition[1]
        old[:, 1:] = old[:, 1:2] / 2
        slots = torch.tensor([first, second, free])
        initial[slots] = torch.tensor([0.5, 0.25, 0.25])
        rows[slots] = 0.0
        rows[slots[:, None], slots] = old
        double.prior.start_from(mbrl_hdp.ContextChain(initial, rows), 1e4)
    double.is_active = torch.isin(torch.arange(4), slots)
    double.extract()
    assert double.num_contexts == 3
    merged = look_at(double, two_data).merge
    assert {double.slots.tolist()[context] for context in merged} == {second, free}
    assert look_at(two_model, two_data).merge is None
    again = one_fewer(double, two_data)
    assert again.num_contexts == 2
    assert align(again.most_likely(two_data), two_data.context).accuracy > 0.97


def no_features(data):
    return Features(Library(make_rows(data)), [()])


def look(gain):
    return Look(np.array([0.0, gain]), None, 0.1)


def test_when_a_search_is_due():
    last = {"gain": 0.1, "num_transitions": 1000}
    assert not _is_due(look(0.9 * LEAST_GAIN), 10**6, None)
    assert _is_due(look(1.1 * LEAST_GAIN), 100, None)
    assert not _is_due(look(0.14), 1400, last)  # about as at the last search, which changed nothing
    assert _is_due(look(0.16), 1001, last)
    assert _is_due(look(0.05), 1500, last)


def test_places_of_the_contexts_of_a_search(two_model, two_data):
    """Contexts that the model knew keep their slots, whatever their number in the search; others take free ones."""
    labels = two_model.most_likely(two_data)
    found = np.where(labels == 0, 2, 1)
    found[:8] = np.where(labels[:8] == 0, 0, 1)  # the first context is divided, its smaller part is new
    structure = Structure(np.eye(3)[found], np.full((3, 3), 1 / 3), 0.0, np.zeros(3), no_features(two_data), [], 0.0)
    places, parents = _places(two_model, labels, structure)
    first, second = two_model.slots.tolist()
    assert (places[2], places[1]) == (first, second)
    assert places[0] not in (first, second)
    assert parents.tolist() == [first, second, first]


def test_a_network_gets_a_new_head(two_data):
    """The new context starts from a copy of the head that explained its steps; heads of known ones stay."""
    config = FitConfig(start="random", num_steps=20, num_restarts=1, polish_steps=0)
    data = world(10, 0)
    model = mbrl_hdp.fit(data, weak_prior(), dynamics="delta_mlp", max_contexts=3, config=config, progress=False)
    model.is_active = torch.tensor([False, True, False])
    model.extract()
    assert model.slots.tolist() == [1]
    probability = np.eye(2)[np.where(two_data.context == 0, 0, 1)]
    share = probability[..., 0].mean()
    known = int(share < 0.5)  # of the two contexts, the one with more steps
    structure = Structure(probability, np.full((2, 2), 0.5), 0.0, np.zeros(2), no_features(two_data), [], 0.0)
    start = _regrouped(model, two_data, structure, build=pytest.fail)
    assert start.contexts.places[known] == 1
    new = int(start.contexts.places[1 - known])
    for before, after in zip(model.dynamics.parameters(), start.model.dynamics.parameters(), strict=True):
        assert torch.equal(after[1], before[1])
        assert torch.equal(after[new], before[1])
        assert not torch.equal(after[new], before[new])
