"""Scaled messages as batched matrix products in torch: for devices other than the CPU, and to check `kernels`."""

from __future__ import annotations

import torch

from mbrl_hdp.probability import scaling
from mbrl_hdp.probability.scaling import Derivatives, Forward, Lengths, Transition

by_step = scaling.sequences_side_by_side


def forward_pass(
    initial: scaling.Initial, transition: Transition, lik: scaling.Lik, offset: scaling.Offset, lengths: Lengths
) -> Forward:
    """Filter: predict by the chain, weigh by the likelihood, normalise, at every step.

    Args:
        initial: p(first context).
        transition: p(next context | context).
        lik: scaled likelihoods, see `scaled_likelihoods`.
        offset: what the scaling took out of every sequence's log-evidence.
        lengths: number of steps of every sequence.
    """
    num_steps, _, batch = lik.shape
    probs = torch.empty_like(lik)
    scale = lik.new_ones(num_steps, batch)
    is_entered = (transition > 0).any(0)
    predicted = initial[:, None].expand(-1, batch)
    lowest = torch.where(initial > 0, initial, 1.0).amin().expand(batch)
    for t in range(num_steps):
        is_inside = t < lengths
        if t > 0:
            predicted = transition.T @ probs[t - 1]
            low = predicted[is_entered].amin(0) if is_entered.any() else torch.ones_like(lowest)
            # After an impossible step nothing is left to lose.
            lowest = torch.where(is_inside & (scale[t - 1] != 0), torch.minimum(lowest, low), lowest)
        joint = torch.mul(predicted, lik[t], out=probs[t])
        total = joint.sum(0)
        scale[t] = torch.where(is_inside, total, 1.0)
        joint /= torch.where(total == 0, 1.0, total)
    return Forward(lik, probs, scale, offset + scale.log().sum(0), lowest >= scaling.SMALLEST)


def backward_pass(
    transition: Transition, forward: Forward, lengths: Lengths, weights: scaling.Weights, dtype: torch.dtype
) -> Derivatives:
    """Smooth; sequences of length 0 contribute nothing. The marginals come in `dtype`."""
    marginals = forward.probs.clone()
    by_initial = transition.new_zeros(len(transition))
    by_transition = torch.zeros_like(transition)
    backward = marginals.new_ones(marginals.shape[1:])
    for t in range(len(marginals) - 1, -1, -1):
        marginals[t] *= backward
        ratio = (forward.lik[t] * backward).div_(forward.scale[t]).clamp_(max=scaling.LARGEST)
        if t == 0:
            by_initial = ratio @ weights
            break
        backward = torch.where(t < lengths, transition @ ratio, 1.0)
        by_transition.addmm_(forward.probs[t - 1], (ratio * weights).T)
    by_sequence = marginals.permute(2, 0, 1).to(dtype, memory_format=torch.contiguous_format)
    return Derivatives(by_sequence, by_initial, by_transition)
