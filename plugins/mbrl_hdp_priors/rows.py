"""The Dirichlet posterior of the chain's rows, shared by the priors whose rows are Dirichlet given their weights.

The truncated stick-breaking rows of eq. (3) and (5) are exactly Dirichlets (tests/probability shows it), so the rows
are held as K+1 concentration vectors: row 0 is the initial distribution, row j+1 is context j's.
"""

from __future__ import annotations

from abc import abstractmethod

import pyro
import pyro.distributions as dist
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mbrl_hdp.errors import ConfigError
from mbrl_hdp.inference.prior import ContextPrior
from mbrl_hdp.probability.sticks import row_concentrations
from mbrl_hdp.types import ContextChain

# Below this a Dirichlet draw underflows float32 and its gradient loses its meaning.
MIN_CONCENTRATION = 1e-4


class DirichletRowsPrior(ContextPrior):
    """A prior whose rows are Dirichlet, with q(rows) = Dir(q_rows), q_rows = exp(raw_rows) + a tiny floor.

    Attributes:
        row_concentration: pull of every row towards the shared weights (alpha).
        stickiness: extra prior mass on staying (kappa).
        raw_rows: log concentrations, `K+1 K`.
    """

    def __init__(self, max_contexts: int, row_concentration: float, stickiness: float | None) -> None:
        if max_contexts < 1:
            raise ConfigError(f"max_contexts must be at least 1, got {max_contexts}")
        super().__init__(max_contexts)
        self.row_concentration = row_concentration
        self.stickiness = paper_stickiness(max_contexts) if stickiness is None else stickiness
        self.raw_rows = nn.Parameter(torch.zeros(max_contexts + 1, max_contexts))

    @abstractmethod
    def expected_prior_rows(self) -> Float[Tensor, "rows K"]:
        """Return the prior's concentrations, averaged over q of whatever they depend on."""

    def prior_rows(self, weights: Float[Tensor, " K"]) -> Float[Tensor, "rows K"]:
        """Return the rows' prior concentrations at given shared weights; eq. (3)."""
        rows = row_concentrations(weights, self.row_concentration, self.stickiness)
        return rows.clamp_min(MIN_CONCENTRATION)

    def q_rows(self) -> Float[Tensor, "rows K"]:
        """Return the concentrations of q(rows)."""
        return self.raw_rows.exp() + MIN_CONCENTRATION

    def sample_rows(self, concentrations: Float[Tensor, "rows K"]) -> ContextChain:
        """Sample the site `rows` and return the chain it holds."""
        if self.max_contexts == 1:  # a simplex of one corner, where a Dirichlet draw has no usable gradient
            rows = self.raw_rows.softmax(-1)
        else:
            rows = pyro.sample("rows", dist.Dirichlet(concentrations).to_event(1))
        return ContextChain(rows[0], rows[1:])

    def mean_chain(self) -> ContextChain:
        """Return the expected chain under q: E[rows] = q_rows / sum(q_rows)."""
        q_rows = self.q_rows().detach()
        rows = q_rows / q_rows.sum(-1, keepdim=True)
        return ContextChain(rows[0], rows[1:])

    def natural_step(
        self, expected_initial: Float[Tensor, " K"], expected_transitions: Float[Tensor, "K K"], step: float
    ) -> None:
        """Move q(rows) along its natural gradient: c <- (1 - step) c + step (prior + counts)."""
        with torch.no_grad():
            counts = torch.cat([expected_initial[None], expected_transitions]).to(self.raw_rows)
            target = self.expected_prior_rows() + counts
            self._set_q_rows((1.0 - step) * self.q_rows() + step * target)

    def start_from(self, chain: ContextChain, strength: float) -> None:
        """Centre q(rows) on `chain` with `strength` pseudo-counts a row; zero entries become the smallest allowed."""
        with torch.no_grad():
            rows = torch.cat([chain.initial[None], chain.transition]).to(self.raw_rows)
            self._set_q_rows(strength * rows / rows.sum(-1, keepdim=True).clamp_min(torch.finfo(rows.dtype).tiny))

    def permute_slots(self, order: Int[Tensor, " K"]) -> None:
        """Reorder the contexts: the new slot k is the old slot order[k]."""
        with torch.no_grad():
            rows = torch.cat([order.new_zeros(1), order + 1])
            self.raw_rows.copy_(self.raw_rows[rows][:, order].clone())

    def row_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of q(rows), for an optimiser's group of their own."""
        return [self.raw_rows]

    def _set_q_rows(self, q_rows: Float[Tensor, "rows K"]) -> None:
        self.raw_rows.copy_((q_rows - MIN_CONCENTRATION).clamp_min(0.1 * MIN_CONCENTRATION).log())


def paper_stickiness(max_contexts: int) -> float:
    """Return the paper's default stickiness, kappa = 3K/5 (hyper-parameter table of model learning)."""
    return 3.0 * max_contexts / 5.0
