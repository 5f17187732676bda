"""Scaled messages as compiled loops for many contexts: here the arithmetic costs, not the calls.

The contexts of a sequence lie side by side in memory (`T B K`), as they do in the log-likelihoods and in the marginals,
so nothing is transposed and every row stays in the first cache while it is weighed, summed and scaled. The functions
take the arguments of their namesakes in `batched`, and agree with them to rounding; `Forward` holds views. Messages
have the dtype of the likelihoods: float64, or float32 where `single_kernels` is chosen.
"""

from __future__ import annotations

from typing import no_type_check

import numpy as np
import torch

from mbrl_hdp.compiling import compiled
from mbrl_hdp.probability.scaling import (
    LARGEST,
    NEGLIGIBLE_SINGLE,
    SMALLEST,
    Derivatives,
    Forward,
    Initial,
    Lengths,
    Lik,
    Offset,
    Transition,
    Weights,
    contexts_side_by_side,
)

by_step = contexts_side_by_side

# Steps whose pairs of contexts are counted by one matrix product.
_BLOCK = 4


def forward_pass(initial: Initial, transition: Transition, lik: Lik, offset: Offset, lengths: Lengths) -> Forward:
    """Filter; see `batched.forward_pass`."""
    rows = lik.permute(0, 2, 1).contiguous()
    num_steps, batch, _ = rows.shape
    probs, scale, lowest = torch.empty_like(rows), rows.new_empty(num_steps, batch), rows.new_ones(batch)
    can_enter = (transition > 0).any(0)
    # What is predicted is a mean of the chain's rows: it can only be tiny where one of their entries is.
    is_watched = not bool((transition[:, can_enter] >= 2.0 * SMALLEST).all())
    chain = (initial.to(rows.dtype), transition.to(rows.dtype), can_enter)
    arrays = (value.numpy() for value in (*chain, rows, lengths, probs, scale, lowest))
    _forward_loops(*arrays, is_watched, _limits(rows.dtype)[0])
    log_evidence = offset + scale.double().log().sum(0)
    is_exact = (lowest >= SMALLEST) & ~log_evidence.isnan()
    return Forward(rows.permute(0, 2, 1), probs.permute(0, 2, 1), scale, log_evidence, is_exact)


def backward_pass(
    transition: Transition, forward: Forward, lengths: Lengths, weights: Weights, dtype: torch.dtype
) -> Derivatives:
    """Smooth; see `batched.backward_pass`."""
    num_steps, num_contexts, batch = forward.probs.shape
    marginals = torch.empty(batch, num_steps, num_contexts, dtype=dtype)
    by_initial, by_transition = transition.new_zeros(num_contexts), torch.zeros_like(transition)
    lik, probs = (value.permute(0, 2, 1) for value in (forward.lik, forward.probs))
    columns = transition.T.to(lik.dtype, memory_format=torch.contiguous_format)
    inputs = (columns, lik, probs, forward.scale, lengths, weights.to(lik.dtype).contiguous())
    arrays = (value.numpy() for value in (*inputs, marginals, by_initial, by_transition))
    _backward_loops(*arrays, bool((weights != 1.0).any()), *_limits(lik.dtype), _BLOCK)
    return Derivatives(marginals, by_initial, by_transition)


def _limits(dtype: torch.dtype) -> tuple[np.floating, np.floating]:
    """Return what is set to zero below it, and where ratios are cut.

    These are arguments of the loops, because numba's cache would not notice a change of a constant in another file.
    """
    if dtype == torch.float64:
        return np.float64(0.0), np.float64(LARGEST)
    return np.float32(NEGLIGIBLE_SINGLE), np.finfo(np.float32).max


@compiled("reordered")
@no_type_check
def _forward_loops(initial, transition, can_enter, lik, lengths, probs, scale, lowest, is_watched, negligible):
    num_steps, batch, num_contexts = lik.shape
    zero, one = lik.dtype.type(0.0), lik.dtype.type(1.0)
    for t in range(num_steps):
        if t > 0:
            np.dot(probs[t - 1], transition, probs[t])
        for b in range(batch):
            row, weight, is_inside = probs[t, b], lik[t, b], t < lengths[b]
            if t == 0:
                row[:] = initial
            # After an impossible step nothing is left to lose.
            if (t == 0 or is_watched) and is_inside and (t == 0 or scale[t - 1, b] != 0.0):
                for k in range(num_contexts):
                    if (initial[k] > 0.0 if t == 0 else can_enter[k]) and not row[k] >= lowest[b]:
                        lowest[b] = row[k]
            total = zero
            for k in range(num_contexts):
                row[k] *= weight[k]
                total += row[k]
            scale[t, b] = total if is_inside else one
            factor = zero if total == zero else one / total
            for k in range(num_contexts):
                value = row[k] * factor
                row[k] = zero if value < negligible else value


@compiled()
@no_type_check
def _backward_loops(
    columns, lik, probs, scale, lengths, weights, marginals, by_initial, by_transition, is_weighted,
    negligible, largest, block,
):  # fmt: skip
    num_steps, batch, num_contexts = lik.shape
    dtype, one = lik.dtype, lik.dtype.type(1.0)
    backward, pairs = np.ones((batch, num_contexts), dtype), np.empty((num_contexts, num_contexts), dtype)
    ratios = np.empty((block, batch, num_contexts), dtype)
    end = num_steps
    for t in range(num_steps - 1, -1, -1):
        begin = max(1, end - block)
        ratio = ratios[max(t, begin) - begin] if t > 0 else ratios[0]
        for b in range(batch):
            message, row = backward[b], ratio[b]
            if t + 1 >= lengths[b]:
                message[:] = one
            _combine(probs[t, b], lik[t, b], message, one / scale[t, b], marginals[b, t], row, negligible, largest)
        if t > 0:
            np.dot(ratio, columns, backward)
        if is_weighted:
            for b in range(batch):
                ratio[b] *= weights[b]
        if t > 0 and t == begin:
            size = end - begin
            before = probs[begin - 1 : end - 1].reshape((size * batch, num_contexts))
            np.dot(before.T, ratios[:size].reshape((size * batch, num_contexts)), pairs)
            by_transition += pairs
            end = begin
    # After the first step the ratios are its weighted likelihood * backward message.
    for b in range(batch if num_steps > 0 else 0):
        by_initial += ratios[0, b]


@compiled()
@no_type_check
def _combine(probs, lik, backward, inverse, marginal, ratio, negligible, largest):
    zero = lik.dtype.type(0.0)
    for k in range(len(probs)):
        marginal[k] = probs[k] * backward[k]
        # In this order: a context that cannot be entered may have a likelihood that only a zero message tames.
        value = lik[k] * backward[k] * inverse
        value = largest if value > largest else value
        ratio[k] = zero if value < negligible else value
