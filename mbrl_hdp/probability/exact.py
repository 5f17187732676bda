"""The messages in the full log domain: slow, exact in every regime, on any device.

The fast paths (`kernels`, `batched`) hand over to it the sequences whose scaled messages would underflow, and the
tests compare against it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mbrl_hdp.probability.scaling import LARGEST, Derivatives


class LogMessages(NamedTuple):
    """The two passes over a batch of sequences, in logarithms.

    Attributes:
        forward: log m_f(z_t) = log p(z_t, observations up to t); -inf beyond a sequence's length.
        backward: log p(observations after t | z_t); 0 at and beyond a sequence's last step.
        log_evidence: log p(all observations).
    """

    forward: Float[Tensor, "B T K"]
    backward: Float[Tensor, "B T K"]
    log_evidence: Float[Tensor, " B"]


def log_messages(
    initial: Float[Tensor, " K"],
    transition: Float[Tensor, "K K"],
    log_lik: Float[Tensor, "B T K"],
    lengths: Int[Tensor, " B"],
) -> LogMessages:
    """Run both passes with a log-sum-exp over every pair of contexts (paper, appendix on variational inference)."""
    log_initial, log_transition = initial.log(), transition.log()
    num_steps = log_lik.shape[1]
    forward = torch.full_like(log_lik, -torch.inf)
    evidence = log_lik.new_zeros(log_lik.shape[0])
    for t in range(num_steps):
        if t == 0:
            predicted = log_initial.expand_as(log_lik[:, 0])
        else:
            predicted = (forward[:, t - 1, :, None] + log_transition).logsumexp(-2)
        is_inside = (t < lengths)[:, None]
        forward[:, t] = torch.where(is_inside, predicted + log_lik[:, t], -torch.inf)
        evidence = torch.where(lengths == t + 1, forward[:, t].logsumexp(-1), evidence)
    return LogMessages(forward, _log_backward(log_transition, log_lik, lengths), evidence)


def _log_backward(
    log_transition: Float[Tensor, "K K"], log_lik: Float[Tensor, "B T K"], lengths: Int[Tensor, " B"]
) -> Float[Tensor, "B T K"]:
    backward = torch.zeros_like(log_lik)
    for t in range(log_lik.shape[1] - 2, -1, -1):
        seen = log_lik[:, t + 1] + backward[:, t + 1]
        is_inside = (t + 1 < lengths)[:, None]
        backward[:, t] = torch.where(is_inside, (log_transition + seen[:, None, :]).logsumexp(-1), 0.0)
    return backward


def exact_derivatives(
    initial: Float[Tensor, " K"],
    transition: Float[Tensor, "K K"],
    log_lik: Float[Tensor, "B T K"],
    lengths: Int[Tensor, " B"],
    weights: Float[Tensor, " B"],
) -> Derivatives:
    """Return the derivatives of `weights @ log_evidence`; impossible sequences (evidence -inf) contribute nothing."""
    messages = log_messages(initial, transition, log_lik, lengths)
    is_possible = messages.log_evidence != -torch.inf
    log_evidence = torch.where(is_possible, messages.log_evidence, 0.0)[:, None]
    steps = torch.arange(log_lik.shape[1], device=log_lik.device)
    is_inside = ((steps < lengths[:, None]) & is_possible[:, None])[..., None]
    marginals = torch.where(is_inside, (messages.forward + messages.backward - log_evidence[..., None]).exp(), 0.0)
    seen = torch.where(is_inside, log_lik + messages.backward - log_evidence[..., None], -torch.inf)
    by_initial = weights @ seen[:, 0].exp().clamp(max=LARGEST)
    by_transition = torch.zeros_like(transition)
    for t in range(log_lik.shape[1] - 1):
        pairs = messages.forward[:, t, :, None] + seen[:, t + 1, None, :]
        by_transition += torch.einsum("b,bjk->jk", weights, pairs.exp().clamp(max=LARGEST))
    return Derivatives(marginals, by_initial, by_transition)
