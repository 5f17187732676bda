"""Spikes of a sensor: counted where a reading jumps away and comes back, not where the system moves."""

from __future__ import annotations

import numpy as np

from mbrl_hdp import Trajectories
from mbrl_hdp.report.sensor_spikes import is_spike, sensor_spikes


def walk(num_steps: int = 500) -> np.ndarray:
    rng = np.random.default_rng(0)
    return np.cumsum(rng.normal(0.0, 0.1, (2, num_steps + 1, 2)), axis=1)


def test_spikes_are_marked_where_they_are() -> None:
    obs = walk()
    obs[0, 100, 1] += 5.0
    obs[1, [50, 200, 300, 400], 1] -= 4.0
    data = Trajectories(obs)
    assert np.argwhere(is_spike(data)).tolist() == [[0, 100, 1], *([1, t, 1] for t in (50, 200, 300, 400))]
    words = list(sensor_spikes(data, ("level", "flow")))
    assert len(words) == 1
    assert "in flow (5 readings)" in words[0]
    assert "level" not in words[0]


def test_a_jump_that_stays_is_no_spike() -> None:
    obs = walk()
    obs[0, 100:] += 5.0
    assert not is_spike(Trajectories(obs)).any()


def test_nothing_is_said_about_few_or_very_many() -> None:
    few, many = walk(), walk()
    few[0, 100:400:100, 0] += 5.0
    many[:, ::8, 0] += 5.0
    assert not list(sensor_spikes(Trajectories(few), ("a", "b")))
    assert not list(sensor_spikes(Trajectories(many), ("a", "b")))


def test_padding_and_missing_readings_do_not_count() -> None:
    obs = walk()
    obs[0, 300:] = 0.0
    obs[1, 77, 0] = np.nan
    assert not is_spike(Trajectories(obs, lengths=[250, 500], allow_missing=True)).any()
