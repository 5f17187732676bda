"""Exact inference over hidden contexts: evidence, filter, smoother, most likely path.

Tensors in, tensors out. A batch of B sequences, padded to T steps, enters as `log_lik[b, t, k]`, the log-likelihood of
step t in context k. The first acting context is drawn from `chain.initial`. In all functions

- sums run in float64 whatever comes in (with more than 60 contexts, float32 `log_lik` and no tiny entries in the chain
  those over contexts run in float32); results have `log_lik`'s dtype and device, gradients those of their tensor;
- `log_lik` may hold -inf (a masked context, an impossible observation); a step of zeros carries no information;
- rows of the chain may sum to less than one (masked contexts): the evidence is then that of the surviving paths;
- whatever lies beyond a sequence's length is ignored, NaN included; results are zero there (-1 for paths);
- a sequence that no path explains has evidence -inf, zero probabilities and zero gradients.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from mbrl_hdp.probability.passes import MessagePass, message_inputs
from mbrl_hdp.types import ContextChain


class Filtered(NamedTuple):
    """Result of `filter_contexts`.

    Attributes:
        probs: p(z_t | observations up to t).
        log_evidence: log p(observations) of every sequence.
    """

    probs: Float[Tensor, "B T K"]
    log_evidence: Float[Tensor, " B"]


class Smoothed(NamedTuple):
    """Result of `smooth`.

    Attributes:
        marginals: p(z_t | all observations).
        expected_initial: expected number of sequences that begin in each context.
        expected_transitions: expected number of moves from context j to context k, over all sequences and steps.
        log_evidence: log p(observations) of every sequence, differentiable as that of `log_evidence`.
    """

    marginals: Float[Tensor, "B T K"]
    expected_initial: Float[Tensor, " K"]
    expected_transitions: Float[Tensor, "K K"]
    log_evidence: Float[Tensor, " B"]


def log_evidence(
    chain: ContextChain, log_lik: Float[Tensor, "B T K"], lengths: Int[Tensor, " B"] | None = None
) -> Float[Tensor, " B"]:
    """Return log p(observations), all context paths summed out; differentiable in the chain and in `log_lik`.

    log sum_z initial[z_0] lik[0, z_0] prod_t transition[z_{t-1}, z_t] lik[t, z_t]

    The gradient is Fisher's identity, computed by one backward pass of the messages: by `log_lik` it is the smoothed
    marginal, by an entry of the chain forward * likelihood * backward message, exact at zero entries (there it may
    exceed the dtype's range and is cut to its largest number).

    Example:
        >>> chain = ContextChain(torch.tensor([0.5, 0.5]), torch.tensor([[0.9, 0.1], [0.2, 0.8]]))
        >>> log_evidence(chain, torch.zeros(1, 3, 2))
        tensor([0.])
    """
    return _attach(chain, log_lik, MessagePass(message_inputs(chain, log_lik, lengths)))


def smooth(chain: ContextChain, log_lik: Float[Tensor, "B T K"], lengths: Int[Tensor, " B"] | None = None) -> Smoothed:
    """Return the smoothed marginals, the expected counts and the evidence; only the evidence has a gradient.

    The two passes run at once; `backward` then only scales what is there, if every sequence has the same weight in
    the loss (it repeats the backward pass if not).
    """
    messages = MessagePass(message_inputs(chain, log_lik, lengths))
    initial, transition, _, _ = messages.inputs
    unit = messages.unit_derivatives
    # Expected count = probability * derivative by that probability.
    counts = ((initial * unit.by_initial).to(log_lik.dtype), (transition * unit.by_transition).to(log_lik.dtype))
    return Smoothed(unit.marginals, *counts, _attach(chain, log_lik, messages))


def filter_contexts(
    chain: ContextChain, log_lik: Float[Tensor, "B T K"], lengths: Int[Tensor, " B"] | None = None
) -> Filtered:
    """Return p(z_t | observations up to t) and the evidence; no gradient."""
    forward = MessagePass(message_inputs(chain, log_lik, lengths)).forward
    probs = forward.probs.permute(2, 0, 1).to(log_lik.dtype, memory_format=torch.contiguous_format)
    return Filtered(probs, forward.log_evidence.to(log_lik.dtype))


@torch.no_grad()
def viterbi(
    chain: ContextChain, log_lik: Float[Tensor, "B T K"], lengths: Int[Tensor, " B"] | None = None
) -> Int[Tensor, "B T"]:
    """Return the most likely context path of every sequence, -1 beyond its length.

    Ties go to the lower index. For a sequence that no path explains the path is arbitrary.
    """
    initial, transition, log_lik, lengths = message_inputs(chain, log_lik, lengths)
    log_lik, log_transition = log_lik.double(), transition.log()
    batch, num_steps, num_contexts = log_lik.shape
    came_from = torch.arange(num_contexts, device=log_lik.device).repeat(batch, num_steps, 1)
    best = initial.log() + log_lik[:, 0] if num_steps else log_lik.new_zeros(batch, num_contexts)
    for t in range(1, num_steps):
        is_inside = (t < lengths)[:, None]
        score, origin = (best[:, :, None] + log_transition).max(1)
        best = torch.where(is_inside, score + log_lik[:, t], best)
        came_from[:, t] = torch.where(is_inside, origin, came_from[:, t])
    path = torch.full((batch, num_steps), -1, device=log_lik.device)
    context = best.argmax(-1)
    for t in range(num_steps - 1, -1, -1):
        path[:, t] = torch.where(t < lengths, context, -1)
        context = came_from[:, t].gather(1, context[:, None])[:, 0]
    return path


def _attach(chain: ContextChain, log_lik: Float[Tensor, "B T K"], messages: MessagePass) -> Float[Tensor, " B"]:
    evidence: Tensor = _FisherGradient.apply(chain.initial, chain.transition, log_lik, messages)
    return evidence


class _FisherGradient(torch.autograd.Function):
    """The evidence of a finished forward pass, with its gradient by Fisher's identity."""

    @staticmethod
    def forward(ctx: Any, initial: Tensor, transition: Tensor, log_lik: Tensor, messages: MessagePass) -> Tensor:
        """Return the log evidence that the forward pass found."""
        ctx.messages = messages
        ctx.dtypes = initial.dtype, transition.dtype, log_lik.dtype
        ctx.devices = initial.device, transition.device
        # A copy: the result refers to `messages`, which must not refer back to it.
        return messages.forward.log_evidence.to(log_lik.dtype, copy=True)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, weights: Tensor) -> tuple[Tensor | None, ...]:
        """Return the expected counts over the probabilities, and the marginals, weighted by episode."""
        weights = weights.to(torch.float64)
        derivatives = ctx.messages.weighted_derivatives(weights)
        by_initial = cut_to_range(derivatives.by_initial, ctx.dtypes[0]).to(ctx.devices[0])
        by_transition = cut_to_range(derivatives.by_transition, ctx.dtypes[1]).to(ctx.devices[1])
        return by_initial, by_transition, derivatives.marginals, None


def cut_to_range(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Keep within the dtype's range: a zero entry's gradient may be huge, and inf times a mask's 0 would be NaN."""
    largest = torch.finfo(dtype).max
    return values.clamp(-largest, largest).to(dtype)
