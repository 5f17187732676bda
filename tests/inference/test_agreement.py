"""Agreement on labels: the adjusted Rand index against hand-made and enumerated values, halves of the episodes."""

import itertools

import numpy as np
import pytest

import mbrl_hdp
from mbrl_hdp.inference.agreement import adjusted_rand, agreement_with, half_agreement
from mbrl_hdp.inference.search import Structure
from mbrl_hdp.inference.search.features import Features, Library
from mbrl_hdp.inference.search.rows import make_rows
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


def test_halves_are_searched_apart(data, model):
    """Every episode is in one half; labels that have nothing to do with the model's do not agree."""
    seen = []

    def search(half):
        seen.append(half)
        labels = np.arange(half.max_steps)[None] // 5 % 2 + np.zeros((half.num_episodes, 1), dtype=int)
        return Structure(
            np.eye(2)[labels], np.full((2, 2), 0.5), 0.0, np.zeros(2), Features(Library(make_rows(half)), [()]), [], 0.0
        )

    found = half_agreement(model, data, search, seed=0)
    assert [half.num_episodes for half in seen] == [12, 12]
    together = np.concatenate([half.obs for half in seen])
    assert {each.tobytes() for each in together} == {each.tobytes() for each in data.obs}
    assert max(found) < 0.2
    assert half_agreement(model, data.select(slice(0, 9)), search, seed=0) == []
