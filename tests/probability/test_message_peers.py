"""The messages against hmmlearn and Pyro on a Gaussian hidden Markov model."""

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from hmmlearn.hmm import GaussianHMM

from mbrl_hdp.probability.hmm import log_evidence, smooth, viterbi
from mbrl_hdp.types import ContextChain

MEANS = torch.tensor([-1.0, 0.5, 3.0, 3.5], dtype=torch.float64)
SCALES = torch.tensor([0.5, 1.0, 0.3, 2.0], dtype=torch.float64)


@pytest.fixture
def problem(make_chain):
    chain = make_chain(4, seed=11)
    observations = torch.randn(6, 80, dtype=torch.float64, generator=torch.Generator().manual_seed(3)) * 2 + 1
    log_lik = dist.Normal(MEANS, SCALES).log_prob(observations[..., None])
    return chain, observations, log_lik


def test_equals_hmmlearn(problem):
    chain, observations, log_lik = problem
    lengths = torch.tensor([80, 80, 41, 80, 3, 80])
    peer = GaussianHMM(n_components=4, covariance_type="diag")
    peer.startprob_, peer.transmat_ = chain.initial.numpy(), chain.transition.numpy()
    peer.means_, peer.covars_ = MEANS[:, None].numpy(), SCALES[:, None].numpy() ** 2
    result, path = smooth(chain, log_lik, lengths), viterbi(chain, log_lik, lengths)
    for b, length in enumerate(lengths.tolist()):
        sequence = observations[b, :length, None].numpy()
        score, posterior = peer.score_samples(sequence)
        np.testing.assert_allclose(result.log_evidence[b], score, rtol=1e-8)
        np.testing.assert_allclose(result.marginals[b, :length], posterior, atol=1e-8)
        np.testing.assert_array_equal(path[b, :length], peer.decode(sequence)[1])


def test_equals_pyro_with_gradient(problem):
    chain, observations, log_lik = problem
    # Pyro's initial distribution is that of the context before the first move.
    before = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64, requires_grad=True)
    transition = chain.transition.clone().requires_grad_()
    peer = dist.DiscreteHMM(before.log(), transition.log(), dist.Normal(MEANS, SCALES), duration=80)
    theirs = peer.log_prob(observations)
    ours = log_evidence(ContextChain(before @ transition, transition), log_lik)
    torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=0)
    # Pyro normalises its logits, so only the gradient along the simplex compares.
    mine, other = (torch.autograd.grad(x.sum(), (before, transition), retain_graph=True) for x in (ours, theirs))
    torch.testing.assert_close(
        _along_simplex(mine[1], transition), _along_simplex(other[1], transition), rtol=1e-8, atol=1e-8
    )
    torch.testing.assert_close(_along_simplex(mine[0], before), _along_simplex(other[0], before), rtol=1e-8, atol=1e-8)


def _along_simplex(gradient, probs):
    """Gradient by the logits."""
    return probs * (gradient - (probs * gradient).sum(-1, keepdim=True))
