"""The paper's study of q(top_sticks): the quadrature's optima, our priors' losses, and the gradients."""

import math

import pytest
import torch

from mbrl_hdp.experiments.studies.nu_cell import Q_ROWS, beta_loss, point_loss, run
from mbrl_hdp.inference.elbo import prior_kl
from mbrl_hdp_priors import BetaHdpPrior, HdpPrior


@pytest.fixture(scope="module")
def study():
    return run({"num_points": 25})


def with_study_rows(prior):
    prior = prior.double()
    with torch.no_grad():
        prior._set_q_rows(Q_ROWS)
    return prior


def test_the_optimal_point_estimate_is_the_papers(study):
    assert study["point"] == pytest.approx(0.493, abs=5e-4)


def test_the_optimal_beta_by_quadrature(study):
    assert study["beta"] == pytest.approx((4.48, 4.57), abs=0.005)
    # Whatever the paper minimised, the quadrature's optimum is better.
    assert study["beta_loss"] == pytest.approx(4.4766, abs=1e-4)
    assert study["paper_beta_loss"] == pytest.approx(4.4794, abs=1e-4)


def test_the_quadrature_agrees_with_scipy():
    from scipy.integrate import quad
    from scipy.stats import beta

    def integrand(x):
        return beta.pdf(x, 3.0, 2.0) * float(point_loss(torch.tensor(x, dtype=torch.float64)))

    want = quad(integrand, 0.0, 1.0)[0]
    beta_32, flat = torch.distributions.Beta(3.0, 2.0), torch.distributions.Beta(1.0, 1.0)
    want += torch.distributions.kl_divergence(beta_32, flat).item()
    three, two = torch.tensor(3.0, dtype=torch.float64), torch.tensor(2.0, dtype=torch.float64)
    assert beta_loss(three, two).item() == pytest.approx(want, rel=1e-6)


def test_our_point_prior_has_the_studys_loss():
    prior = with_study_rows(HdpPrior(2, top_concentration=1.0, row_concentration=1.0, stickiness=0.0))
    for raw in (-1.5, 0.0, 2.0):
        with torch.no_grad():
            prior.raw_top.fill_(raw)
        torch.testing.assert_close(prior_kl(prior), point_loss(prior.top_sticks())[0], rtol=1e-9, atol=1e-9)


def test_our_beta_prior_has_the_studys_loss_and_gradient_on_average():
    torch.manual_seed(0)
    prior = with_study_rows(BetaHdpPrior(2, top_concentration=1.0, row_concentration=1.0, stickiness=0.0))
    with torch.no_grad():
        prior.raw_top.copy_(torch.tensor([[3.0], [2.0]]).log())
    losses, slopes = [], []
    for _ in range(600):
        loss = prior_kl(prior)
        slopes.append(torch.autograd.grad(loss, prior.raw_top)[0][:, 0])
        losses.append(loss.detach())
    raw = prior.raw_top.detach()[:, 0].clone().requires_grad_()
    exact = beta_loss(raw[0].exp(), raw[1].exp())
    (exact_slope,) = torch.autograd.grad(exact, raw)
    for values, want in ((torch.stack(losses), exact), (torch.stack(slopes), exact_slope)):
        error = values.std(0) / math.sqrt(len(values))
        assert bool(((values.mean(0) - want).abs() < 6 * error).all())


def test_the_beta_distributions_gradients_vanish_and_the_points_do_not(study):
    small, median = study["small_gradients"], study["median_gradient"]
    assert small["point estimate"] < 0.02
    assert small["Beta"] > 0.3
    assert median["point estimate"] > 20 * median["Beta"]
