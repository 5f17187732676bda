"""Pieces of the search against closed forms and second routes."""

import numpy as np
import pytest
from scipy.stats import multivariate_t

from mbrl_hdp import Trajectories
from mbrl_hdp.envs.systems import simulate
from mbrl_hdp.inference.search.em import expect, start_state, sticky
from mbrl_hdp.inference.search.features import Factor, Library, best_products, linear_features, monomials
from mbrl_hdp.inference.search.forest import cross_probability
from mbrl_hdp.inference.search.growth import fitted, grow
from mbrl_hdp.inference.search.heads import cross_predict
from mbrl_hdp.inference.search.labelling import label, part_of
from mbrl_hdp.inference.search.moves import settle
from mbrl_hdp.inference.search.noise import DEGREES, Noise, predict_from_past
from mbrl_hdp.inference.search.regions import gated_evidence, region_share
from mbrl_hdp.inference.search.rows import make_rows


def rows_of(name, variant="plain", num_episodes=20):
    rollouts = simulate(name, variant, seed=7, num_episodes=num_episodes)
    return make_rows(Trajectories(obs=rollouts.obs, act=rollouts.act))


def test_every_fold_is_predicted_by_a_ridge_on_the_other_folds():
    rows = rows_of("pendulum")
    rng = np.random.default_rng(0)
    weight = rng.uniform(0.1, 1.0, (len(rows), 2))
    features = np.concatenate([np.ones((len(rows), 1)), rows.inputs], 1)
    found = cross_predict(rows, features, rows.targets, weight, ridge=0.7)
    for context in range(2):
        others = rows.fold != 2
        root = np.sqrt(weight[others, context])[:, None]
        design = np.concatenate([root * features[others], np.sqrt(0.7) * np.eye(features.shape[1])])
        target = np.concatenate([root * rows.targets[others], np.zeros((features.shape[1], rows.targets.shape[1]))])
        head = np.linalg.lstsq(design, target, rcond=None)[0]
        np.testing.assert_allclose(found[context, ~others], features[~others] @ head, atol=1e-8)


def test_no_episode_is_in_two_folds():
    rows = rows_of("pendulum")
    assert all(len(np.unique(rows.fold[rows.episode == episode])) == 1 for episode in range(20))


def test_the_noise_is_a_multivariate_t_with_the_covariance_it_names():
    covariance = np.array([[0.5, 0.2], [0.2, 0.3]])
    scale = np.array([[1.0, 1.0], [2.0, 0.5], [1.5, 1.5]])
    residuals = np.array([[[0.3, -0.2], [1.0, 0.4], [-2.0, 0.1]]])
    density, _ = Noise(0.1, covariance, scale).log_density(residuals)
    shape = (covariance + 0.01 * np.eye(2)) * (DEGREES - 2.0) / DEGREES
    for row in range(3):
        spread = np.diag(scale[row])
        exact = multivariate_t(shape=spread @ shape @ spread, df=DEGREES).logpdf(residuals[0, row])
        assert density[row, 0] == pytest.approx(exact, abs=1e-9)


def test_the_past_predicts_noise_on_observations():
    rows = rows_of("pendulum", num_episodes=60)
    rng = np.random.default_rng(1)
    error = rng.standard_normal((*rows.shape, 2))
    earlier = np.concatenate([rng.standard_normal((rows.shape[0], 1, 2)), error[:, :-1]], 1)
    residual = rows.flatten(error - earlier)
    left = residual - predict_from_past(rows, residual)
    # The best predictor of e_t - e_{t-1} from two earlier differences leaves the variance 4 / 3 of 2.
    assert left.var() == pytest.approx(4.0 / 3.0, rel=0.05)


def test_the_missing_product_is_found_first():
    rows = rows_of("cartpole_raw", num_episodes=40)
    library = Library(rows)
    target = rows.inputs[:, 1] * np.sin(rows.raw_inputs[:, 2])
    residual = np.repeat((target - target.mean())[:, None], 1, 1)
    found = best_products(
        linear_features(library), residual / residual.std(), np.ones((len(rows), 1)), np.arange(len(rows))
    )
    assert found[0] == (Factor(1), Factor(2, "sin", 1.0))


def test_growth_reaches_the_pendulums_equation_and_stops_at_noise():
    rows = rows_of("pendulum", "still", num_episodes=60)
    weight = np.ones((len(rows), 1))
    features = grow(rows, linear_features(Library(rows)), weight, 0.01)
    assert np.sqrt(np.square(fitted(rows, features, weight, 0.01).mean_residual()).mean(0)).max() < 0.02
    linear = rows_of("spring_chain", "still_process", num_episodes=60)
    start = linear_features(Library(linear))
    assert len(grow(linear, start, np.ones((len(linear), 1)), 0.01)) == len(start)


def test_monomials_are_all_products_up_to_the_degree():
    library = Library(rows_of("pendulum"))  # three inputs
    assert len(monomials(library, 3, 60)) == 20  # (3 + 3 choose 3)
    assert len(monomials(library, 3, 15)) == 10  # the cubic ones do not fit


def test_the_forest_knows_a_region_and_nothing_about_a_coin():
    rng = np.random.default_rng(0)
    inputs, fold = rng.standard_normal((4000, 3)), np.arange(4000) % 4
    region = (inputs[:, 0] + inputs[:, 1] > 0).astype(float)
    coin = (rng.random(4000) < 0.3).astype(float)
    assert ((cross_probability(inputs, region, fold) > 0.5) == region).mean() > 0.93
    guess = cross_probability(inputs, coin, fold)
    assert guess.mean() == pytest.approx(0.3, abs=0.03)
    assert abs(np.corrcoef(guess, coin)[0, 1]) < 0.06
    assert (cross_probability(inputs, coin, np.full(4000, -1)) == 0.5).all()  # nothing to learn from


def two_labels(rows, labels, seed=0):
    """Return a state whose two contexts predict +-1 with unit noise, right for `labels`."""
    rng = np.random.default_rng(seed)
    state = start_state(rows, 0.98 * np.eye(2)[labels] + 0.01, 0.01)
    state.transition = sticky(2, 0.1)
    value = np.where(labels == 0, 1.0, -1.0) + 0.4 * rng.standard_normal(len(rows))
    state.log_lik = np.stack([-0.5 * np.square((value - 1) / 0.4), -0.5 * np.square((value + 1) / 0.4)], 1)
    return state


def test_a_gate_replaces_regions_but_not_hidden_contexts():
    rollouts = simulate("van_der_pol", seed=7, num_episodes=60)
    rows = make_rows(Trajectories(obs=rollouts.obs, act=rollouts.act))
    gains, shares = [], []
    for labels in ((rows.inputs[:, 0] > 0.2).astype(int), rollouts.context[rows.episode, rows.step]):
        state = two_labels(rows, labels)
        for _ in range(3):
            expect(rows, state)
        gains.append(float(state.evidence.sum() - gated_evidence(rows, state, (0, 1)).sum()) / len(rows))
        shares.append(region_share(rows, labels, 0))
    assert gains[0] < 0.0 < 0.15 < gains[1]
    assert shares[0] > 0.5 > 0.05 > shares[1]


def test_a_sample_of_rows_is_whole_episodes_in_the_units_of_all():
    rows = rows_of("pendulum", num_episodes=40)
    part, index = rows.sample(1500)
    assert part.shape[0] == 15
    assert len(part) == 1500
    np.testing.assert_array_equal(part.inputs, rows.inputs[index])
    np.testing.assert_array_equal(part.fold, rows.fold[index])
    before = np.where(rows.previous[index] >= 0, rows.inputs[rows.previous[index], 0], np.nan)
    np.testing.assert_array_equal(before, np.where(part.previous >= 0, part.inputs[part.previous, 0], np.nan))


def test_a_part_of_large_data_is_made_of_its_transitions():
    obs = np.arange(2 * 1001.0).reshape(2, 1001, 1)
    data = Trajectories(obs=obs, act=obs[:, :-1] + 0.5, lengths=[1000, 730])
    part = part_of(data, 600)
    assert 400 <= part.num_transitions <= 600
    for i in range(part.num_episodes):
        length = int(part.lengths[i])
        begin = part.obs[i, 0, 0]
        np.testing.assert_array_equal(part.obs[i, : length + 1, 0], begin + np.arange(length + 1))
        np.testing.assert_array_equal(part.act[i, :length, 0], part.obs[i, :length, 0] + 0.5)
        assert begin % 1001 + length <= data.lengths[int(begin // 1001)]
    assert part_of(data, 1730) is data


def test_labels_of_other_episodes_come_from_the_heads_that_were_found():
    rollouts = simulate("linear_4d_2", seed=7, num_episodes=40)
    data = Trajectories(obs=rollouts.obs, act=rollouts.act)
    few = data.select(np.arange(20))
    rows = make_rows(few)
    truth = rollouts.context[:20][rows.episode, rows.step]
    found = settle(rows, linear_features(Library(rows)), 0.98 * np.eye(2)[truth] + 0.01, 0.01)
    probability = label(data, rows, found)
    assert (probability.argmax(-1) == rollouts.context).mean() > 0.99
    np.testing.assert_allclose(probability.sum(-1), 1.0, atol=1e-9)
