"""Recordings: shapes, seeds, and that contexts are where the definition puts them."""

from __future__ import annotations

import numpy as np
import pytest

from mbrl_hdp import Trajectories
from mbrl_hdp.envs.recordings import RECORDINGS, hidden_path, record


@pytest.mark.parametrize("name", RECORDINGS)
def test_a_seed_decides_everything(name: str) -> None:
    one, two, other = record(name, 3), record(name, 3), record(name, 4)
    for first, second in zip(one, two, strict=True):
        np.testing.assert_array_equal(first, second)
    assert not np.array_equal(one.obs, other.obs)
    data = Trajectories(obs=one.obs, act=one.act, context=one.context)
    assert data.is_observed.all()


def test_paths_stay_as_often_as_asked() -> None:
    path = hidden_path(np.random.default_rng(0), (200, 200), 3, 0.9)
    stays = (path[:, 1:] == path[:, :-1]).mean()
    assert stays == pytest.approx(0.9, abs=6 * np.sqrt(0.09 / path[:, 1:].size))
    assert np.unique(path).tolist() == [0, 1, 2]


def test_the_valve_of_the_heating_acts_three_steps_late() -> None:
    log = record("heating", 0)
    change = log.obs[:, 1:, 0] - log.obs[:, :-1, 0]
    normal = log.context == 0
    by_lag = [
        abs(np.corrcoef(change[:, 5:][normal[:, 5:]], log.act[:, 5 - lag : 120 - lag, 0][normal[:, 5:]])[0, 1])
        for lag in range(6)
    ]
    assert int(np.argmax(by_lag)) == 3


def test_weather_is_what_the_building_logs_differ_in() -> None:
    inputs, observed = record("building", 0), record("building_weather", 0)
    np.testing.assert_array_equal(inputs.obs[..., 0], observed.obs[..., 0])
    np.testing.assert_array_equal(inputs.act[..., 1:], observed.obs[:, :-1, 1:])


def test_gusts_shake_both_speeds_of_the_boat() -> None:
    log = record("gusts_still", 0)
    change = np.diff(log.obs, axis=1).reshape(-1, 3)
    assert np.corrcoef(change[:, 0], change[:, 1])[0, 1] > 0.7
    assert np.unique(record("gusts", 0).context).tolist() == [0, 1, 2]
    assert not log.context.any()


def test_the_conveyor_slips_seldom_and_briefly() -> None:
    contexts = np.concatenate([record("rare_fault", seed).context for seed in range(4)])
    slips = contexts == 2
    assert 0.02 < slips.mean() < 0.05
    num_starts = (slips[:, 1:] & ~slips[:, :-1]).sum()
    assert 3.0 < slips.sum() / num_starts < 5.0
    log = record("rare_fault", 0)
    change, force = np.diff(log.obs[..., 0], axis=1), log.act[..., 0]
    gains = [np.polyfit(force[log.context == k], change[log.context == k], 1)[0] for k in range(3)]
    assert gains[0] > gains[1] + 0.05 > gains[2] + 0.1
