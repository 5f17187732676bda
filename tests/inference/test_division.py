"""New contexts beside known ones: the contexts of a model are divided by what its own heads leave over."""

import dataclasses
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch

import mbrl_hdp
from mbrl_hdp import Trajectories
from mbrl_hdp.inference import division
from mbrl_hdp.inference.division import divide_on, divided
from mbrl_hdp.inference.model import ContextModel
from mbrl_hdp.inference.progress import FitProgress
from mbrl_hdp.inference.residual_split import Look
from mbrl_hdp.inference.runs import Runs
from mbrl_hdp.inference.schedule import FitConfig
from mbrl_hdp.inference.scoring import align
from mbrl_hdp.inference.search.search import LEAST_GAIN
from mbrl_hdp.inference.structure import search_structure
from mbrl_hdp.workers import open_workers
from tests.inference.test_fit import QUICK, weak_prior, world

CONFIG = FitConfig(halves_within_s=0.0, num_steps=40, num_restarts=1, polish_steps=20, learning_rate=2e-2)


@pytest.fixture(scope="module")
def rare_model():
    """A model that knows only the rarer of two contexts."""
    config = dataclasses.replace(CONFIG, num_contexts=1)
    known = world(30, 1, contexts=(2,))
    return mbrl_hdp.fit(known, weak_prior(), dynamics="linear", max_contexts=3, config=config, progress=False)


@pytest.fixture(scope="module")
def both():
    return world(40, 2, contexts=(0, 2))


def test_what_the_head_explains_keeps_its_slot_and_the_rest_gets_a_copy(rare_model, both):
    start = divided(rare_model, both)
    (slot,) = rare_model.slots.tolist()
    labels = start.contexts.probability.argmax(-1)
    assert (both.context == 2).mean() < 0.45  # most of the steps are of the new context
    assert ((labels == 0) == (both.context == 2)).mean() > 0.95
    known, new = start.contexts.places.tolist()
    assert known == slot
    assert new != slot
    for before, after in zip(rare_model.dynamics.parameters(), start.model.dynamics.parameters(), strict=True):
        assert torch.equal(after[[known, new]], before[[slot, slot]])
    counted = np.array([[(labels[:, :-1] == i) & (labels[:, 1:] == j) for j in (0, 1)] for i in (0, 1)]).sum((2, 3))
    np.testing.assert_allclose(start.contexts.transition, counted / counted.sum(1, keepdims=True), atol=0.03)


def test_steps_that_were_not_observed_belong_to_no_context(rare_model, both):
    obs = both.obs.copy()
    obs[3, 10] = np.nan
    holey = mbrl_hdp.Trajectories(obs, both.act, context=both.context, allow_missing=True)
    probability = divided(rare_model, holey).contexts.probability
    np.testing.assert_allclose(probability.sum(-1), holey.is_observed.astype(float))
    assert not holey.is_observed[3, 9:11].any()
    # The steps after a gap are those of their own context.
    assert ((probability[4:].argmax(-1) == 0) == (both.context[4:] == 2)).mean() > 0.95


def test_a_known_context_that_is_whole_is_not_divided(rare_model):
    assert divided(rare_model, world(40, 3, contexts=(2,))) is None


def test_the_division_that_promises_most_takes_the_last_slot(both, monkeypatch):
    """Two contexts that both promise a gain, one free slot."""
    two, full = (
        mbrl_hdp.fit(both, weak_prior(), dynamics="linear", max_contexts=most, config=QUICK, progress=False)
        for most in (3, 2)
    )
    assert (two.num_contexts, full.num_contexts) == (2, 2)
    labels = two.most_likely(both)[both.is_observed]
    halves = {}
    for context, gain in enumerate((2.0 * LEAST_GAIN, 3.0 * LEAST_GAIN)):
        index = np.flatnonzero(labels == context)
        halves[context] = division.Halves(gain, index, np.tile([0.25, 0.75], (len(index), 1)))
    monkeypatch.setattr(division, "divisions", lambda *_: halves)
    probability = divided(two, both).contexts.probability
    assert probability.shape[-1] == 3
    np.testing.assert_allclose(probability[two.most_likely(both) == 1].mean(0), [0.0, 0.25, 0.75])
    np.testing.assert_allclose(probability[two.most_likely(both) == 0].mean(0), [1.0, 0.0, 0.0])
    assert divided(full, both) is None


def test_an_opened_chain_finds_what_the_search_misses(rare_model, both, monkeypatch):
    missed = search_structure(world(36, 2, contexts=(2,)), 3)
    assert missed.num_contexts == 1

    def search(data, *_):
        return dataclasses.replace(missed, probability=data.is_observed[..., None].astype(float))

    monkeypatch.setattr("mbrl_hdp.inference.structure.search_structure", search)
    options = {"warm_start": rare_model, "reset": "chain", "config": CONFIG, "progress": False}
    grown = mbrl_hdp.fit(both, **options)
    assert grown.report.runs[-1]["schedule"] == "divided"
    assert grown.report.runs[-1]["taken"]
    assert align(grown.most_likely(both), both.context).accuracy > 0.95
    assert grown.kept[rare_model.kept].all()
    assert grown.report.search["new_contexts"] != []
    monkeypatch.setattr("mbrl_hdp.inference.fit.divide_on", lambda *_: pytest.fail("nothing may be divided"))
    mbrl_hdp.fit(both, **options | {"config": dataclasses.replace(CONFIG, num_contexts=2)})
    mbrl_hdp.fit(both, **options | {"reset": None})


class TestDivideOn:
    """The order of what is divided, with runs whose outcome is given."""

    def bases(self, monkeypatch, gains, wins):
        """Return what was divided: the known model, then runs by their number."""
        models = [Mock(spec=ContextModel) for _ in range(9)]
        known = Mock(spec=ContextModel, task=SimpleNamespace(max_contexts=5))
        runs = Mock(spec=Runs, warm_start=known, best_model=models[0])
        asked, won = [], iter(wins)

        def divide(base, _):
            asked.append("known" if base is known else models.index(base))
            return Mock()

        def take_all(starts, *_):
            assert len(starts) == 1
            if next(won):
                runs.best_model = models[models.index(runs.best_model) + 1]

        runs.take_all = take_all
        monkeypatch.setattr(division, "divided", divide)
        monkeypatch.setattr(
            division, "look_at", lambda model, _: Look(np.array([0.0, gains[models.index(model)]]), None, 0.0)
        )
        divide_on(runs, Mock(spec=Trajectories), Mock(spec=FitProgress), open_workers)
        return asked

    def test_nothing_where_the_best_run_needs_no_division(self, monkeypatch):
        assert self.bases(monkeypatch, [0.9 * LEAST_GAIN], []) == []

    def test_the_known_model_first_then_what_became_of_it(self, monkeypatch):
        assert self.bases(monkeypatch, [1.0, 1.0, 0.0], [True, True]) == ["known", 1]

    def test_the_best_run_where_the_known_model_did_not_help_and_then_the_end(self, monkeypatch):
        assert self.bases(monkeypatch, [1.0], [False, False]) == ["known", 0]

    def test_it_ends_with_the_slots(self, monkeypatch):
        assert self.bases(monkeypatch, [1.0] * 9, [True] * 9) == ["known", 1, 2, 3, 4]
