"""Theorem 2's belief update against enumeration, and where it must not break."""

import itertools

import hypothesis.strategies as st
import torch
from hypothesis import given, settings

from mbrl_hdp.belief.filter import correct, predict, update_belief
from mbrl_hdp.probability import filter_contexts
from mbrl_hdp.types import ContextChain


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), num_contexts=st.integers(1, 3), num_steps=st.integers(1, 4))
def test_updates_equal_enumeration(seed, num_contexts, num_steps):
    generator = torch.Generator().manual_seed(seed)
    initial = torch.rand(num_contexts, generator=generator, dtype=torch.float64).softmax(0)
    transition = torch.rand(num_contexts, num_contexts, generator=generator, dtype=torch.float64).mul(3).softmax(1)
    log_lik = 3 * torch.randn(num_steps, num_contexts, generator=generator, dtype=torch.float64)
    belief = initial
    for step in log_lik:
        filtered = correct(belief, step)
        belief = update_belief(belief, step, transition)
    next_law = torch.zeros(num_contexts, dtype=torch.float64)
    last_law = torch.zeros(num_contexts, dtype=torch.float64)
    for path in itertools.product(range(num_contexts), repeat=num_steps + 1):
        weight = initial[path[0]]
        for t in range(num_steps):
            weight = weight * log_lik[t, path[t]].exp() * transition[path[t], path[t + 1]]
        next_law[path[-1]] += weight
        last_law[path[-2]] += weight
    torch.testing.assert_close(belief, next_law / next_law.sum(), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(filtered, last_law / last_law.sum(), rtol=1e-10, atol=1e-12)
    # The paper writes the update of the filtered belief: predict first, then weigh by the likelihood.
    whole = filter_contexts(ContextChain(initial, transition), log_lik[None])
    torch.testing.assert_close(filtered, whole.probs[0, -1], rtol=1e-10, atol=1e-12)


def test_leading_dimensions_are_a_batch():
    generator = torch.Generator().manual_seed(1)
    belief = torch.rand(2, 5, 3, generator=generator).softmax(-1)
    log_lik = 4 * torch.randn(2, 5, 3, generator=generator)
    transition = torch.rand(3, 3, generator=generator).mul(3).softmax(-1)
    together = update_belief(belief, log_lik, transition)
    torch.testing.assert_close(together[1, 2], update_belief(belief[1, 2], log_lik[1, 2], transition))


def test_masked_contexts_stay_masked_whatever_they_explain():
    belief = torch.tensor([0.25, 0.0, 0.75])
    corrected = correct(belief, torch.tensor([-2000.0, 1e4, -2001.0]))
    odds = 0.25 / (0.75 * torch.exp(torch.tensor(-1.0)))
    torch.testing.assert_close(corrected, torch.tensor([odds / (1 + odds), 0.0, 1 / (1 + odds)]))


def test_likelihoods_beyond_the_float_range():
    belief = torch.tensor([1.0 - 1e-30, 1e-30])
    torch.testing.assert_close(correct(belief, torch.tensor([-5000.0, -10.0])), torch.tensor([0.0, 1.0]))
    torch.testing.assert_close(correct(belief, torch.tensor([5000.0, 4000.0])), torch.tensor([1.0, 0.0]))


def test_an_observation_that_nothing_explains_is_ignored():
    belief = torch.tensor([[0.3, 0.7, 0.0], [0.2, 0.2, 0.6]])
    log_lik = torch.tensor([[-torch.inf, -torch.inf, 0.0], [-torch.inf, 0.0, -torch.inf]])
    torch.testing.assert_close(correct(belief, log_lik), torch.tensor([[0.3, 0.7, 0.0], [0.0, 1.0, 0.0]]))


def test_sub_stochastic_rows_still_give_a_law():
    transition = torch.tensor([[0.5, 0.25, 0.0], [0.2, 0.2, 0.0], [0.0, 0.0, 0.0]])
    torch.testing.assert_close(predict(torch.tensor([1.0, 0.0, 0.0]), transition), torch.tensor([2 / 3, 1 / 3, 0.0]))
    torch.testing.assert_close(predict(torch.tensor([0.0, 0.0, 1.0]), transition), torch.tensor([0.0, 0.0, 1.0]))
