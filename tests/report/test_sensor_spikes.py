"""Spikes of a sensor: counted where a reading jumps away and comes back, not where the system moves."""

from __future__ import annotations

import numpy as np

from mbrl_hdp import FitConfig, Trajectories, fit
from mbrl_hdp.data.names import Names
from mbrl_hdp.data.spikes import is_spike, without_spikes
from mbrl_hdp.report.sensor_spikes import sensor_spikes
from mbrl_hdp.report.summary import summarise


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


def test_a_level_that_a_pump_turns_round_has_no_spikes() -> None:
    """A turn lies far from the line through its neighbours, but so do they."""
    move = np.where(np.arange(400) // 25 % 2, -0.1, 0.1)
    level = np.concatenate([[0.0], np.cumsum(move)])[None, :, None]
    obs = level + np.random.default_rng(0).normal(0.0, 1e-4, level.shape)
    assert not is_spike(Trajectories(obs)).any()
    obs[0, [110, 125]] += 1.0
    assert np.argwhere(is_spike(Trajectories(obs)))[:, 1].tolist() == [110, 125]


def test_dropped_spikes_are_missing_and_nothing_else_changes() -> None:
    obs = walk()
    spiky = obs.copy()
    spiky[1, [50, 200], 1] -= 4.0
    context = np.zeros((2, 500), int)
    found = without_spikes(Trajectories(spiky, context=context))
    assert np.argwhere(np.isnan(found.obs)).tolist() == [[1, 50, 1], [1, 200, 1]]
    np.testing.assert_array_equal(found.obs[~np.isnan(found.obs)], obs[~np.isnan(found.obs)])
    np.testing.assert_array_equal(found.context, context)
    clean = Trajectories(obs)
    assert without_spikes(clean) is clean
    assert without_spikes(Trajectories(obs[:, :2])).num_transitions == 2


def test_the_summary_of_a_fit_names_them() -> None:
    obs = walk()
    obs[1, [50, 120, 200, 300, 400], 1] -= 4.0
    data = Trajectories(obs)
    config = FitConfig(num_steps=2, num_restarts=1, polish_steps=1, start="random")
    model = fit(data, dynamics="linear", max_contexts=2, config=config, past=0, progress=False)
    summary = summarise(model, model.analyse(data), Names(("level", "flow"), ()))
    assert any("in flow (5 readings)" in remark for remark in summary.remarks)
