"""Oracles: sums over every context path, written as the definition reads."""

import itertools
from dataclasses import dataclass

import pytest
import torch

from mbrl_hdp.types import ContextChain


@dataclass(frozen=True)
class Paths:
    """Every context path of one sequence with its joint weight p(path, observations)."""

    paths: torch.Tensor
    weights: torch.Tensor

    @property
    def evidence(self):
        return self.weights.sum()

    def marginals(self, num_contexts):
        one_hot = torch.nn.functional.one_hot(self.paths, num_contexts).to(self.weights)
        return torch.einsum("p,ptk->tk", self.weights / self.evidence, one_hot)

    def pairs(self, num_contexts):
        one_hot = torch.nn.functional.one_hot(self.paths, num_contexts).to(self.weights)
        return torch.einsum("p,ptj,ptk->tjk", self.weights / self.evidence, one_hot[:, :-1], one_hot[:, 1:])


def enumerate_paths(initial, transition, log_lik):
    """List all paths; the weights are plain products, so their gradient is right at zero entries too."""
    num_steps, num_contexts = log_lik.shape
    paths = torch.tensor(list(itertools.product(range(num_contexts), repeat=num_steps)))
    weights = initial[paths[:, 0]] * log_lik[0, paths[:, 0]].exp()
    for t in range(1, num_steps):
        weights = weights * transition[paths[:, t - 1], paths[:, t]] * log_lik[t, paths[:, t]].exp()
    return Paths(paths, weights)


@pytest.fixture
def oracle():
    return enumerate_paths


def random_chain(num_contexts, seed, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    initial = torch.rand(num_contexts, generator=generator, dtype=torch.float64).mul(2).softmax(0)
    transition = torch.rand(num_contexts, num_contexts, generator=generator, dtype=torch.float64).mul(3).softmax(1)
    return ContextChain(initial.to(dtype), transition.to(dtype))


@pytest.fixture
def make_chain():
    return random_chain


@pytest.fixture
def make_log_lik():
    def make(batch, num_steps, num_contexts, seed, spread=2.0):
        generator = torch.Generator().manual_seed(seed)
        return spread * torch.randn(batch, num_steps, num_contexts, generator=generator, dtype=torch.float64) - 1.0

    return make
