"""What the core does with a rule's decision: Theorem 1, the policy form, and never losing every context."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mbrl_hdp.distil.distiller import apply_keep_mask, keep_at_least
from mbrl_hdp.probability.markov import stationary
from mbrl_hdp.types import ContextChain, ContextPosterior

CHAIN = ContextChain(
    torch.tensor([0.5, 0.1, 0.3, 0.1], dtype=torch.float64),
    torch.tensor(
        [[0.8, 0.05, 0.1, 0.05], [0.3, 0.1, 0.5, 0.1], [0.2, 0.02, 0.7, 0.08], [0.1, 0.2, 0.1, 0.6]],
        dtype=torch.float64,
    ),
)
KEEP = torch.tensor([True, False, True, False])


def test_apply_keep_mask_is_theorem_1():
    reduced = apply_keep_mask(ContextPosterior(CHAIN), KEEP)
    matrix = CHAIN.transition
    inside, out = matrix[KEEP][:, KEEP], matrix[KEEP][:, ~KEEP]
    back, away = matrix[~KEEP][:, KEEP], matrix[~KEEP][:, ~KEEP]
    want = inside + out @ torch.linalg.inv(torch.eye(2, dtype=torch.float64) - away) @ back
    torch.testing.assert_close(reduced.transition, want)
    torch.testing.assert_close(reduced.initial, torch.tensor([0.625, 0.375], dtype=torch.float64))
    mass = stationary(matrix)[KEEP]
    torch.testing.assert_close(reduced.transition.T @ mass, mass)


def test_at_least_one_context_survives():
    nothing = torch.zeros(4, dtype=torch.bool)
    kept = keep_at_least(ContextPosterior(CHAIN), nothing)
    assert kept.tolist() == [True, False, False, False]  # the largest stationary mass
    assert apply_keep_mask(ContextPosterior(CHAIN), nothing).transition.tolist() == [[1.0]]


def test_one_context_survives_even_if_all_were_dropped_before():
    nothing = torch.zeros(4, dtype=torch.bool)
    kept = keep_at_least(ContextPosterior(CHAIN, is_active=nothing), nothing)
    assert kept.tolist() == [True, False, False, False]


def test_the_minimum_is_filled_by_mass_and_keeps_what_was_kept():
    only_last = torch.tensor([False, False, False, True])
    assert keep_at_least(ContextPosterior(CHAIN), only_last, minimum=3).tolist() == [True, False, True, True]


def test_dropped_slots_stay_dropped():
    active = torch.tensor([False, True, True, True])
    posterior = ContextPosterior(CHAIN, is_active=active)
    assert keep_at_least(posterior, torch.tensor([True, False, True, False])).tolist() == [False, False, True, False]
    kept = keep_at_least(posterior, torch.zeros(4, dtype=torch.bool), minimum=4)
    assert kept.tolist() == active.tolist()


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.integers(0, 10_000), st.integers(1, 6))
def test_a_distilled_chain_is_stochastic_and_keeps_its_proportions(size, seed, minimum):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.rand(size + 1, size, generator=generator, dtype=torch.float64) ** 6 + 1e-9
    rows = rows / rows.sum(-1, keepdim=True)
    posterior = ContextPosterior(ContextChain(rows[0], rows[1:]))
    keep = keep_at_least(posterior, torch.rand(size, generator=generator) < 0.5, minimum)
    assert int(keep.sum()) >= min(minimum, size)
    reduced = apply_keep_mask(posterior, keep)
    torch.testing.assert_close(reduced.transition.sum(-1), torch.ones(int(keep.sum()), dtype=torch.float64))
    mass = stationary(rows[1:])[keep]
    torch.testing.assert_close(stationary(reduced.transition), mass / mass.sum(), rtol=1e-6, atol=1e-9)
