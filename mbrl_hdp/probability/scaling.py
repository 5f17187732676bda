"""How log-likelihoods become numbers that scaled messages can carry, and what the message passes hand back.

A scaled pass works with probabilities in float64, normalised at every step. It is exact as long as every context that
the chain can enter is predicted with at least `SMALLEST`: what underflows is then smaller than the rest by a factor
that no later step can make up for. Sequences that break this (transition entries that are zero or tinier than
`SMALLEST`, together with sharp likelihoods) are flagged and left to `exact`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

SMALLEST = 1e-100
LARGEST = 1e290


class Derivatives(NamedTuple):
    """Derivatives of `weights @ log_evidence` by Fisher's identity.

    Attributes:
        marginals: p(z_t | all observations) of every sequence, unweighted; zero beyond its length. It is the
            derivative of each sequence's evidence by its own log-likelihoods.
        by_initial: sum over sequences of weight * likelihood * backward message at the first step.
        by_transition: the same with the forward message of the step before, summed over steps. Both are formed
            without a division by the probability itself, so they hold at zero entries too; they are cut at `LARGEST`
            a term, where the true value may exceed what float64 holds.
    """

    marginals: Float[Tensor, "B T K"]
    by_initial: Float[Tensor, " K"]
    by_transition: Float[Tensor, "K K"]


class Forward(NamedTuple):
    """What the forward pass leaves for the backward pass.

    Attributes:
        lik: scaled likelihoods, at most 1 for contexts that the chain can enter; zero beyond a sequence's length.
        probs: filtered probabilities p(z_t | observations up to t).
        scale: normaliser of every step, `probs_t = predicted_t * lik_t / scale_t`.
        log_evidence: log p(observations), -inf where they are impossible.
        is_exact: False for sequences that scaled messages cannot carry.
    """

    lik: Float[Tensor, "B T K"]
    probs: Float[Tensor, "B T K"]
    scale: Float[Tensor, "B T"]
    log_evidence: Float[Tensor, " B"]
    is_exact: Bool[Tensor, " B"]


def scaled_likelihoods(
    initial: Float[Tensor, " K"],
    transition: Float[Tensor, "K K"],
    log_lik: Float[Tensor, "B T K"],
    lengths: Int[Tensor, " B"],
) -> tuple[Float[Tensor, "B T K"], Float[Tensor, " B"]]:
    """Take the largest log-likelihood among the enterable contexts out of every step.

    Returns:
        exp(log_lik - offset), and the sum of the offsets over each sequence.
    """
    can_enter = (transition > 0).any(0)
    offset = torch.where(can_enter, log_lik, -torch.inf).amax(-1)
    if log_lik.shape[1]:
        offset[:, 0] = torch.where(initial > 0, log_lik[:, 0], -torch.inf).amax(-1)
    steps = torch.arange(log_lik.shape[1], device=log_lik.device)
    is_inside = steps < lengths[:, None]
    offset = torch.where(is_inside & (offset != -torch.inf), offset, 0.0)
    # Contexts that cannot be entered may be far likelier than the rest; only derivatives at zero entries see them.
    lik = (log_lik - offset[..., None]).clamp(max=650.0).exp()
    return torch.where(is_inside[..., None], lik, 0.0), offset.sum(-1)
