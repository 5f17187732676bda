"""Stationary distributions and Theorem 1, against exact fractions and as properties over random chains."""

from fractions import Fraction

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from hypothesis.extra.numpy import arrays

from mbrl_hdp.probability.markov import (
    distilled_chain,
    distilled_initial,
    distilled_policy_initial,
    distilled_policy_transition,
    distilled_transition,
    stationary,
)
from mbrl_hdp.types import ContextChain

# Entries from ordinary to nearly zero: chains that are nearly reducible, whose I - R22 is nearly singular.
ENTRIES = st.sampled_from([1.0, 0.7, 0.3, 0.05, 1e-3, 1e-6, 1e-9, 1e-12])


@st.composite
def chains(draw, entries=ENTRIES):
    """A random chain and a mask that keeps some contexts and removes some."""
    size = draw(st.integers(2, 6))
    weights = torch.from_numpy(draw(arrays(float, (size, size), elements=entries)))
    num_kept = draw(st.integers(1, size - 1))
    keep = torch.zeros(size, dtype=torch.bool)
    keep[draw(st.permutations(range(size)))[:num_kept]] = True
    return weights / weights.sum(1, keepdim=True), keep


def solve_exactly(matrix, right):
    """Gauss-Jordan over fractions."""
    rows = [list(left) + list(extra) for left, extra in zip(matrix, right, strict=True)]
    for i in range(len(rows)):
        pivot = next(r for r in range(i, len(rows)) if rows[r][i] != 0)
        rows[i], rows[pivot] = rows[pivot], rows[i]
        rows[i] = [x / rows[i][i] for x in rows[i]]
        for r in range(len(rows)):
            if r != i and rows[r][i] != 0:
                rows[r] = [x - rows[r][i] * y for x, y in zip(rows[r], rows[i], strict=True)]
    return [row[len(matrix) :] for row in rows]


def exact_chain(transition):
    rows = [[Fraction(x) for x in row] for row in transition.tolist()]
    return [[x / sum(row) for x in row] for row in rows]


def exact_blocks(transition, keep):
    """(I - R22)^-1 R21 and Theorem 1's matrix, as the theorem writes them, without rounding."""
    chain = exact_chain(transition)
    kept, removed = keep.nonzero()[:, 0].tolist(), (~keep).nonzero()[:, 0].tolist()
    left = [[Fraction(int(i == j)) - chain[i][j] for j in removed] for i in removed]
    exits = solve_exactly(left, [[chain[i][j] for j in kept] for i in removed])
    reduced = [
        [chain[i][j] + sum(chain[i][s] * exits[n][m] for n, s in enumerate(removed)) for m, j in enumerate(kept)]
        for i in kept
    ]
    return as_tensor(exits), as_tensor(reduced)


def exact_stationary(transition):
    chain = exact_chain(transition)
    size = len(chain)
    equations = [[chain[i][j] - Fraction(int(i == j)) for i in range(size)] for j in range(size - 1)]
    right = [[Fraction(0)]] * (size - 1) + [[Fraction(1)]]
    return as_tensor(solve_exactly([*equations, [Fraction(1)] * size], right))[:, 0]


def as_tensor(rows):
    return torch.tensor([[float(x) for x in row] for row in rows], dtype=torch.float64)


@settings(max_examples=60, deadline=None)
@given(chains())
def test_theorem_1_and_the_policy_form(case):
    transition, keep = case
    exits, reduced = exact_blocks(transition, keep)
    distilled, policy = distilled_transition(transition, keep), distilled_policy_transition(transition, keep)
    # Every entry to full relative precision, however nearly singular I - R22 is.
    torch.testing.assert_close(distilled, reduced, rtol=1e-12, atol=0)
    torch.testing.assert_close(policy[keep][:, keep], reduced, rtol=1e-12, atol=0)
    torch.testing.assert_close(policy[~keep][:, keep], exits, rtol=1e-12, atol=0)
    assert (policy[:, ~keep] == 0).all()
    # (a) a valid transition matrix
    torch.testing.assert_close(distilled.sum(1), torch.ones(len(distilled), dtype=torch.float64), rtol=1e-12, atol=0)
    torch.testing.assert_close(policy.sum(1), torch.ones(len(policy), dtype=torch.float64), rtol=1e-12, atol=0)
    # (b) whose stationary distribution is the full one's, restricted and normalised
    full = stationary(transition)
    torch.testing.assert_close(full, exact_stationary(transition), rtol=1e-11, atol=0)
    restricted = full[keep] / full[keep].sum()
    torch.testing.assert_close(stationary(distilled), restricted, rtol=1e-11, atol=0)
    torch.testing.assert_close(stationary(policy)[keep], restricted, rtol=1e-11, atol=0)


@settings(max_examples=60, deadline=None)
@given(chains(entries=st.sampled_from([0.0, 0.0, 1.0, 0.4, 0.1, 1e-8]).filter(lambda x: x >= 0)))
def test_zero_entries_never_break_the_chain(case):
    transition, keep = case
    transition = transition.nan_to_num(0.0)  # empty rows are 0/0 here
    distilled, policy = distilled_transition(transition, keep), distilled_policy_transition(transition, keep)
    law = stationary(transition)
    for rows in (distilled, policy, law[None]):
        assert (rows >= 0).all()
        torch.testing.assert_close(rows.sum(1), torch.ones(len(rows), dtype=torch.float64))
    stochastic = transition + torch.diag((transition.sum(1) == 0).double())
    torch.testing.assert_close(law @ stochastic, law, rtol=1e-9, atol=1e-12)


def test_a_periodic_chain_has_its_time_average():
    transition = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
    torch.testing.assert_close(stationary(transition), torch.full((3,), 1 / 3))


def test_a_reducible_chain_is_averaged_from_its_start():
    transition = torch.tensor(
        [[0.5, 0.1, 0.4, 0.0], [0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.2, 0.8], [0.0, 0.0, 0.4, 0.6]], dtype=torch.float64
    )
    begin = torch.tensor([0.6, 0.2, 0.1, 0.1], dtype=torch.float64)
    average, law = torch.zeros(4, dtype=torch.float64), begin
    for _ in range(20_000):
        average, law = average + law / 20_000, law @ transition
    torch.testing.assert_close(stationary(transition, begin), average, rtol=0, atol=2e-4)
    # From context 0: 0.2 to the absorbing one, 0.8 to the pair with distribution (1/3, 2/3).
    uniform = torch.tensor([0.0, 0.25 + 0.05, 0.7 / 3, 1.4 / 3], dtype=torch.float64)
    torch.testing.assert_close(stationary(transition), uniform)


def test_masked_rows_are_normalised_and_empty_rows_stay():
    transition = torch.tensor([[0.4, 0.2, 0.0], [0.1, 0.3, 0.0], [0.0, 0.0, 0.0]])
    expected = stationary(torch.tensor([[2 / 3, 1 / 3], [0.25, 0.75]]))
    begin = torch.tensor([1.0, 0.0, 0.0])
    torch.testing.assert_close(stationary(transition, begin)[:2], expected)
    assert stationary(transition)[2] == pytest.approx(1 / 3)


def test_an_absorbing_spurious_class_is_refused():
    transition = torch.tensor(
        [[0.6, 0.1, 0.2, 0.1], [0.0, 1.0, 0.0, 0.0], [0.3, 0.0, 0.7, 0.0], [0.2, 0.6, 0.0, 0.2]], dtype=torch.float64
    )
    keep = torch.tensor([True, False, True, False])
    # Without moves into context 1: row 0 is (6, -, 2, 1)/9, and context 3 goes back to 0 with certainty.
    expected = torch.tensor([[7 / 9, 2 / 9], [0.3, 0.7]], dtype=torch.float64)
    torch.testing.assert_close(distilled_transition(transition, keep), expected)
    policy = distilled_policy_transition(transition, keep)
    torch.testing.assert_close(policy[1], torch.tensor([0.5, 0.0, 0.5, 0.0], dtype=torch.float64))
    torch.testing.assert_close(policy[3], torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64))
    only_way_out = torch.tensor([[0.0, 1.0], [0.0, 1.0]])
    assert distilled_transition(only_way_out, torch.tensor([True, False])).tolist() == [[1.0]]


def test_initial_laws():
    initial = torch.tensor([0.5, 0.2, 0.3])
    keep = torch.tensor([True, False, True])
    torch.testing.assert_close(distilled_initial(initial, keep), torch.tensor([0.625, 0.375]))
    torch.testing.assert_close(distilled_policy_initial(initial, keep), torch.tensor([0.625, 0.0, 0.375]))
    nowhere = torch.tensor([0.0, 1.0, 0.0])
    torch.testing.assert_close(distilled_initial(nowhere, keep), torch.tensor([0.5, 0.5]))


def test_keeping_nothing_or_nonsense_is_refused():
    transition = torch.tensor([[0.9, 0.1], [0.2, 0.8]])
    with pytest.raises(ValueError, match="at least one"):
        distilled_transition(transition, torch.tensor([False, False]))
    for wrong in (torch.nan, torch.inf, -0.1, -3.0):
        with pytest.raises(ValueError, match="finite numbers of at least 0"):
            stationary(torch.tensor([[0.9, wrong], [0.2, 0.8]]))


def test_keeping_all_changes_nothing_and_the_dtype_stays():
    transition = torch.tensor([[0.9, 0.1], [0.2, 0.8]])
    assert distilled_transition(transition, torch.tensor([True, True])).dtype == torch.float32
    torch.testing.assert_close(distilled_transition(transition, torch.tensor([True, True])), transition)
    assert stationary(torch.ones(1, 1)).tolist() == [1.0]


def test_the_reduction_is_differentiable():
    """Inside the bound of recipe=literal the gradient goes through Theorem 1."""
    rows = torch.tensor([[0.5, 0.2, 0.2, 0.1], [0.1, 0.6, 0.1, 0.2], [0.3, 0.3, 0.1, 0.3], [0.05, 0.15, 0.5, 0.3]])
    inputs = (torch.tensor([0.1, 0.4, 0.3, 0.2]).double().requires_grad_(), rows.double().requires_grad_())
    keep = torch.tensor([True, False, True, False])

    def entries(initial, transition):
        found = distilled_chain(ContextChain(initial, transition), keep)
        return found.initial, found.transition

    assert torch.autograd.gradcheck(entries, inputs)
