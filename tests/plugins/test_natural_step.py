"""The natural step of q(rows) climbs the bound of eq. (4): against quadrature over every chain of two contexts."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch.distributions import Beta, Dirichlet, kl_divergence

from mbrl_hdp.inference.prior import ChainDraw
from mbrl_hdp.probability.hmm import log_evidence, smooth
from mbrl_hdp.types import ContextChain
from mbrl_hdp_priors import DirichletPrior, HdpPrior

NODES = 24  # Gauss-Legendre nodes a row; the bounds below agree with those of 40 nodes to 1e-4


def overlapping(num_episodes=3, num_steps=12, gap=1.0):
    """Return log-likelihoods of two contexts whose observations overlap; one stays longer than the other."""
    rng = np.random.default_rng(1)
    transition = np.array([[0.9, 0.1], [0.3, 0.7]])
    rows = []
    for _ in range(num_episodes):
        context = int(rng.integers(2))
        for _ in range(num_steps):
            value = gap * context + rng.normal()
            rows.append([-0.5 * value**2, -0.5 * (value - gap) ** 2])
            context = int(rng.choice(2, p=transition[context]))
    return torch.tensor(np.reshape(rows, (num_episodes, num_steps, 2)))


class Quadrature:
    """E_q[log p(obs | chain)] - KL(q || p) for two contexts, with no draw: the evidence on a grid of all chains."""

    def __init__(self, log_lik, prior_rows):
        nodes, weights = np.polynomial.legendre.leggauss(NODES)
        self.nodes, self.weights = torch.tensor((nodes + 1) / 2), torch.tensor(weights / 2)
        self.prior = Dirichlet(prior_rows)
        pairs = torch.stack([self.nodes, 1 - self.nodes], -1)
        grid = torch.zeros(NODES, NODES, NODES, dtype=torch.float64)
        for j in range(NODES):
            for k in range(NODES):
                transition = torch.stack([pairs[j], pairs[k]])
                # The evidence is linear in `initial` for every episode.
                corners = [log_evidence(ContextChain(corner, transition), log_lik) for corner in torch.eye(2).double()]
                grid[:, j, k] = (torch.stack(corners).T[:, None] + pairs.log()).logsumexp(-1).sum(0)
        self.evidence = grid

    def bound(self, q_rows):
        weights = [self.weights * Beta(first, second).log_prob(self.nodes).exp() for first, second in q_rows.unbind(0)]
        weights = [each / each.sum() for each in weights]
        expected = torch.einsum("i,j,k,ijk->", *weights, self.evidence)
        return expected - kl_divergence(Dirichlet(q_rows), self.prior).sum()

    def natural_gradient(self, q_rows):
        """Return F^-1 d bound/dc, with the Fisher matrix of every row written out."""
        q_rows = q_rows.clone().requires_grad_()
        (slope,) = torch.autograd.grad(self.bound(q_rows), q_rows)
        rows = q_rows.detach()
        fisher = torch.diag_embed(torch.polygamma(1, rows)) - torch.polygamma(1, rows.sum(-1))[:, None, None]
        return torch.linalg.solve(fisher, slope)

    def optimum(self):
        def negative(log_rows):
            rows = torch.tensor(log_rows.reshape(3, 2)).requires_grad_()
            value = -self.bound(rows.exp())
            value.backward()
            return value.item(), rows.grad.numpy().ravel()

        found = minimize(negative, self.prior.concentration.log().numpy().ravel(), jac=True)
        return torch.tensor(np.exp(found.x.reshape(3, 2)))


def prior_of(kind):
    prior = kind(2, row_concentration=2.4, stickiness=1.3).double()
    if kind is HdpPrior:
        with torch.no_grad():
            prior.raw_top.copy_(torch.tensor([0.3]))
    return prior


def draw_rows(prior):
    rows = Dirichlet(prior.q_rows().detach()).sample()
    return ContextChain(rows[0], rows[1:])


def drawn(prior, log_lik):
    return counted(draw_rows(prior), log_lik)


def counted(chain, log_lik):
    found = smooth(chain, log_lik)
    return ChainDraw(chain, found.expected_initial, found.expected_transitions)


def expected_counts_fixed_point(prior, log_lik, num_rounds=100):
    """Return c = prior + E_q[counts], which belongs to another bound."""
    for number in range(num_rounds):
        draw = drawn(prior, log_lik)
        counts = torch.cat([draw.expected_initial[None], draw.expected_transitions])
        step = 1 / (1 + number)
        with torch.no_grad():
            prior._set_q_rows((1 - step) * prior.q_rows() + step * (prior.expected_prior_rows() + counts))
    return prior.q_rows().detach()


@pytest.fixture(scope="module", params=[HdpPrior, DirichletPrior])
def case(request):
    prior, log_lik = prior_of(request.param), overlapping()
    return request.param, log_lik, Quadrature(log_lik, prior.expected_prior_rows().detach())


@torch.no_grad()
@pytest.mark.parametrize("has_centre", [False, True])
@pytest.mark.parametrize("start", [[[2.0, 1.5], [6.0, 1.2], [1.8, 4.0]], [[1.5, 3.0], [40.0, 9.0], [12.0, 20.0]]])
def test_the_mean_direction_is_the_natural_gradient(case, start, has_centre):
    kind, log_lik, quadrature = case
    torch.manual_seed(0)
    prior, start = prior_of(kind), torch.tensor(start).double()
    moves = []
    prior._set_q_rows(start)
    centre = counted(prior.mean_chain(), log_lik) if has_centre else None
    for _ in range(600):
        prior._set_q_rows(start)
        prior.natural_step([drawn(prior, log_lik)], 1e-3, centre)
        moves.append((prior.q_rows() - start) / 1e-3)
    moves = torch.stack(moves)
    with torch.enable_grad():
        wanted = quadrature.natural_gradient(start)
    error = moves.std(0) / len(moves) ** 0.5
    assert bool(((moves.mean(0) - wanted).abs() < 4 * error + 2e-3 * wanted.abs()).all())
    assert bool((error < 0.25 * start).all())


@torch.no_grad()
def test_the_steps_lead_to_the_maximum_of_the_bound(case):
    kind, log_lik, quadrature = case
    torch.manual_seed(1)
    with torch.enable_grad():
        best = quadrature.optimum()
    prior = prior_of(kind)
    prior.start_from(ContextChain(torch.tensor([0.2, 0.8]), torch.tensor([[0.5, 0.5], [0.6, 0.4]])), 30.0)
    for number in range(600):
        prior.natural_step([drawn(prior, log_lik)], 2.0 / (number + 10))
    found, highest = quadrature.bound(prior.q_rows()), quadrature.bound(best)
    assert highest - 0.01 < found <= highest + 1e-6
    torch.testing.assert_close(prior.q_rows().sum(-1), best.sum(-1), rtol=0.2, atol=0.0)
    torch.testing.assert_close(prior.mean_chain().transition, best[1:] / best[1:].sum(-1, True), rtol=0.0, atol=0.01)
    # The test would see the difference: prior + expected counts is far from it.
    other = expected_counts_fixed_point(prior_of(kind), log_lik)
    assert quadrature.bound(other) < highest - 0.3
    assert bool((other[1:].sum(-1) > 1.5 * best[1:].sum(-1)).all())


@torch.no_grad()
def test_where_contexts_are_plain_the_step_counts():
    """Known contexts make the likelihood a product of counts: the bound is highest at c = prior + counts."""
    torch.manual_seed(2)
    prior = HdpPrior(3, row_concentration=5.0, stickiness=2.0).double()
    counts = torch.tensor([[3.0, 1.0, 0.0], [20.0, 2.0, 1.0], [0.5, 30.0, 7.0], [0.0, 0.0, 0.2]]).double()
    target = prior.expected_prior_rows() + counts
    draw = ChainDraw(draw_rows(prior), counts[0], counts[1:])
    moves = []
    for _ in range(1000):
        prior._set_q_rows(target)
        prior.natural_step([ChainDraw(draw_rows(prior), counts[0], counts[1:])], 1e-3)
        moves.append((prior.q_rows() - target) / 1e-3)
    moves = torch.stack(moves)
    assert bool((moves.mean(0).abs() < 5 * moves.std(0) / len(moves) ** 0.5 + 1e-6).all())
    prior._set_q_rows(3.0 * target)
    prior.natural_step([draw], 1.0, centre=draw)  # with the counts known, one step is enough and exact
    torch.testing.assert_close(prior.q_rows(), target)


def test_one_context_has_nothing_to_move():
    prior = HdpPrior(1)
    prior.natural_step([ChainDraw(prior.mean_chain(), torch.tensor([4.0]), torch.tensor([[9.0]]))], 1.0)
    torch.testing.assert_close(prior.q_rows(), prior.expected_prior_rows())
