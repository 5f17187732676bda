"""Intervals: the spread between seeds and within them, against the variance in closed form."""

import numpy as np
import pytest

from mbrl_hdp.experiments.summary import bootstrap_interval


def half_width(groups):
    low, high = bootstrap_interval(groups, num_draws=20_000)
    return (high - low) / 2 / 1.96


def test_seeds_without_spread_within_them():
    """Means of three draws of {0, 3, 9}: the variance is that of the population over three."""
    values = [0.0, 3.0, 9.0, 4.0, 7.0, 1.0]
    found = half_width([np.full(50, value) for value in values])
    assert found == pytest.approx(np.std(values) / np.sqrt(len(values)), rel=0.05)


def test_both_levels_add_up():
    rng = np.random.default_rng(1)
    groups = [rng.normal(centre, 3.0, 40) for centre in (0.0, 2.0, 5.0, 1.0, 3.0, 4.0, 2.5, 0.5)]
    between = np.var([group.mean() for group in groups]) / len(groups)
    within = np.mean([group.var() / len(group) for group in groups]) / len(groups)
    assert half_width(groups) == pytest.approx(np.sqrt(between + within), rel=0.05)
    assert half_width(groups) > 1.5 * np.sqrt(within)


def test_one_seed_is_the_plain_bootstrap():
    group = np.random.default_rng(2).exponential(size=60)
    assert half_width([group]) == pytest.approx(group.std() / np.sqrt(60), rel=0.05)
    assert bootstrap_interval([group]) == bootstrap_interval([group])


def test_seeds_may_have_different_numbers_of_episodes():
    low, high = bootstrap_interval([np.full(3, 1.0), np.full(50, 1.0)])
    assert (low, high) == (1.0, 1.0)
