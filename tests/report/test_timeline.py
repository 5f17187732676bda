"""The log as a page draws it: nothing is lost but what is said to be."""

import numpy as np
import pytest
from scipy.stats import binomtest

from mbrl_hdp.data.logs import Log
from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.errors import CheckpointError
from mbrl_hdp.inference.calibration import calibrate
from mbrl_hdp.report import timeline as module
from mbrl_hdp.report.label_counts import count_moves, dwells
from mbrl_hdp.report.timeline import TIMELINE, Timeline, runs_of


class Found:
    """What `model.analyse` returns, of contexts that are known: 0 for two steps, then 1."""

    def __init__(self, data):
        self.data = data
        labels = np.where(np.arange(data.max_steps) < 2, 0, 1)
        self.most_likely = np.where(data.is_step, labels, -1)
        self.filtered = np.where(
            data.is_step[..., None], np.stack([0.9 - 0.7 * labels, 0.1 + 0.7 * labels], -1), np.nan
        )


def a_log(num_episodes=3, steps=5, allow_missing=False):
    rng = np.random.default_rng(0)
    obs = 100.0 * rng.normal(size=(num_episodes, steps + 1, 2)) + 1e6
    if allow_missing:
        obs[1, 2, 0] = np.nan
    data = Trajectories(
        obs, rng.normal(size=(num_episodes, steps, 1)), lengths=[steps, steps - 2, steps][:num_episodes],
        context=np.full((num_episodes, steps), 1), allow_missing=allow_missing,
    )  # fmt: skip
    return Log(data, ("<script>", "flow"), ("valve",), 2.0, units={"flow": "l/min"})


def values(drawn, column, edge="low"):
    known, raw = drawn.columns[column], getattr(drawn, edge)[column].astype(float)
    scaled = (known.low + known.high) / 2 + raw / 32767 * (known.high - known.low) / 2
    return np.where(raw == -32768, np.nan, scaled)


def test_a_short_log_is_kept_row_by_row():
    log = a_log(allow_missing=True)
    drawn = Timeline.of(Found(log.data), log)
    rows = np.concatenate([log.data.obs[n, : length + 1] for n, length in enumerate(log.data.lengths)])
    assert (drawn.num_rows, drawn.bin_rows, drawn.starts.tolist()) == (16, 1, [0, 6, 10])
    for column in (0, 1):
        np.testing.assert_allclose(values(drawn, column), rows[:, column], atol=0.02)
    assert [(c.name, c.unit, c.kind) for c in drawn.columns][1:] == [
        ("flow", "l/min", "sensor"), ("valve", "", "action"),
    ]  # fmt: skip
    assert np.isnan(values(drawn, 2)[[5, 9, 15]]).all()  # no action begins at the last row of an episode
    assert list(zip(drawn.labels.start.tolist(), drawn.labels.value.tolist(), strict=True)) == [
        (0, 0), (2, 1), (5, -1), (6, 0), (8, 1), (9, -1), (10, 0), (12, 1), (15, -1),
    ]  # fmt: skip


def test_a_long_log_keeps_every_peak(monkeypatch):
    monkeypatch.setattr(module, "_MOST_BYTES", 200)
    monkeypatch.setattr(module, "_FEWEST_BINS", 5)
    log = a_log(1, 99)
    log.data.obs[0, 57, 1] = 2e6
    drawn = Timeline.of(Found(log.data), log)
    assert drawn.bin_rows == 8  # 200 bytes, 14 a bin
    padded = np.append(log.data.obs[0, :, 1], [np.nan] * 4).reshape(13, 8)
    np.testing.assert_allclose(values(drawn, 1), np.nanmin(padded, 1), atol=20)
    np.testing.assert_allclose(values(drawn, 1, "high"), np.nanmax(padded, 1), atol=20)
    np.testing.assert_allclose(drawn.belief[1:-1] / 255, [[0.2, 0.8]] * 11, atol=0.01)
    np.testing.assert_allclose(drawn.belief[0] / 255, [(2 * 0.9 + 6 * 0.2) / 8, (2 * 0.1 + 6 * 0.8) / 8], atol=0.01)


def test_too_many_switches_become_the_most_frequent_label():
    labels = np.array([0, 1, 0, 0, 1, 0, 1, 1])
    exact, binned = runs_of(labels), runs_of(labels, most=2)
    assert (exact.bin_rows, exact.value.tolist()) == (1, [0, 1, 0, 1, 0, 1])
    assert (binned.bin_rows, binned.start.tolist(), binned.value.tolist()) == (4, [0, 4], [0, 1])


def test_it_is_read_as_it_was_written(tmp_path):
    log = a_log()
    drawn = Timeline.of(Found(log.data), log)
    drawn.save(tmp_path)
    same = Timeline.load(tmp_path)
    assert (same.columns, same.dt, same.num_rows) == (drawn.columns, 2.0, drawn.num_rows)
    np.testing.assert_array_equal(same.low, drawn.low)
    np.testing.assert_array_equal(same.truth.value, drawn.truth.value)
    content = (tmp_path / TIMELINE).read_bytes()
    (tmp_path / TIMELINE).write_bytes(content[:-3] + b"abc")
    with pytest.raises(CheckpointError, match="damaged"):
        Timeline.load(tmp_path)
    assert Timeline.load(tmp_path / "nowhere") is None


LABELS = np.array([[0, 0, 0, 1, 1, 0], [1, 0, 0, -1, -1, -1]])


def test_moves_and_stays_are_counted():
    np.testing.assert_array_equal(count_moves(LABELS, 3), [[3, 1, 0], [2, 1, 0], [0, 0, 0]])
    zero, one, never = dwells(LABELS, 3)
    assert (zero.num_ended, zero.num_cut, zero.mean) == (1, 2, 4.0)  # 4 moves from 0, one of them away
    assert (one.num_ended, one.num_cut, one.mean) == (2, 0, 1.5)
    assert (one.steps, one.survival) == ([0, 1, 2], [1.0, 0.5, 0.0])
    assert (zero.steps, zero.survival) == ([0, 3], [1.0, 0.0])  # both cut stays were last seen before 3 steps
    (both, _) = dwells(np.array([[0, 0, 1], [1, 0, 0]]), 2)  # nobody saw whether the second stay would have ended at 2
    assert (both.steps, both.survival) == ([0, 2], [1.0, 0.0])
    assert (never.num_ended, never.mean, never.steps) == (0, None, [0])


def test_a_belief_that_is_right_as_often_as_it_says():
    rng = np.random.default_rng(1)
    share = rng.uniform(0.5, 1.0, (40, 500))
    belief = np.stack([share, 1 - share], -1)
    truth = np.where(rng.uniform(size=share.shape) < share, 7, 3)
    honest = calibrate(belief, truth, [7, 3])
    assert sum(each.count for each in honest.bins) == truth.size
    assert honest.error < 0.02
    for each in honest.bins:
        assert each.low - 0.01 < each.predicted < each.high + 0.01
    boastful = calibrate(np.stack([np.full_like(share, 0.99), np.full_like(share, 0.01)], -1), truth, [7, 3])
    assert boastful.error == pytest.approx(0.99 - (truth == 7).mean())
    assert calibrate(belief, np.full_like(truth, -1), [7, 3]) is None


def test_the_interval_of_a_bin_is_wilsons():
    belief = np.tile([0.75, 0.25], (1, 10, 1))
    (found,) = calibrate(belief, np.array([[0] * 6 + [1] * 4]), [0, 1]).bins
    interval = binomtest(6, 10).proportion_ci(method="wilson")
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), abs=1e-4)
