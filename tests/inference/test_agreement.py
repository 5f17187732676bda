"""Agreement on labels: the adjusted Rand index against hand-made and enumerated values, halves of the episodes."""

import itertools
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock, call

import numpy as np
import pytest
import torch

import mbrl_hdp
from mbrl_hdp.hooks import load_registry
from mbrl_hdp.inference import fit as fit_module
from mbrl_hdp.inference import runs as runs_module
from mbrl_hdp.inference.agreement import adjusted_rand, agreement_with, half_agreement, own_share, shares_by_context
from mbrl_hdp.inference.building import Builder
from mbrl_hdp.inference.episodes import EpisodeTensors
from mbrl_hdp.inference.recipes import RECIPES
from mbrl_hdp.inference.runs import Runs
from mbrl_hdp.inference.schedule import TEMPERED, FitConfig
from mbrl_hdp.inference.search import Structure
from mbrl_hdp.inference.search.features import Features, Library
from mbrl_hdp.inference.search.rows import make_rows
from mbrl_hdp.inference.starts import DIVIDED, Contexts, Start
from mbrl_hdp.inference.training import Job
from tests.inference.test_fit import weak_prior, world


def by_pairs(one, two):
    """Hubert and Arabie's index from the 2 x 2 table of all pairs of steps."""
    table = np.zeros((2, 2))
    for i, j in itertools.combinations(range(len(one)), 2):
        table[int(one[i] == one[j]), int(two[i] == two[j])] += 1
    (both_apart, only_two), (only_one, both) = table
    top = 2.0 * (both * both_apart - only_one * only_two)
    return top / ((both + only_one) * (only_one + both_apart) + (both + only_two) * (only_two + both_apart))


def test_a_known_value():
    # Six steps, classes {3, 3} against {2, 4}: 4 pairs together, 6 and 7 within, 15 in all: (4 - 2.8) / (6.5 - 2.8).
    one, two = np.array([0, 0, 0, 1, 1, 1]), np.array([0, 0, 1, 1, 1, 1])
    assert adjusted_rand(one, two) == pytest.approx(1.2 / 3.7)


def test_it_counts_pairs():
    rng = np.random.default_rng(0)
    for _ in range(20):
        one, two = rng.integers(3, size=13), rng.integers(4, size=13)
        assert adjusted_rand(one, two) == pytest.approx(by_pairs(one, two))


def test_names_do_not_matter_and_chance_is_zero():
    rng = np.random.default_rng(1)
    labels = rng.integers(3, size=(20, 50))
    assert adjusted_rand(labels, np.array([7, 2, 4])[labels]) == 1.0
    assert abs(adjusted_rand(labels, rng.integers(3, size=(20, 50)))) < 0.02
    one = np.zeros(10, dtype=int)
    assert adjusted_rand(one, one) == 1.0  # both say one context
    assert adjusted_rand(one, np.arange(10) % 2) == 0.0  # the same number matters


def test_steps_without_label_do_not_count():
    one, two = np.array([0, 0, 1, 1, -1, 0]), np.array([1, 1, 0, 0, 0, -1])
    assert adjusted_rand(one, two) == 1.0
    assert np.isnan(adjusted_rand(one, np.full(6, -1)))


def test_errors_of_two_equal_contexts():
    """The docstring's rule: a share e of wrong labels leaves about (1 - 2 e)^2."""
    truth = np.arange(4000) % 2
    wrong = truth.copy()
    wrong[:400] = 1 - wrong[:400]
    assert adjusted_rand(truth, wrong) == pytest.approx(0.64, abs=0.002)


@pytest.fixture(scope="module")
def data():
    return world(24, 0)


@pytest.fixture(scope="module")
def model(data):
    return mbrl_hdp.fit(data, weak_prior(), dynamics="linear", max_contexts=3, progress=False)


def test_a_fit_says_how_far_its_runs_and_halves_agree(data, model):
    runs = {run["schedule"]: run for run in model.report.runs}
    assert [run["agreement"] for run in model.report.runs if run["taken"]] == [1.0]
    assert runs["search"]["agreement"] > 0.97
    assert runs["one context"]["agreement"] == 0.0
    assert all(run["equally_good"] for run in model.report.runs if run["taken"])
    assert not runs["one context"]["equally_good"]
    assert len(model.report.search["half_agreement"]) == 2
    assert min(model.report.search["half_agreement"]) > 0.9


def test_labels_are_compared_on_the_same_steps(data, model):
    other = model.at_level(1)
    assert agreement_with(model, [model, other], data) == [1.0, 0.0]
    noisy = data.select(slice(0, 12))
    assert agreement_with(other, [other, model], noisy) == [1.0, 0.0]


def structure_of(data, labels, regions=(0.0, 0.0)):
    """What a search would return that labelled the steps like this."""
    num = len(regions)
    features = Features(Library(make_rows(data)), [()])
    return Structure(np.eye(num)[labels], np.full((num, num), 1 / num), 0.0, np.array(regions), features, [], 0.0)


def test_a_context_has_the_region_share_of_the_one_that_is_it_for_most_of_its_steps(data, model):
    labels = model.most_likely(data)
    regions = (0.1, 0.7, np.nan)
    assert shares_by_context(model, data, structure_of(data, labels, regions)) == [0.1, 0.7]
    assert shares_by_context(model, data, structure_of(data, 1 - labels, regions)) == [0.7, 0.1]
    # Where no context of the search is the same one, the share is computed from the model's own labels.
    own = [own_share(model, data, context) for context in range(2)]
    assert max(own) < 0.1
    assert shares_by_context(model, data, structure_of(data, labels + 1, regions)) == [0.7, own[1]]
    # Three contexts of the search share the steps of each context of the model: none is the same.
    thirds = np.cumsum(np.eye(2)[labels], axis=1)[..., 0].astype(int) + np.arange(len(labels))[:, None]
    divided = np.where(labels == 0, thirds % 3, 1)
    assert shares_by_context(model, data, structure_of(data, divided, regions)) == own


def test_halves_are_searched_apart(data, model):
    """Every episode is in one half; labels that have nothing to do with the model's do not agree."""
    seen = []

    def search(half, other):
        seen.append(half)
        assert half.num_episodes + other.num_episodes == data.num_episodes
        return np.arange(half.max_steps)[None] // 5 % 2 + np.zeros((half.num_episodes, 1), dtype=int)

    found = half_agreement(model, data, search, seed=0)
    assert [half.num_episodes for half in seen] == [12, 12]
    together = np.concatenate([half.obs for half in seen])
    assert {each.tobytes() for each in together} == {each.tobytes() for each in data.obs}
    assert max(found) < 0.2
    assert half_agreement(model, data.select(slice(0, 9)), search, seed=0) == []


@pytest.mark.parametrize(("repeats", "start"), [(True, "tempered"), (False, "search"), (False, "noise levels")])
def test_halves_are_learned_in_the_way_that_led_to_the_model(data, model, repeats, start):
    one, two = data.select(slice(0, 12)), data.select(slice(12, 24))
    searched = np.zeros((12, 40), dtype=int)
    levels = SimpleNamespace(probability=np.tile([0.3, 0.7], (12, 40, 1)))

    def search(half):
        assert half is one
        return SimpleNamespace(labels=searched + 7, noise_levels=levels)

    runs = Mock(spec=Runs)
    runs.results = [SimpleNamespace(start=SimpleNamespace(name=name)) for name in ("search", "search", start)]
    runs.repeats.side_effect = lambda best: repeats and best == 2
    runs.again.return_value = model
    labels = fit_module._route(runs, 2, search)(one, two)
    found = searched + 1 if start == "noise levels" else searched + 7
    np.testing.assert_array_equal(labels, model.most_likely(one) if repeats else found)
    assert runs.again.call_args_list == ([call(2, one, two)] if repeats else [])


def doubt(data, model, accepted=1, name="tempered", warm_start=None, **settings):
    """What speaks against the two contexts of a model that was learned from random heads, or by a division."""
    runs = object.__new__(Runs)
    runs.results = [SimpleNamespace(start=SimpleNamespace(contexts=SimpleNamespace(num_contexts=accepted)))]
    runs.warm_start, runs.build = warm_start, SimpleNamespace(has_closed_form=lambda part: True)
    runs.job = SimpleNamespace(held_out=data, config=FitConfig(**settings))
    return runs._doubt(Start(name, model.parts.dynamics, TEMPERED), model)


def test_more_contexts_than_the_search_accepted_are_held_to_its_rules(monkeypatch, data, model):
    assert doubt(data, model) is None  # they are real
    with monkeypatch.context() as patch:
        patch.setattr(runs_module, "explainable_share", lambda *_: 0.5)
        assert "explain 50% of what its heads leave over" in doubt(data, model)
        assert doubt(data, model, accepted=2) is None  # no more than the search found
        assert doubt(data, model, name=DIVIDED, warm_start=model) is None  # that was looked at before
    with monkeypatch.context() as patch:
        patch.setattr(runs_module, "own_share", lambda *_: 0.6)
        assert "explain 60% of when one is left" in doubt(data, model)
        assert doubt(data, model, regions="allow") is None
        assert doubt(data, model, warm_start=model) is None  # heads that compete with a refit
        assert "explain 60%" in doubt(data, model, accepted=2, name=DIVIDED, warm_start=model)
    monkeypatch.setattr(runs_module, "LEAST_STAY", 0.99)
    stay = 1.0 / (1.0 - model.transition.diagonal().min())
    assert doubt(data, model) == f"one stays for {stay:.1f} steps only"


def test_a_run_is_repeated_from_other_heads_on_other_episodes(data, model):
    config = FitConfig(num_restarts=1)
    parts = model.parts.prior, model.parts.dynamics, model.parts.distillation
    build = Builder(load_registry(), data, parts, 3, None, 0, RECIPES["robust"])
    job = Job(config, EpisodeTensors.of(data), None, data)
    runs = Runs(job, build, None, None, 0, torch.device("cpu"))
    start = Start("tempered", model.parts.dynamics, TEMPERED)
    runs.results = [
        SimpleNamespace(start=start),
        SimpleNamespace(start=replace(start, contexts=Contexts(np.ones((1, 1, 1)), np.ones((1, 1))))),
    ]
    assert runs.repeats(0)
    assert not runs.repeats(1)  # it started from a search
    again = runs.again(0, data.select(slice(0, 12)), data.select(slice(12, 24)))
    assert adjusted_rand(again.most_likely(data), model.most_likely(data)) > 0.9
