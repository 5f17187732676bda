"""The sticky hierarchical Dirichlet process: eq. (2)-(3) with the truncated variational distribution of eq. (5)."""

from __future__ import annotations

from dataclasses import dataclass

import pyro
import pyro.distributions as dist
import torch
from jaxtyping import Float
from torch import Tensor, nn

from mbrl_hdp.inference.prior import ContextPrior
from mbrl_hdp.probability.sticks import stick_fractions, stick_weights
from mbrl_hdp.settings import check_settings, choice, setting
from mbrl_hdp.types import ContextChain, TaskSpec
from mbrl_hdp_priors.rows import DirichletRowsPrior

# Sticks stay this far inside (0, 1): 1 - nu must not round to 0 in float32.
_STICK_MARGIN = 1e-6


@dataclass
class HdpConfig:
    """Settings of the `hdp` prior."""

    top_concentration: float = setting(2.0, "concentration of the shared weights (gamma): small means few", above=0.0)
    row_concentration: float = setting(
        100.0, "pull of every row towards the shared weights (alpha; the paper has 1000, 5000 for the drone)", above=0.0
    )
    stickiness: float | None = setting(None, "extra prior mass on staying (kappa); null means 3K/5", at_least=0.0)
    top_posterior: str = choice(("point", "beta"), "q of the top sticks: point estimate (the paper's choice) or beta")


class HdpPrior(DirichletRowsPrior):
    """The sticky HDP with a point estimate of the top sticks.

        top_sticks[k] ~ Beta(1, top_concentration),  top_weights = stick-breaking of top_sticks          eq. (2)
        initial       ~ Dir(row_concentration * top_weights)
        transition[j] ~ Dir(row_concentration * top_weights + stickiness * e_j)                          eq. (3)
        q             = Delta(top_sticks) * Dir(q_rows)                                                  eq. (5)

    The top weights start uniform, q(rows) at the prior.

    Example:
        >>> prior = HdpPrior(max_contexts=5)
        >>> prior.top_weights()
        tensor([0.2000, 0.2000, 0.2000, 0.2000, 0.2000])
    """

    def __init__(
        self,
        max_contexts: int,
        top_concentration: float = 2.0,
        row_concentration: float = 100.0,
        stickiness: float | None = None,
    ) -> None:
        super().__init__(max_contexts, row_concentration, stickiness)
        self.top_concentration = top_concentration
        self.raw_top = nn.Parameter(self._raw_top_from(torch.full((max_contexts,), 1.0 / max_contexts)))
        with torch.no_grad():
            self._set_q_rows(self.expected_prior_rows())

    def model(self) -> ContextChain:
        """Sample the top sticks and the rows; eq. (2) and (3)."""
        return self.sample_rows(self.prior_rows(self._sample_top_weights()))

    def guide(self) -> None:
        """Sample the same sites from q; eq. (5)."""
        if self.max_contexts > 1:
            self._sample_q_top_sticks()
        self.sample_rows(self.q_rows())

    def top_sticks(self) -> Float[Tensor, " sticks"]:
        """Return the expected stick fractions under q."""
        return _stick_from_raw(self.raw_top)

    def top_weights(self) -> Float[Tensor, " K"]:
        """Return the expected shared weights under q (the sticks are independent, so E[beta] breaks E[nu])."""
        return stick_weights(self.top_sticks())

    def expected_prior_rows(self) -> Float[Tensor, "rows K"]:
        """Return the rows' prior concentrations at the expected shared weights."""
        return self.prior_rows(self.top_weights())

    def top_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of q(top_sticks), for an optimiser's group of their own."""
        return [self.raw_top]

    def _sample_top_weights(self) -> Float[Tensor, " K"]:
        if self.max_contexts == 1:
            return torch.ones_like(self.raw_rows[0])
        one = torch.ones_like(self.raw_rows[0, 1:])
        sticks = dist.Beta(one, self.top_concentration * one).to_event(1)
        # A Beta draw can round to 0 or 1, which would leave later weights nothing.
        return stick_weights(pyro.sample("top_sticks", sticks).clamp(_STICK_MARGIN, 1.0 - _STICK_MARGIN))

    def _sample_q_top_sticks(self) -> None:
        pyro.sample("top_sticks", dist.Delta(_stick_from_raw(self.raw_top), event_dim=1))

    def _raw_top_from(self, weights: Float[Tensor, " K"]) -> Float[Tensor, " sticks"]:
        return _raw_from_stick(stick_fractions(weights))


class BetaHdpPrior(HdpPrior):
    """The sticky HDP with a full Beta variational distribution of the top sticks.

    The paper prefers the point estimate (appendix "Justification for the variational distributions"):
    `mbrl-hdp reproduce nu_study` shows why. `raw_top` holds the logs of the two Beta parameters, `2 K-1`.
    """

    def q_top_sticks(self) -> Float[Tensor, "2 sticks"]:
        """Return the parameters of q(top_sticks[k]) = Beta(a_k, b_k)."""
        return self.raw_top.exp() + _STICK_MARGIN

    def top_sticks(self) -> Float[Tensor, " sticks"]:
        """Return the expected stick fractions under q, a / (a + b)."""
        q_sticks = self.q_top_sticks()
        return q_sticks[0] / q_sticks.sum(0)

    def _sample_q_top_sticks(self) -> None:
        q_sticks = self.q_top_sticks()
        pyro.sample("top_sticks", dist.Beta(q_sticks[0], q_sticks[1]).to_event(1))

    def _raw_top_from(self, weights: Float[Tensor, " K"]) -> Float[Tensor, "2 sticks"]:
        fractions = stick_fractions(weights).clamp(_STICK_MARGIN, 1.0 - _STICK_MARGIN)
        strength = 2.0 * self.max_contexts  # the rarest stick of uniform weights then starts at Beta(2, .)
        return (strength * torch.stack([fractions, 1.0 - fractions])).log()


def build_hdp(config: HdpConfig, task: TaskSpec) -> ContextPrior:
    """Build the `hdp` prior."""
    check_settings(config, "prior")
    kind = BetaHdpPrior if config.top_posterior == "beta" else HdpPrior
    return kind(task.max_contexts, config.top_concentration, config.row_concentration, config.stickiness)


def _stick_from_raw(raw: Float[Tensor, " sticks"]) -> Float[Tensor, " sticks"]:
    return _STICK_MARGIN + (1.0 - 2.0 * _STICK_MARGIN) * torch.sigmoid(raw)


def _raw_from_stick(stick: Float[Tensor, " sticks"]) -> Float[Tensor, " sticks"]:
    inner = (stick - _STICK_MARGIN) / (1.0 - 2.0 * _STICK_MARGIN)
    return torch.logit(inner.clamp(_STICK_MARGIN, 1.0 - _STICK_MARGIN))
