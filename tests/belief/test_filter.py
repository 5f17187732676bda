"""Theorem 2's belief update against enumeration, and where it must not break."""

import itertools

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from numpy.testing import assert_allclose, assert_array_equal

from mbrl_hdp.belief.filter import predict, update_belief
from mbrl_hdp.probability.hmm import filter_contexts
from mbrl_hdp.types import ContextChain

TRANSITION = np.array([[0.7, 0.2, 0.1], [0.05, 0.9, 0.05], [0.3, 0.3, 0.4]])


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), num_contexts=st.integers(1, 3), num_steps=st.integers(1, 4))
def test_updates_equal_enumeration(seed, num_contexts, num_steps):
    rng = np.random.default_rng(seed)
    initial = rng.dirichlet(np.ones(num_contexts))
    transition = rng.dirichlet(np.ones(num_contexts), num_contexts)
    log_lik = 3 * rng.normal(size=(num_steps, num_contexts))
    belief = initial
    for step in log_lik:
        filtered, belief = update_belief(belief, step, transition)
    next_weight, last_weight = np.zeros(num_contexts), np.zeros(num_contexts)
    for path in itertools.product(range(num_contexts), repeat=num_steps + 1):
        weight = initial[path[0]]
        for t in range(num_steps):
            weight = weight * np.exp(log_lik[t, path[t]]) * transition[path[t], path[t + 1]]
        next_weight[path[-1]] += weight
        last_weight[path[-2]] += weight
    assert_allclose(belief, next_weight / next_weight.sum(), rtol=1e-10, atol=1e-12)
    assert_allclose(filtered, last_weight / last_weight.sum(), rtol=1e-10, atol=1e-12)
    # The paper writes the update of the filtered belief: predict first, then weigh by the likelihood.
    chain = ContextChain(torch.from_numpy(initial), torch.from_numpy(transition))
    whole = filter_contexts(chain, torch.from_numpy(log_lik)[None])
    assert_allclose(filtered, whole.probs[0, -1], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("num_contexts", [1, 2, 5, 10, 17])
def test_a_batch_is_the_same_bits_as_row_by_row(num_contexts):
    rng = np.random.default_rng(1)
    belief = rng.dirichlet(np.ones(num_contexts), (4, 5))
    log_lik = 4 * rng.normal(size=(4, 5, num_contexts))
    transition = rng.dirichlet(np.ones(num_contexts), num_contexts)
    filtered, following = update_belief(belief, log_lik, transition)
    for i, j in np.ndindex(4, 5):
        one = update_belief(belief[i, j], log_lik[i, j], transition)
        assert_array_equal(filtered[i, j], one[0])
        assert_array_equal(following[i, j], one[1])
    assert_allclose(following, predict(filtered, transition), rtol=1e-14)


def test_the_input_is_left_as_it_was():
    belief, log_lik = np.array([0.2, 0.3, 0.5]), np.array([0.0, 1.0, -1.0])
    update_belief(belief, log_lik, TRANSITION)
    assert_array_equal(belief, [0.2, 0.3, 0.5])
    assert_array_equal(log_lik, [0.0, 1.0, -1.0])


@pytest.mark.parametrize("other", [1e4, np.inf, np.nan])
def test_contexts_without_belief_stay_out_whatever_they_explain(other):
    filtered, following = update_belief(np.array([0.25, 0.0, 0.75]), np.array([-2000.0, other, -2001.0]), TRANSITION)
    odds = 0.25 / (0.75 * np.exp(-1.0))
    assert_allclose(filtered, [odds / (1 + odds), 0.0, 1 / (1 + odds)], rtol=1e-12)
    assert_allclose(following, filtered @ TRANSITION, rtol=1e-12)


def test_likelihoods_beyond_the_float_range():
    belief = np.array([1.0 - 1e-30, 1e-30, 0.0])
    assert_allclose(update_belief(belief, np.array([-5000.0, -10.0, 0.0]), TRANSITION)[0], [0.0, 1.0, 0.0])
    assert_allclose(update_belief(belief, np.array([5000.0, 4000.0, 0.0]), TRANSITION)[0], [1.0, 0.0, 0.0])


def test_a_row_that_nothing_explains_is_ignored_alone():
    belief = np.array([[0.3, 0.7, 0.0], [0.2, 0.2, 0.6], [0.1, 0.2, 0.7]])
    log_lik = np.array([[-np.inf, -np.inf, 0.0], [-np.inf, 0.0, -np.inf], [0.0, np.nan, 0.0]])
    filtered, following = update_belief(belief, log_lik, TRANSITION)
    assert_allclose(filtered, [[0.3, 0.7, 0.0], [0.0, 1.0, 0.0], [0.1, 0.2, 0.7]])
    assert_allclose(following, filtered @ TRANSITION)
