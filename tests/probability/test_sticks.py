"""Stick-breaking both ways, and the rows of eq. (3)."""

import hypothesis.strategies as st
import torch
from hypothesis import given, settings
from hypothesis.extra.numpy import arrays

from mbrl_hdp.probability.sticks import (
    row_concentrations,
    stick_fractions,
    stick_weights,
)


@settings(max_examples=50, deadline=None)
@given(arrays(float, (2, 5), elements=st.floats(0.0, 1.0)))
def test_weights_are_a_law_and_fractions_undo_them(values):
    fractions = torch.from_numpy(values)
    weights = stick_weights(fractions)
    assert (weights >= 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, dtype=torch.float64))
    # A stick that takes everything leaves a rest of one rounding error of the whole.
    torch.testing.assert_close(stick_weights(stick_fractions(weights)), weights, rtol=1e-9, atol=1e-15)


def test_weights_follow_equation_2():
    weights = stick_weights(torch.tensor([0.2, 0.5, 0.25]))
    torch.testing.assert_close(weights, torch.tensor([0.2, 0.8 * 0.5, 0.8 * 0.5 * 0.25, 0.8 * 0.5 * 0.75]))
    assert stick_weights(torch.zeros(3, 0)).tolist() == [[1.0]] * 3


def test_tiny_tails_keep_their_precision():
    weights = torch.tensor([1.0, 1e-20, 3e-20], dtype=torch.float64)
    torch.testing.assert_close(stick_fractions(weights)[1], torch.tensor(0.25, dtype=torch.float64))


def test_where_nothing_is_left_the_fraction_is_zero_and_has_a_gradient():
    weights = torch.tensor([0.25, 0.75, 0.0, 0.0], dtype=torch.float64, requires_grad=True)
    fractions = stick_fractions(weights)
    assert fractions.tolist() == [0.25, 1.0, 0.0]
    (found,) = torch.autograd.grad(fractions[0], weights)
    # d (a / (a + b + c + d)): the rest over the square of the sum by a, -a over it by the others.
    torch.testing.assert_close(found, torch.tensor([0.75, -0.25, -0.25, -0.25], dtype=torch.float64))


def test_rows_follow_equation_3():
    top_weights, alpha, kappa = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64), 10.0, 4.0
    rows = row_concentrations(top_weights, alpha, kappa)
    # Stick fractions of a Dirichlet with parameters c are Beta(c_k, sum of c_i over i > k).
    first, second = rows[..., :-1], rows.flip(-1).cumsum(-1).flip(-1)[..., 1:]
    for j in range(4):
        for k in range(1, 3):  # the paper counts from 1; row 0 is the initial distribution
            delta = [float(i == j) for i in range(1, 4)]
            shape = alpha * top_weights[k - 1] + kappa * delta[k - 1]
            # The initial distribution has no sticky mass (DESIGN, section 5), so its total is alpha.
            rest = alpha + (kappa if j else 0.0) - sum(alpha * top_weights[i] + kappa * delta[i] for i in range(k))
            torch.testing.assert_close(first[j, k - 1], shape)
            torch.testing.assert_close(second[j, k - 1], rest)
