"""The e-detector: its arithmetic by hand, the stated rate of false alarms, and changes that must be noticed."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import chi2

from mbrl_hdp.belief.novelty import BETS, Detector, NullTable, calibrate, run, upper_limits
from mbrl_hdp.errors import DataError

ROWS = 6
# One threshold; level 1 or more has probability at most .5, after a step at level 1 at most .8.
TABLE = NullTable(
    thresholds=[1.0],
    tails=[[0.5], [0.5], [0.8], [0.8], [0.8], [0.8]],
    block_steps=100.0,
    block_level=-50.0,
    block_scale=0.0,
    num_steps=1000,
    confidence=0.95,
)


def iid(rng, num_episodes):
    return rng.chisquare(4, (num_episodes, 100))


def with_memory(rng, num_episodes, memory=0.95):
    noise, path = rng.standard_normal((num_episodes, 100)), np.empty((num_episodes, 100))
    path[:, 0] = noise[:, 0]
    for t in range(1, 100):
        path[:, t] = memory * path[:, t - 1] + np.sqrt(1 - memory**2) * noise[:, t]
    return path**2


def with_bad_episodes(rng, num_episodes):
    return iid(rng, num_episodes) * np.exp(0.3 * rng.standard_normal((num_episodes, 1)))


def by_hand(levels):
    """The Shiryaev-Roberts recursion as it is printed, one bet at a time, with fractions."""
    total = 0.0
    for bet in BETS:
        evidence, before = 0.0, 0
        for level in levels:
            tail = 0.8 if before == 1 else 0.5
            bound = 1.0 + tail * (2.0**bet - 1.0)
            evidence = (evidence + 1.0) * 2.0 ** (bet * level) / bound
            before = level
        total += evidence
    return total / len(BETS)


def test_evidence_by_hand():
    scores = np.array([[2.0, 3.0, 0.5, 7.0]])
    found = run(TABLE, scores, steps_per_alarm=1e6)
    wanted = [by_hand([1, 1, 0, 1][: t + 1]) for t in range(4)]
    np.testing.assert_allclose(np.exp(found.log_evidence[0]), wanted, rtol=1e-12)
    assert not found.is_alarm.any()


def test_one_bet_in_numbers():
    # Strength 1: factors 2 / 1.5 at level 1 after nothing, 2 / 1.8 after level 1, 1 / 1.8 at level 0 after level 1.
    factors = np.exp(TABLE.log_e_values()[..., BETS.index(1.0)])
    np.testing.assert_allclose([factors[0, 1], factors[2, 1], factors[2, 0]], [4 / 3, 10 / 9, 5 / 9], rtol=1e-12)


def test_factors_have_mean_one_where_the_tails_are_the_truth():
    table = replace(TABLE, thresholds=[1.0, 2.0], tails=[[0.4, 0.1]] * ROWS)
    mean = np.einsum("rlb,l->rb", np.exp(table.log_e_values()), [0.6, 0.3, 0.1])
    np.testing.assert_allclose(mean, 1.0, rtol=1e-12)


def test_evidence_starts_again_after_an_alarm():
    scores = np.full((1, 40), 9.0)
    found = run(TABLE, scores, steps_per_alarm=20.0)
    first = int(np.argmax(found.is_alarm[0]))
    assert 0 < first < 20
    wanted = np.exp(TABLE.log_e_values()[2, 1]).mean()  # from 0, after a step at level 1
    np.testing.assert_allclose(np.exp(found.log_evidence[0, first + 1]), wanted, rtol=1e-12)
    assert found.is_alarm.sum() >= 2


def test_a_step_without_a_score_leaves_the_evidence_and_the_next_has_none_before():
    found = run(TABLE, np.array([[2.0, np.nan, 2.0]]), 1e6)
    assert found.log_evidence[0, 1] == found.log_evidence[0, 0]
    assert found.is_judged.tolist() == [[True, False, True]]
    factors = np.exp(TABLE.log_e_values()[0, 1])
    np.testing.assert_allclose(np.exp(found.log_evidence[0, 2]), ((factors + 1.0) * factors).mean(), rtol=1e-12)


def test_step_by_step_is_the_same_as_all_at_once():
    rng = np.random.default_rng(3)
    scores = rng.exponential(1.0, (4, 30))
    scores[1, 5], scores[2, 10:] = np.nan, 8.0
    whole = run(TABLE, scores, 25.0)
    detector, evidence, alarms = Detector(TABLE, 25.0), [], []
    for episode in scores:
        detector.begin_episode()
        for score in episode:
            alarms.append(detector.update(float(score)))
            evidence.append(detector.log_evidence)
    np.testing.assert_allclose(evidence, whole.log_evidence.ravel(), rtol=1e-9)
    assert alarms == whole.is_alarm.ravel().tolist()
    assert any(alarms)
    detector.clear()
    assert detector.log_evidence == -np.inf


def test_upper_limits_are_those_of_clopper_and_pearson():
    found = upper_limits(np.array([[0, 3, 10]]), np.array([[10]]), 0.05)
    np.testing.assert_allclose(found[0, [0, 2]], [1.0 - 0.05**0.1, 1.0], rtol=1e-9)
    p = found[0, 1]  # at the limit, 3 or fewer of 10 have probability .05
    chance = sum(c * p**k * (1 - p) ** (10 - k) for k, c in enumerate((1, 10, 45, 120)))
    assert chance == pytest.approx(0.05, rel=1e-6)


@pytest.mark.parametrize(("draw", "num_calibration"), [(iid, 50), (with_memory, 100), (with_bad_episodes, 200)])
@pytest.mark.parametrize("steps_per_alarm", [1_000, 10_000])
def test_the_stated_rate_of_false_alarms_holds_within_its_interval(draw, num_calibration, steps_per_alarm):
    rng = np.random.default_rng(11)
    table = calibrate(draw(rng, num_calibration))
    count = int(run(table, draw(rng, 2000), steps_per_alarm).is_alarm.sum())
    low = 0.5 * chi2.ppf(0.025, 2 * count) if count else 0.0
    assert low <= 200_000 / steps_per_alarm


def test_the_limit_is_raised_where_scores_remember_more():
    rng = np.random.default_rng(5)
    assert calibrate(iid(rng, 100)).log_limit(1e5) == pytest.approx(np.log(1e5))
    assert calibrate(with_memory(rng, 100)).log_limit(1e5) > np.log(1e5) + 1.0


def test_a_shift_raises_the_alarm_soon_and_not_before():
    rng = np.random.default_rng(7)
    table = calibrate(iid(rng, 100))
    scores = iid(rng, 50)
    scores[:, 40:] *= 10.0
    for row in scores:
        alarm = run(table, row[None], 100_000).is_alarm[0]
        assert not alarm[:40].any()
        assert alarm[40:60].any()


def test_one_long_episode_is_enough():
    rng = np.random.default_rng(9)
    table = calibrate(rng.chisquare(4, (1, 5000)))
    assert table.num_steps == 5000
    assert table.block_steps == pytest.approx(125.0)
    assert run(table, np.full((1, 50), 100.0), 100_000).is_alarm.any()


def test_too_few_steps_are_refused():
    with pytest.raises(DataError, match="39 held-out steps are too few"):
        calibrate(np.arange(39.0).reshape(1, -1))
