"""Data as users have it: each case fits sensibly or is refused with words that say what is wrong."""

import dataclasses

import numpy as np
import pytest

from mbrl_hdp import FitConfig, Trajectories, fit
from mbrl_hdp.errors import DataError, FitError
from mbrl_hdp.inference.precision import check_precision
from mbrl_hdp.inference.scoring import align

QUICK = FitConfig(start="random", num_steps=40, num_restarts=1, polish_steps=10, batch_size=50, learning_rate=0.05)
LONGER = FitConfig(start="random", num_steps=150, num_restarts=2, polish_steps=20, learning_rate=0.05)


def two_regimes(num_episodes=12, num_steps=40, seed=0):
    """Two columns that settle at +-1; the regime flips with probability 0.06."""
    rng = np.random.default_rng(seed)
    context = np.zeros((num_episodes, num_steps), dtype=np.int64)
    obs = np.zeros((num_episodes, num_steps + 1, 2))
    regime = rng.integers(2, size=num_episodes)
    for t in range(num_steps):
        context[:, t] = regime
        goal = np.stack([1.0 - 2.0 * regime, 0.5 * regime], -1)
        obs[:, t + 1] = obs[:, t] + 0.4 * (goal - obs[:, t]) + 0.02 * rng.normal(size=(num_episodes, 2))
        regime = np.where(rng.random(num_episodes) < 0.06, 1 - regime, regime)
    return obs, context


def quick_fit(data, max_contexts=3, config=QUICK, **options):
    return fit(data, dynamics="linear", max_contexts=max_contexts, config=config, progress=False, **options)


def assert_sensible(model, data):
    """A proper chain, finite likelihoods, beliefs that sum to one."""
    assert 1 <= model.num_contexts <= model.task.max_contexts
    np.testing.assert_allclose(model.transition.sum(-1), 1.0, atol=1e-5)
    np.testing.assert_allclose(model.smooth(data)[data.is_step].sum(-1), 1.0, atol=1e-5)
    assert np.isfinite(model.log_likelihood(data)).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["obs", "act"])
def test_values_that_are_no_numbers_are_refused_with_their_place(name, value):
    arrays = {"obs": np.zeros((3, 6, 2)), "act": np.zeros((3, 5, 1))}
    arrays[name][1, 3, 0] = value
    with pytest.raises(DataError, match=rf"{name}.*episode 1.*step 3"):
        Trajectories(**arrays)


def test_missing_samples_fit_when_allowed():
    obs, context = two_regimes()
    obs[np.random.default_rng(1).random(obs.shape[:2]) < 0.1] = np.nan
    data = Trajectories(obs, context=context, allow_missing=True)
    model = quick_fit(data, config=dataclasses.replace(LONGER, num_steps=200, num_restarts=3))
    assert_sensible(model, data)
    assert align(model.most_likely(data), context).accuracy > 0.9


def test_nothing_observed_is_refused():
    data = Trajectories(np.full((2, 5, 2), np.nan), allow_missing=True)
    with pytest.raises(FitError, match="0 observed transitions are too few"):
        quick_fit(data)


def test_a_constant_column_neither_breaks_nor_blinds():
    obs, context = two_regimes()
    obs = np.concatenate([np.full((*obs.shape[:2], 1), 7.5), obs], -1)
    data = Trajectories(obs, context=context)
    model = quick_fit(data, config=LONGER)
    assert_sensible(model, data)
    assert align(model.most_likely(data), context).accuracy > 0.9
    np.testing.assert_allclose(model.analyse(data).predicted[..., 0], 7.5, rtol=1e-6)


def test_only_constant_columns_are_refused():
    with pytest.raises(FitError, match="nothing to learn"):
        quick_fit(Trajectories(np.ones((3, 10, 2))))


def test_one_long_episode():
    obs, context = two_regimes(num_episodes=1, num_steps=400)
    data = Trajectories(obs[0], context=context[0])
    model = quick_fit(data, config=LONGER)
    assert_sensible(model, data)
    assert align(model.most_likely(data), data.context).accuracy > 0.9


def test_one_step_is_refused():
    with pytest.raises(FitError, match=r"1 observed transition.* too few"):
        quick_fit(Trajectories(np.array([[0.0, 1.0], [0.5, 1.5]])))


def test_episodes_of_one_step():
    rng = np.random.default_rng(0)
    data = Trajectories(rng.normal(size=(30, 2, 2)))
    assert_sensible(quick_fit(data), data)


def test_a_single_observation_is_refused():
    with pytest.raises(DataError, match="too short"):
        Trajectories(np.zeros((1, 1, 2)))


def test_more_slots_than_data():
    obs, context = two_regimes(num_episodes=2, num_steps=8)
    data = Trajectories(obs, context=context)
    with pytest.raises(FitError, match="max_contexts=30 is above the number of observed transitions, 16"):
        quick_fit(data, max_contexts=30)
    model = quick_fit(data, max_contexts=15)
    assert_sensible(model, data)
    assert 1 <= model.num_contexts <= 15


def test_scales_apart_by_twelve_orders():
    obs, context = two_regimes()
    model = quick_fit(Trajectories(obs, context=context), config=LONGER)
    scaled = Trajectories(obs * [1e-6, 1e6], context=context)
    scaled_model = quick_fit(scaled, config=LONGER)
    assert_sensible(scaled_model, scaled)
    assert align(scaled_model.most_likely(scaled), context).accuracy > 0.9
    # Units must not matter: the same data in other units gives the same chain.
    assert scaled_model.num_contexts == model.num_contexts
    np.testing.assert_allclose(scaled_model.transition, model.transition, atol=0.02)


def test_a_large_offset_keeps_small_changes():
    obs, context = two_regimes()
    data = Trajectories(obs + 1e4, context=context)
    model = quick_fit(data, config=LONGER)
    assert_sensible(model, data)
    assert align(model.most_likely(data), context).accuracy > 0.85


def test_actions_all_zero():
    obs, context = two_regimes()
    data = Trajectories(obs, np.zeros((*context.shape, 1)), context=context)
    model = quick_fit(data, config=LONGER)
    assert_sensible(model, data)
    assert align(model.most_likely(data), context).accuracy > 0.9


def test_data_without_noise():
    steps = np.arange(41.0)
    data = Trajectories(np.stack([np.stack([0.9**steps, 0.5**steps], -1)] * 6))
    assert_sensible(quick_fit(data), data)


@pytest.mark.parametrize("offset", [1e8, 1e10])
def test_changes_lost_in_single_precision_are_refused(offset):
    obs, _ = two_regimes()
    with pytest.raises(FitError, match=r"obs column 1 .* subtract a constant"):
        quick_fit(Trajectories(obs + np.array([0.0, offset])))


def test_a_clock_among_the_columns_is_refused_only_when_it_jitters_below_precision():
    obs, context = two_regimes()
    clock = 1e9 + np.arange(obs.shape[1]) + np.zeros((len(obs), 1))
    data = Trajectories(np.concatenate([obs, clock[..., None]], -1), context=context)
    assert_sensible(quick_fit(data), data)
    jitter = 1e-3 * np.random.default_rng(0).normal(size=clock.shape)
    with pytest.raises(FitError, match=r"obs column 2 .* clock or a counter"):
        quick_fit(Trajectories(np.concatenate([obs, (clock + jitter)[..., None]], -1)))


def test_rounding_of_a_steady_clock_is_no_jitter():
    clock = 1e9 + 0.1 * np.arange(50.0)  # its changes differ by the rounding of double precision alone
    assert 0.0 < np.diff(clock).std() < 1e-6
    check_precision(Trajectories(np.stack([clock, clock])[..., None]))


def test_values_beyond_single_precision_are_refused():
    obs, _ = two_regimes()
    with pytest.raises(FitError, match=r"obs column 0 .* too large"):
        quick_fit(Trajectories(obs * [1e200, 1.0]))
