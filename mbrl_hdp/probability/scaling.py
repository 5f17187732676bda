"""How log-likelihoods become numbers that scaled messages can carry, and what the message passes hand on.

A scaled pass works with probabilities in float64, normalised at every step. It is exact as long as every context that
the chain can enter is predicted with at least `SMALLEST`: what underflows is then smaller than the rest by a factor
that no later step can make up for. Sequences that break this (transition entries that are zero or tinier than
`SMALLEST`, together with sharp likelihoods) are flagged and left to `exact`.

With many contexts, float32 log-likelihoods and no chain entry below f = `SMALLEST_SINGLE`, probabilities are float32.
Every context is then predicted with at least f, so a normaliser is at least f, a backward message at most 1/f and a
ratio (likelihood * backward message / normaliser) at most 1/f, and the largest ratio at least 1. Probabilities and
ratios below `NEGLIGIBLE_SINGLE` are set to zero: they change no prediction and no backward message by more than
`NEGLIGIBLE_SINGLE` / f of it, far below rounding. Products of what is left are no subnormal numbers, which are slow.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Initial = Float[Tensor, " K"]
Transition = Float[Tensor, "K K"]
Lik = Float[Tensor, "T K B"]  # scaled likelihoods, sequences side by side
Offset = Float[Tensor, " B"]
Lengths = Int[Tensor, " B"]
Weights = Float[Tensor, " B"]

SMALLEST = 1e-140
LARGEST = 1e290
SMALLEST_SINGLE = 1e-9
NEGLIGIBLE_SINGLE = 2e-19
# A context that the chain cannot enter (zero initial probability, zero column) may be far likelier than those it can.
# Only the derivatives by those zeros see it; it counts as at most e^650 times likelier than the best of the rest.
LARGEST_LOG_RATIO = 650.0


class Derivatives(NamedTuple):
    """Derivatives of `weights @ log_evidence` by Fisher's identity.

    Attributes:
        marginals: p(z_t | all observations) of every sequence, unweighted, in the dtype of the log-likelihoods; zero
            beyond its length. It is the derivative of each sequence's evidence by its own log-likelihoods.
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

    lik: Float[Tensor, "T K B"]
    probs: Float[Tensor, "T K B"]
    scale: Float[Tensor, "T B"]
    log_evidence: Float[Tensor, " B"]
    is_exact: Bool[Tensor, " B"]

    def leave_out(self, rows: Bool[Tensor, " B"]) -> None:
        """Exclude sequences from the backward pass, in place."""
        self.lik[..., rows] = 0.0
        self.probs[..., rows] = 0.0
        self.scale[:, rows] = 1.0


def sequences_side_by_side(log_lik: Float[Tensor, "B T K"]) -> Float[Tensor, "T K B"]:
    """Copy to float64 and to the layout of message passes whose inner loops run over sequences."""
    return log_lik.permute(1, 2, 0).to(torch.float64, memory_format=torch.contiguous_format, copy=True)


def contexts_side_by_side(log_lik: Float[Tensor, "B T K"]) -> Float[Tensor, "T K B"]:
    """Copy to float64 for message passes whose inner loops run over contexts: a view of `T B K`."""
    return log_lik.transpose(0, 1).to(torch.float64, memory_format=torch.contiguous_format, copy=True).transpose(1, 2)


def single_contexts_side_by_side(log_lik: Float[Tensor, "B T K"]) -> Float[Tensor, "T K B"]:
    """Copy float32 as it is, in the order of `contexts_side_by_side`."""
    return log_lik.transpose(0, 1).clone(memory_format=torch.contiguous_format).transpose(1, 2)


def scaled_likelihoods(
    initial: Float[Tensor, " K"],
    transition: Float[Tensor, "K K"],
    log_lik: Float[Tensor, "B T K"],
    lengths: Int[Tensor, " B"],
    by_step: Callable[[Tensor], Tensor] = sequences_side_by_side,
) -> tuple[Float[Tensor, "T K B"], Float[Tensor, " B"]]:
    """Subtract the largest log-likelihood among the enterable contexts from every step.

    Args:
        initial: p(first context).
        transition: p(next context | context).
        log_lik: log-likelihoods.
        lengths: number of steps of every sequence.
        by_step: copies the log-likelihoods to the dtype of an engine and to `T K B`, in the order in memory that it
            likes.

    Returns:
        exp(log_lik - offset) in the layout of the message passes, and the sum of the offsets over each sequence, in
        float64.
    """
    lik = by_step(log_lik)
    if not len(lik):
        return lik, lik.new_zeros(lik.shape[-1], dtype=torch.float64)
    can_enter = (transition > 0).any(0)
    offset = _largest(lik, can_enter)
    offset[0] = _largest(lik[:1], initial > 0)[0]
    is_ragged = bool((lengths < len(lik)).any())
    is_inside = torch.arange(len(lik), device=lik.device)[:, None] < lengths if is_ragged else True
    offset = torch.where((offset != -torch.inf) & is_inside, offset, 0.0)
    lik -= offset[:, None]
    if not can_enter.all() or not (initial > 0).all():
        lik.clamp_(max=LARGEST_LOG_RATIO)
    _exponentiate(lik)
    if isinstance(is_inside, Tensor):
        lik = torch.where(is_inside[:, None], lik, 0.0)
    return lik, offset.sum(0, dtype=torch.float64)


def _exponentiate(values: Float[Tensor, "t K B"]) -> None:
    """Replace values by their exponential; float32 ones that would be subnormal by zero, as these are slow."""
    if values.dtype != torch.float32:
        values.exp_()
        return
    lowest = -87.0
    torch.threshold_(values.clamp_(min=lowest).exp_(), 1.01 * math.exp(lowest), 0.0)


def _largest(log_lik: Float[Tensor, "t K B"], among: Bool[Tensor, " K"]) -> Float[Tensor, "t B"]:
    if among.all():
        return log_lik.amax(1)
    return torch.where(among[:, None], log_lik, -torch.inf).amax(1)
