"""The whole search on systems whose contexts are known; small ones, so that it takes seconds."""

import dataclasses

import numpy as np
import pytest

from mbrl_hdp import Trajectories
from mbrl_hdp.envs.systems import simulate
from mbrl_hdp.errors import ConfigError
from mbrl_hdp.inference.scoring import align
from mbrl_hdp.inference.search import find_contexts, search
from mbrl_hdp.inference.search.features import Library, linear_features, monomials
from mbrl_hdp.inference.search.moves import birth, one_context, settle
from mbrl_hdp.inference.search.rows import make_rows


def data_of(name, variant="plain", num_episodes=100):
    rollouts = simulate(name, variant, seed=11, num_episodes=num_episodes)
    return Trajectories(obs=rollouts.obs, act=rollouts.act), rollouts.context


@pytest.mark.parametrize(("name", "count"), [("pendulum", 2), ("lotka_volterra", 2)])
def test_hidden_contexts_are_counted_and_labelled(name, count):
    data, truth = data_of(name, num_episodes=40)
    found = find_contexts(data)
    assert found.num_contexts == count
    assert align(found.labels, truth).accuracy > 0.98
    assert found.regions.max() < 0.1
    np.testing.assert_allclose(found.transition.sum(1), 1.0)


@pytest.mark.parametrize("variant", ["still", "still_process", "still_observation"])
def test_a_nonlinear_oscillator_that_never_switches_has_one_context(variant):
    data, _ = data_of("van_der_pol", variant, num_episodes=40)
    assert find_contexts(data).num_contexts == 1


def test_large_data_is_searched_in_part_and_labelled_whole(monkeypatch):
    data, truth = data_of("pendulum", num_episodes=80)
    monkeypatch.setattr(search, "MOST_ROWS", 3000)
    found = find_contexts(data)
    assert found.num_contexts == 2
    assert found.probability.shape == (80, 100, 2)
    assert align(found.labels, truth).accuracy > 0.98


def test_regions_are_allowed_or_forbidden():
    data, _ = data_of("pendulum", num_episodes=12)
    with pytest.raises(ConfigError, match="forbid"):
        find_contexts(data, regions="perhaps")


def test_halves_of_one_context_by_position_are_merged():
    data, truth = data_of("van_der_pol", num_episodes=40)
    rows = make_rows(data)
    labels = truth[rows.episode, rows.step]
    features = linear_features(Library(rows))
    features = features.with_terms(monomials(features.library, 3, 60))
    halves = np.where((labels == 1) & (rows.inputs[:, 0] > 0.0), 2, labels)
    current = settle(rows, features, 0.98 * np.eye(3)[halves] + 0.02 / 3, search.FLOOR)
    assert current.num_contexts == 3
    merged = search._Search(rows, 5, search.FORBID)._pruned(current)
    assert merged.num_contexts == 2
    assert align(merged.state.weight.argmax(1), labels).accuracy > 0.95


def test_a_context_is_born_of_outliers_that_others_share_and_stays():
    data, truth = data_of("linear_6d_4", num_episodes=40)
    rows = make_rows(data)
    labels = truth[rows.episode, rows.step]
    features = linear_features(Library(rows))
    # The rows of context 3 are spread over the heads of the other three, which their robust weights then ignore.
    spread = np.where((labels == 3)[:, None], 1.0 / 3.0, np.eye(4)[labels][:, :3])
    without = settle(rows, features, spread, search.FLOOR)
    donor, born = birth(rows, without)
    assert 0 <= donor < 3
    assert align(born.state.weight.argmax(1), labels).accuracy > 0.98
    whole = settle(rows, features, 0.97 * np.eye(4)[labels] + 0.0075, search.FLOOR)
    assert birth(rows, whole) is None
    assert search._Search(rows, 5, search.FORBID)._pruned(whole).num_contexts == 4


def test_a_first_division_whose_em_stopped_early_is_run_again():
    rollouts = simulate("windy_point", "plain", seed=6, num_episodes=100)
    rows = make_rows(Trajectories(obs=rollouts.obs, act=rollouts.act))
    trial = search._Search(rows, 12, search.FORBID)
    current = trial._widened(one_context(rows, linear_features(Library(rows)), search.FLOOR))
    assert trial._divide(current) is not None
    assert [verdict.is_accepted for verdict in trial.history] == [False, True]


@pytest.mark.parametrize(
    ("change", "lacks"),
    [
        ({}, True),
        ({"jump": None}, True),
        ({"jump": None, "region": 0.6}, False),  # two stripes of one context
        ({"is_accepted": True}, False),
        ({"beyond_gate": 0.01, "region": 0.6}, False),  # a place, not a hidden context
        ({"jump": 0.3}, False),
        ({"stay": 0.5}, False),
    ],
)
def test_only_hidden_contexts_without_gain_are_looked_at_again(change, lacks):
    verdict = search.Verdict(0, -0.1, 0.02, beyond_gate=0.2, jump=0.9, region=0.0, stay=0.9, is_accepted=False)
    assert dataclasses.replace(verdict, **change).lacks_gain_only == lacks


def test_halves_that_never_touch_and_end_by_place_are_parts_of_one_context(monkeypatch):
    data, truth = data_of("linear_4d_2", num_episodes=20)
    rows = make_rows(data)
    features = linear_features(Library(rows))
    current = one_context(rows, features, search.FLOOR)
    child = settle(rows, features, np.eye(2)[truth.reshape(-1)], search.FLOOR)
    trial = search._Search(rows, 12, search.FORBID)
    monkeypatch.setattr(search, "jump_share", lambda *_: None)
    for region, is_accepted in ((0.1, True), (0.6, False)):
        monkeypatch.setattr(search, "region_share", lambda *_, share=region: share)
        assert trial._judge(current, current, child, 0).is_accepted is is_accepted


def test_a_third_context_by_place_needs_a_clear_place(monkeypatch):
    data, truth = data_of("linear_4d_2", num_episodes=20)
    rows = make_rows(data)
    features = linear_features(Library(rows))
    one, two = one_context(rows, features, search.FLOOR), settle(rows, features, np.eye(2)[truth.reshape(-1)], 0.01)
    trial = search._Search(rows, 12, search.FORBID)
    monkeypatch.setattr(search, "gain_of", lambda *_: (1.0, 0.01))
    monkeypatch.setattr(search, "jump_share", lambda *_: 0.9)
    monkeypatch.setattr(search, "gated_evidence", lambda _rows, state, _pair: state.evidence + 1.0)
    for region, is_first, is_third in ((0.2, False, False), (0.4, True, False), (0.6, True, True)):
        monkeypatch.setattr(search, "region_share", lambda *_, share=region: share)
        assert trial._judge(one, one, two, 0).is_accepted is is_first
        assert trial._judge(two, two, two, 0).is_accepted is is_third
