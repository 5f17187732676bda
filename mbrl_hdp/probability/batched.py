"""Scaled messages as batched matrix products: for many contexts, and for devices other than the CPU."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mbrl_hdp.probability.scaling import LARGEST, SMALLEST, Derivatives, Forward


def forward_pass(
    initial: Float[Tensor, " K"],
    transition: Float[Tensor, "K K"],
    lik: Float[Tensor, "B T K"],
    offset: Float[Tensor, " B"],
    lengths: Int[Tensor, " B"],
) -> Forward:
    """Filter: predict by the chain, weigh by the likelihood, normalise, at every step."""
    batch, num_steps, _ = lik.shape
    probs = torch.zeros_like(lik)
    scale = lik.new_ones(batch, num_steps)
    can_enter = (transition > 0).any(0)
    predicted = initial.expand(batch, -1)
    is_exact = ((predicted >= SMALLEST) | (initial == 0)).all(-1)
    for t in range(num_steps):
        is_inside = t < lengths
        if t > 0:
            predicted = probs[:, t - 1] @ transition
            is_carried = ((predicted >= SMALLEST) | ~can_enter).all(-1)
            is_exact &= is_carried | ~is_inside | (scale[:, t - 1] == 0)
        joint = predicted * lik[:, t]
        total = joint.sum(-1)
        scale[:, t] = torch.where(is_inside, total, 1.0)
        probs[:, t] = joint / torch.where(total == 0, 1.0, total)[:, None]
    return Forward(lik, probs, scale, offset + scale.log().sum(-1), is_exact)


def backward_pass(
    transition: Float[Tensor, "K K"], forward: Forward, lengths: Int[Tensor, " B"], weights: Float[Tensor, " B"]
) -> Derivatives:
    """Smooth; sequences of length 0 contribute nothing."""
    ratio = forward.lik / forward.scale[..., None]
    backward = torch.ones_like(ratio)
    for t in range(ratio.shape[1] - 1, -1, -1):
        # From here on ratio[:, t] is likelihood * backward message / scale.
        ratio[:, t] = (ratio[:, t] * backward[:, t]).clamp(max=LARGEST)
        if t > 0:
            is_inside = (t < lengths)[:, None]
            backward[:, t - 1] = torch.where(is_inside, ratio[:, t] @ transition.T, 1.0)
    marginals = forward.probs * backward
    by_initial = weights @ ratio[:, 0]
    weighted = forward.probs[:, :-1] * weights[:, None, None]
    by_transition = weighted.flatten(0, 1).T @ ratio[:, 1:].flatten(0, 1)
    return Derivatives(marginals, by_initial, by_transition)
