"""The evidence lower bound of eq. (4), one function per term and `elbo`, which sums them.

    ELBO = N/B sum_b E_q[log p(obs_b | act_b, chain, theta)] - KL(q(chain) || p(chain)) + log p(theta)

The contexts are summed out exactly by message passing; everything about the chain is left to Pyro: the prior's program
with the likelihood as one factor, its guide, and `TraceMeanField_ELBO`. Any `ContextPrior` and any `ContextDynamics`
will do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyro
import torch
from jaxtyping import Bool, Float, Int
from pyro.infer import TraceMeanField_ELBO
from torch import Tensor

from mbrl_hdp.inference.dynamics import ContextDynamics
from mbrl_hdp.inference.prior import ChainDraw, ContextPrior
from mbrl_hdp.inference.reduction import ChainReduction, close_paths
from mbrl_hdp.probability.hmm import Smoothed, smooth
from mbrl_hdp.types import ContextChain

_LIKELIHOOD_SITE = "mbrl_hdp_log_likelihood"  # a name that no prior's own site has


@dataclass(frozen=True)
class EpisodeBatch:
    """Episodes of one minibatch, padded to T transitions.

    Attributes:
        obs: observations, `B T+1 S`.
        act: actions, `B T A`; A = 0 where there is none.
        lengths: number of transitions of every episode, `B`; what lies beyond is ignored, NaN included.
        is_observed: transitions that carry likelihood, `B T`; None means all of them.
        is_seen: values of `obs` that were recorded, `B T+1 S`; the others are filled in. None means all of them.
        is_partial: transitions of which some columns were recorded at both ends, `B T`; None means there are none.
    """

    obs: Float[Tensor, "B T1 S"]
    act: Float[Tensor, "B T A"]
    lengths: Int[Tensor, " B"]
    is_observed: Bool[Tensor, "B T"] | None = None
    is_seen: Bool[Tensor, "B T1 S"] | None = None
    is_partial: Bool[Tensor, "B T"] | None = None

    def carries_likelihood(self) -> Bool[Tensor, "B T"]:
        """Return which transitions are inside their episode and observed."""
        steps = torch.arange(self.act.shape[1], device=self.act.device)
        is_inside = steps < self.lengths[:, None].to(self.act.device)
        return is_inside if self.is_observed is None else is_inside & self.is_observed


@dataclass(frozen=True)
class ElboScale:
    """How the terms of the bound are weighted.

    Attributes:
        num_episodes: number N of episodes in the whole data set; a minibatch of B stands for N/B of its size.
        num_transitions: number of observed transitions in the whole data set (the paper's N*T): the loss is per step.
        temperature: power of every step's likelihood; 1 is the bound itself, less than 1 flattens the contexts'
            posterior (annealing at the start of training).
        keep: contexts that distillation left alive, `K`; None means all of them.
        num_draws: draws of the chain from q that are averaged.
        reduce: what the mask does to the chain.
    """

    num_episodes: int
    num_transitions: int
    temperature: float = 1.0
    keep: Bool[Tensor, " K"] | None = None
    num_draws: int = 1
    reduce: ChainReduction = close_paths


@dataclass(frozen=True)
class Elbo:
    """The bound for the whole data set, and its terms; `loss` is what an optimiser minimises.

    Attributes:
        value: the bound, log_likelihood - prior_kl + weight_log_prior; differentiable.
        log_likelihood: N/B times the minibatch's log evidence, averaged over the draws of the chain; no gradient.
        prior_kl: KL(q || p) of everything the prior samples; no gradient.
        weight_log_prior: log p(theta); no gradient.
        num_transitions: what `loss` divides by.
        draws: the draws of the chain with expected counts (N/B times the batch's), for `natural_step`; no gradient.
    """

    value: Float[Tensor, ""]
    log_likelihood: Float[Tensor, ""]
    prior_kl: Float[Tensor, ""]
    weight_log_prior: Float[Tensor, ""]
    num_transitions: int
    draws: list[ChainDraw]

    @property
    def loss(self) -> Float[Tensor, ""]:
        """The negative bound per transition."""
        return -self.value / self.num_transitions


def step_log_lik(
    dynamics: ContextDynamics, batch: EpisodeBatch, slots: Int[Tensor, " n"] | None = None
) -> Float[Tensor, "B T n"]:
    """Return log p(obs[t+1] | obs[t], act[t], context=k); zero (no information) where nothing was observed.

    Only transitions that carry likelihood reach the network, so padding costs nothing and NaN stays outside. With
    `slots`, only those contexts' networks run.
    """

    def log_prob(obs: Tensor, act: Tensor, next_obs: Tensor) -> Tensor:
        if slots is None:
            return dynamics.log_prob(obs, act, next_obs)
        return dynamics.log_prob_slots(obs, act, next_obs, slots)

    is_used = batch.carries_likelihood()
    num_episodes, num_steps = is_used.shape
    columns = batch.obs[:, :-1], batch.act, batch.obs[:, 1:]
    if bool(is_used.all()):
        rows = log_prob(*(column.flatten(0, 1) for column in columns))
        return rows.view(num_episodes, num_steps, -1)
    rows = log_prob(*(column[is_used] for column in columns))
    log_lik = rows.new_zeros(num_episodes, num_steps, rows.shape[-1]).index_put((is_used,), rows)
    if batch.is_partial is None or batch.is_seen is None:
        return log_lik
    # The change of a column is known only if the column was recorded at both ends.
    next_obs = columns[2].masked_fill(~(batch.is_seen[:, :-1] & batch.is_seen[:, 1:]), torch.nan)
    part = batch.is_partial
    partly = dynamics.log_prob_seen(columns[0][part], columns[1][part], next_obs[part], slots)
    return log_lik if partly is None else log_lik.index_put((part,), partly)


def expected_log_likelihood(
    chain: ContextChain, log_lik: Float[Tensor, "B T n"], lengths: Int[Tensor, " B"], scale: ElboScale
) -> Smoothed:
    """Return the log evidence of every episode under one draw of the chain, with the contexts' expected counts.

    The temperature and the mask of `scale` apply; N/B does not. `log_lik` has the contexts that the mask keeps (all of
    them without one); the evidence is that of `scale.reduce`, the counts have full width with zeros at masked contexts.
    """
    if scale.temperature != 1.0:
        log_lik = scale.temperature * log_lik
    if scale.keep is None:
        return smooth(chain, log_lik, lengths)
    slots = scale.keep.nonzero().squeeze(-1)
    found = smooth(scale.reduce(chain, scale.keep), log_lik, lengths)
    initial = torch.zeros_like(chain.initial).index_copy(0, slots, found.expected_initial.to(chain.initial))
    transitions = torch.zeros_like(chain.transition)
    transitions[slots[:, None], slots] = found.expected_transitions.to(transitions)
    return found._replace(expected_initial=initial, expected_transitions=transitions)


def prior_kl(prior: ContextPrior, num_draws: int = 1) -> Float[Tensor, ""]:
    """Return KL(q || p) of the prior's own program: in closed form where Pyro knows one, else from the draws."""
    return _pyro_loss(prior.model, prior.guide, num_draws)


def elbo(prior: ContextPrior, dynamics: ContextDynamics, batch: EpisodeBatch, scale: ElboScale) -> Elbo:
    """Return the bound of eq. (4) on one minibatch; `.loss.backward()` gives the gradients of prior and dynamics.

    Example:
        >>> bound = elbo(prior, dynamics, batch, ElboScale(num_episodes=500, num_transitions=50_000))
        >>> bound.loss.backward()
    """
    log_lik = step_log_lik(dynamics, batch, None if scale.keep is None else scale.keep.nonzero().squeeze(-1))
    return elbo_of(prior, log_lik, dynamics.log_prior(), batch.lengths, scale)


def elbo_of(
    prior: ContextPrior,
    log_lik: Float[Tensor, "B T n"],
    weight_term: Float[Tensor, ""],
    lengths: Int[Tensor, " B"],
    scale: ElboScale,
) -> Elbo:
    """Return the bound where the heads' likelihoods and log p(theta) are known."""
    num_copies = scale.num_episodes / len(lengths)
    chains: list[ContextChain] = []
    found: list[Smoothed] = []

    def program() -> ContextChain:
        """Draw a chain from the prior and weigh it by the episodes' evidence."""
        chain = prior.model()
        chains.append(chain)
        found.append(expected_log_likelihood(chain, log_lik, lengths, scale))
        # Summed in float64: the terms differ by orders of magnitude.
        pyro.factor(_LIKELIHOOD_SITE, num_copies * found[-1].log_evidence.double().sum())
        return chain

    negative = _pyro_loss(program, prior.guide, scale.num_draws)
    likelihood = num_copies * torch.stack([each.log_evidence.detach().double().sum() for each in found]).mean()
    return Elbo(
        value=weight_term - negative,
        log_likelihood=likelihood,
        prior_kl=negative.detach() + likelihood,
        weight_log_prior=weight_term.detach(),
        num_transitions=scale.num_transitions,
        draws=[_counted(chain, each, num_copies) for chain, each in zip(chains, found, strict=True)],
    )


def _counted(chain: ContextChain, found: Smoothed, num_copies: float) -> ChainDraw:
    drawn = ContextChain(chain.initial.detach(), chain.transition.detach())
    return ChainDraw(drawn, num_copies * found.expected_initial, num_copies * found.expected_transitions)


def _pyro_loss(model: Callable[[], Any], guide: Callable[[], Any], num_draws: int) -> Float[Tensor, ""]:
    """Return Pyro's negative bound as a tensor (it is a plain 0.0 where nothing is sampled)."""
    loss = TraceMeanField_ELBO(num_particles=num_draws).differentiable_loss(model, guide)
    return torch.as_tensor(loss)
