"""The Dirichlet posterior of the chain's rows, shared by the priors whose rows are Dirichlet given their weights.

The truncated stick-breaking rows of eq. (3) and (5) are exactly Dirichlets (tests/probability shows it), so the rows
are held as K+1 concentration vectors: row 0 is the initial distribution, row j+1 is context j's.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import pyro
import pyro.distributions as dist
import torch
from jaxtyping import Float
from torch import Tensor, nn

from mbrl_hdp.errors import ConfigError
from mbrl_hdp.inference.prior import ChainDraw, ContextPrior
from mbrl_hdp.probability.sticks import row_concentrations
from mbrl_hdp.types import ContextChain

# Below this a Dirichlet draw underflows float32 and its gradient loses its meaning.
MIN_CONCENTRATION = 1e-4
# An entry that underflowed to 0 in a draw counts as this.
_LEAST_ENTRY = 1e-30


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

    def natural_step(self, draws: Sequence[ChainDraw], step: float, centre: ChainDraw | None = None) -> None:
        """Move q(rows) along the natural gradient of the bound of eq. (4), estimated from draws of the chain.

        c <- c + step (prior - c + F^-1 d/dc E_q[log p(obs | rows)]), F the Fisher matrix of Dir(c); the gradient is
        the implicitly reparameterised one. Of the part of the log-likelihood that is sum(counts * log rows) with the
        counts of `centre`, the natural gradient is these counts, exactly; only the rest is estimated. No
        concentration falls below a tenth of its value in one step.
        """
        with torch.no_grad():
            q_rows = self.q_rows().double()
            known = None if centre is None else _counts(centre).to(q_rows)
            direction = self.expected_prior_rows() - q_rows
            if known is not None:
                direction += known
            if self.max_contexts > 1:
                slopes = torch.stack([_likelihood_slope(q_rows, draw, known) for draw in draws]).mean(0)
                direction += _inverse_fisher(q_rows, slopes)
            self._set_q_rows(torch.maximum(q_rows + step * direction, 0.1 * q_rows).to(self.raw_rows))

    def start_from(self, chain: ContextChain, strength: float) -> None:
        """Centre q(rows) on `chain` with `strength` pseudo-counts a row; zero entries become the smallest allowed."""
        with torch.no_grad():
            rows = torch.cat([chain.initial[None], chain.transition]).to(self.raw_rows)
            self._set_q_rows(strength * rows / rows.sum(-1, keepdim=True).clamp_min(torch.finfo(rows.dtype).tiny))

    def _set_q_rows(self, q_rows: Float[Tensor, "rows K"]) -> None:
        self.raw_rows.copy_((q_rows - MIN_CONCENTRATION).clamp_min(0.1 * MIN_CONCENTRATION).log())


def paper_stickiness(max_contexts: int) -> float:
    """Return the paper's default stickiness, kappa = 3K/5 (hyper-parameter table of model learning)."""
    return 3.0 * max_contexts / 5.0


def _counts(draw: ChainDraw) -> Float[Tensor, "rows K"]:
    return torch.cat([draw.expected_initial[None], draw.expected_transitions])


def _likelihood_slope(
    q_rows: Float[Tensor, "rows K"], draw: ChainDraw, known: Float[Tensor, "rows K"] | None
) -> Float[Tensor, "rows K"]:
    """Return d/dc (log p(obs | rows(c)) - sum(known * log rows(c))) at one draw, by implicit reparameterisation.

    With respect to rows(c) itself the derivative is (counts - known) / rows; `known` is 0 if None.
    """
    rows = torch.cat([draw.chain.initial[None], draw.chain.transition]).to(q_rows).clamp_min(_LEAST_ENTRY)
    counts = _counts(draw).to(q_rows)
    if known is not None:
        counts -= known
    moved = torch._dirichlet_grad(rows, q_rows, q_rows.sum(-1, keepdim=True).expand_as(q_rows).contiguous())
    return moved * (counts / rows - counts.sum(-1, keepdim=True))


def _inverse_fisher(q_rows: Float[Tensor, "rows K"], slope: Float[Tensor, "rows K"]) -> Float[Tensor, "rows K"]:
    """Return F^-1 slope of every row; F = diag(trigamma(c_k)) - trigamma(sum c), inverted by Sherman and Morrison."""
    inverse = 1.0 / torch.polygamma(1, q_rows)
    total = torch.polygamma(1, q_rows.sum(-1, keepdim=True))
    scaled = inverse * slope
    return scaled + inverse * total * scaled.sum(-1, keepdim=True) / (1.0 - total * inverse.sum(-1, keepdim=True))
