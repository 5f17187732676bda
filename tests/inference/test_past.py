"""Logs in which an input acts late or a part of the state is not recorded: found, and learned with the past."""

from __future__ import annotations

import dataclasses
import warnings
from pathlib import Path

import numpy as np
import pytest

import mbrl_hdp
from mbrl_hdp import FitConfig, Trajectories
from mbrl_hdp.errors import DataError
from mbrl_hdp.inference.arrangement import Arranged, with_contexts
from mbrl_hdp.inference.search import Structure, find_contexts
from mbrl_hdp.inference.search.memory import _around, turned_input
from mbrl_hdp.inference.search.rows import make_rows

QUICK = FitConfig(halves_within_s=0.0, num_steps=30, polish_steps=5, num_restarts=1)
DEAD_TIME = 3


def late_valve(
    num_episodes: int = 24, num_steps: int = 80, seed: int = 0, effects: tuple[float, ...] = (1.0, 0.3),
    dead_time: int = DEAD_TIME,
) -> Trajectories:  # fmt: skip
    """Return a heater whose valve acts three steps late, with full or with little effect."""
    rng = np.random.default_rng(seed)
    obs = np.zeros((num_episodes, num_steps + 1, 1))
    act = rng.uniform(-1.0, 1.0, (num_episodes, num_steps, 1))
    context = np.zeros((num_episodes, num_steps), int)
    for n in range(num_episodes):
        for t in range(num_steps):
            before = context[n, t - 1] if t else rng.integers(2)
            context[n, t] = before if rng.random() < 0.96 else 1 - before
            effect = effects[context[n, t]] * act[n, t - dead_time, 0] if t >= dead_time else 0.0
            obs[n, t + 1] = 0.9 * obs[n, t] + effect + rng.normal(0.0, 0.02)
    return Trajectories(obs, act, context=context)


def drifting(num_episodes: int = 24, num_steps: int = 80) -> Trajectories:
    """Return a complete state with an offset that switches: the past says much, the contexts say it better."""
    rng = np.random.default_rng(1)
    obs = np.zeros((num_episodes, num_steps + 1, 1))
    act = rng.uniform(-1.0, 1.0, (num_episodes, num_steps, 1))
    for n in range(num_episodes):
        wind = 1.0
        for t in range(num_steps):
            wind = wind if rng.random() < 0.97 else -wind
            obs[n, t + 1] = 0.9 * obs[n, t] + 0.5 * act[n, t] + wind + rng.normal(0.0, 0.02)
    return Trajectories(obs, act)


@pytest.fixture(scope="module")
def late() -> Trajectories:
    return late_valve()


@pytest.fixture(scope="module")
def model(late: Trajectories) -> mbrl_hdp.ContextModel:
    return mbrl_hdp.fit(late, max_contexts=4, config=QUICK, progress=False)


@pytest.fixture(scope="module")
def searched(late: Trajectories) -> Structure:
    return find_contexts(late, 4)


def test_a_late_input_asks_for_as_many_steps(searched: Structure) -> None:
    assert searched.past_steps == DEAD_TIME


def test_a_late_input_that_contexts_turn_round_asks_for_as_many_steps() -> None:
    """Over all of the data the valve has no effect on average; around every step it has."""
    found = find_contexts(late_valve(effects=(0.8, -0.8)), 4)
    assert (found.num_contexts, found.past_steps) == (1, DEAD_TIME)
    wide = find_contexts(late_valve(effects=(0.8, -0.8)).with_past(DEAD_TIME), 4)
    assert wide.num_contexts == 2
    assert wide.evidence > found.evidence + 0.1


def test_contexts_that_turn_an_input_round_at_once_ask_for_no_past() -> None:
    data = late_valve(effects=(0.8, -0.8), dead_time=0)
    assert (find_contexts(data, 4).num_contexts, find_contexts(data, 4).past_steps) == (2, 0)


@pytest.mark.parametrize("dead_time", [0, 2])
def test_the_slope_around_a_step_says_how_late_an_input_acts(dead_time: int) -> None:
    """Smooth inputs resemble their past, and an offset that drifts is no input: neither asks for more."""
    rng = np.random.default_rng(3)
    act = rng.normal(size=(12, 90, 2))
    for t in range(1, 90):
        act[:, t, 1] = 0.9 * act[:, t - 1, 1] + 0.44 * act[:, t, 1]
    sign = np.repeat(rng.choice([-1.0, 1.0], (12, 6)), 15, 1)
    drift = 0.3 * np.cumsum(rng.normal(size=(12, 90)), 1)
    late = np.concatenate([np.zeros((12, dead_time)), act[:, : 90 - dead_time, 1]], 1)
    change = np.stack([drift + 0.2 * rng.normal(size=(12, 90)), sign * late + 0.2 * rng.normal(size=(12, 90))], -1)
    obs = np.concatenate([np.zeros((12, 1, 2)), np.cumsum(change, 1)], 1)
    rows = make_rows(Trajectories(obs, act))
    inputs = rows.inputs[:, -2:]
    assert turned_input(rows, inputs, rows.targets, 5) == dead_time
    assert turned_input(rows, inputs[:, :1], rows.targets, 5) == 0
    assert turned_input(rows, inputs, 1e-3 * rows.targets, 5) == 0


def test_episodes_shorter_than_the_past_are_no_trouble() -> None:
    rng = np.random.default_rng(0)
    rows = make_rows(Trajectories(rng.normal(size=(200, 5, 1)), rng.normal(size=(200, 4, 1))))
    with np.errstate(all="raise"), warnings.catch_warnings(action="error"):
        assert turned_input(rows, rows.inputs[:, 1:], rows.targets, 8) == 0


def test_sums_around_a_step_leave_it_out() -> None:
    rows = make_rows(Trajectories(np.random.default_rng(0).normal(size=(2, 25, 1)), np.zeros((2, 24, 0))))
    values = np.arange(48.0)[:, None] ** 2
    by_hand = [
        sum(values[24 * n + s, 0] for s in range(max(t - 8, 0), min(t + 9, 24)) if s != t)
        for n in range(2)
        for t in range(24)
    ]
    np.testing.assert_allclose(_around(rows, values)[:, 0], by_hand)


def test_contexts_that_last_ask_for_no_past() -> None:
    found = find_contexts(drifting(), 4)
    assert (found.num_contexts, found.past_steps) == (2, 0)


def test_fit_learns_with_the_past_by_itself(model: mbrl_hdp.ContextModel, late: Trajectories) -> None:
    assert (model.task.past, model.task.act_dim, model.num_contexts) == (DEAD_TIME, 7, 2)
    labels = model.most_likely(late)[:, DEAD_TIME:]
    right = (labels == late.context[:, DEAD_TIME:]).mean()
    assert max(right, 1.0 - right) > 0.95


def test_the_model_takes_data_with_and_without_the_past(model: mbrl_hdp.ContextModel, late: Trajectories) -> None:
    np.testing.assert_array_equal(model.smooth(late), model.smooth(late.with_past(DEAD_TIME)))
    with pytest.raises(DataError, match="learned on 1 observations and 7 actions"):
        model.smooth(late.with_past(1))


def test_a_saved_model_knows_its_past(model: mbrl_hdp.ContextModel, late: Trajectories, tmp_path: Path) -> None:
    model.save(tmp_path)
    again = mbrl_hdp.load(tmp_path)
    assert again.task.past == DEAD_TIME
    np.testing.assert_allclose(again.log_likelihood(late), model.log_likelihood(late))


def test_a_refit_keeps_the_past(model: mbrl_hdp.ContextModel, late: Trajectories) -> None:
    again = mbrl_hdp.fit(late, warm_start=model, config=QUICK, progress=False)
    assert (again.task.past, again.num_contexts) == (DEAD_TIME, 2)


def test_the_user_decides_about_the_past(late: Trajectories) -> None:
    few = late.select(slice(0, 20))
    assert mbrl_hdp.fit(few, past=0, max_contexts=3, config=QUICK, progress=False).task.past == 0
    linear = mbrl_hdp.fit(few, dynamics="linear", past=1, max_contexts=3, config=QUICK, progress=False)
    assert (linear.task.past, linear.task.act_dim) == (1, 3)


@pytest.mark.parametrize(("gain", "past"), [(0.2, 2), (0.05, 0)])
def test_the_past_must_earn_its_place(searched: Structure, late: Trajectories, gain: float, past: int) -> None:
    def search(train: Trajectories) -> Structure:
        evidence = 1.0 if train.act_dim == late.act_dim else 1.0 + gain
        return dataclasses.replace(searched, evidence=evidence, past_steps=2)

    arranged, found = with_contexts(late, None, 0.2, 0, search)
    assert arranged.past == past
    assert found is not None
    assert found.evidence == (1.0 + gain if past else 1.0)


def test_one_long_recording_is_cut_to_hold_some_out() -> None:
    rng = np.random.default_rng(0)
    long = Trajectories(rng.normal(size=(1, 2401, 2)))
    arranged = Arranged.of(long, 0, 0.2, 0)
    assert arranged.num_pieces == 40
    assert (arranged.train.num_episodes, arranged.held_out.num_episodes) == (32, 8)
    assert arranged.data is long
    refit = Arranged.of(long, 0, 0.2, 0, is_refit=True)
    assert (refit.num_pieces, refit.train is refit.held_out) == (0, True)
    short = Trajectories(rng.normal(size=(1, 1001, 2)))
    assert Arranged.of(short, 0, 0.2, 0).num_pieces == 0
