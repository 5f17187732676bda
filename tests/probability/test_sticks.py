"""Stick-breaking both ways and its equivalence with the Dirichlet distribution."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from hypothesis.extra.numpy import arrays
from torch.distributions import Beta, Dirichlet

from mbrl_hdp.probability.sticks import (
    beta_sticks_from_dirichlet,
    dirichlet_from_beta_sticks,
    row_concentrations,
    stick_fractions,
    stick_log_jacobian,
    stick_weights,
)

CONCENTRATION = torch.tensor([[0.7, 2.0, 5.0, 1.3], [3.0, 0.4, 1.0, 60.0]], dtype=torch.float64)


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


def test_stick_density_is_the_dirichlet_density():
    fractions = torch.rand(20, 2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    by_sticks = Beta(*beta_sticks_from_dirichlet(CONCENTRATION)).log_prob(fractions).sum(-1)
    weights = stick_weights(fractions)
    torch.testing.assert_close(by_sticks - stick_log_jacobian(fractions), Dirichlet(CONCENTRATION).log_prob(weights))


def test_jacobian_equals_autograd():
    fractions = torch.tensor([0.3, 0.6, 0.1, 0.8], dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(lambda x: stick_weights(x)[:-1], fractions)
    torch.testing.assert_close(stick_log_jacobian(fractions), jacobian.det().abs().log())
    assert stick_log_jacobian(torch.tensor([0.5, 1.0])) == pytest.approx(torch.log(torch.tensor(0.5)).item())


def test_stick_moments_are_the_dirichlet_moments():
    # E[weight_k] and E[weight_k^2] are products of Beta moments, because the fractions are independent.
    first, second = beta_sticks_from_dirichlet(CONCENTRATION)
    total = first + second
    mean, square = first / total, first * (first + 1) / (total * (total + 1))
    mean_rest, square_rest = second / total, second * (second + 1) / (total * (total + 1))
    dirichlet = Dirichlet(CONCENTRATION)
    for power, taken, left in ((1, mean, mean_rest), (2, square, square_rest)):
        ones = torch.ones(2, 1, dtype=torch.float64)
        moments = torch.cat([taken, ones], -1) * torch.cat([ones, left.cumprod(-1)], -1)
        expected = dirichlet.mean if power == 1 else dirichlet.variance + dirichlet.mean**2
        torch.testing.assert_close(moments, expected)


def test_parameters_go_both_ways():
    torch.testing.assert_close(dirichlet_from_beta_sticks(*beta_sticks_from_dirichlet(CONCENTRATION)), CONCENTRATION)
    with pytest.raises(ValueError, match="only if"):
        dirichlet_from_beta_sticks(torch.tensor([1.0, 1.0]), torch.tensor([5.0, 2.0]))


def test_rows_follow_equation_3():
    top_weights, alpha, kappa = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64), 10.0, 4.0
    rows = row_concentrations(top_weights, alpha, kappa)
    first, second = beta_sticks_from_dirichlet(rows)
    for j in range(4):
        for k in range(1, 3):  # the paper counts from 1; row 0 is the initial distribution
            delta = [float(i == j) for i in range(1, 4)]
            shape = alpha * top_weights[k - 1] + kappa * delta[k - 1]
            # The initial distribution has no sticky mass (DESIGN, section 5), so its total is alpha.
            rest = alpha + (kappa if j else 0.0) - sum(alpha * top_weights[i] + kappa * delta[i] for i in range(k))
            torch.testing.assert_close(first[j, k - 1], shape)
            torch.testing.assert_close(second[j, k - 1], rest)
