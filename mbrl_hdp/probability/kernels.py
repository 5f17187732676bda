"""Scaled messages as compiled loops, for the CPU: small tensor calls would cost more than the arithmetic.

The sequences of a batch lie side by side in memory (`T K B`), so the innermost loops run over them and vectorise; the
products with the chain are matrix products of BLAS, called from within the compiled code. The functions take the
arguments of their namesakes in `batched`, and agree with them to rounding.
"""

from __future__ import annotations

from typing import no_type_check

import numpy as np
import torch

from mbrl_hdp.compiling import compiled
from mbrl_hdp.probability.scaling import (
    LARGEST,
    SMALLEST,
    Derivatives,
    Forward,
    Initial,
    Lengths,
    Lik,
    Offset,
    Transition,
    Weights,
    sequences_side_by_side,
)

by_step = sequences_side_by_side


def forward_pass(initial: Initial, transition: Transition, lik: Lik, offset: Offset, lengths: Lengths) -> Forward:
    """Filter; see `batched.forward_pass`."""
    num_steps, _, batch = lik.shape
    probs = torch.empty_like(lik)
    scale = lik.new_empty(num_steps, batch)
    lowest = lik.new_ones(batch)
    columns = transition.T.contiguous()
    inputs = (initial, columns, (transition > 0).any(0), lik, lengths)
    _forward_loops(*(value.numpy() for value in (*inputs, probs, scale, lowest)))
    return Forward(lik, probs, scale, offset + scale.log().sum(0), lowest >= SMALLEST)


def backward_pass(
    transition: Transition, forward: Forward, lengths: Lengths, weights: Weights, dtype: torch.dtype
) -> Derivatives:
    """Smooth; see `batched.backward_pass`."""
    num_steps, num_contexts, batch = forward.probs.shape
    marginals = torch.empty(batch, num_steps, num_contexts, dtype=dtype)
    by_initial = transition.new_zeros(len(transition))
    by_transition = torch.zeros_like(transition)
    inputs = (transition, forward.lik, forward.probs, forward.scale, lengths, weights.contiguous())
    arrays = (value.numpy() for value in (*inputs, marginals, by_initial, by_transition))
    # An argument, because numba's cache would not notice a change of a constant in another file.
    _backward_loops(*arrays, LARGEST)
    return Derivatives(marginals, by_initial, by_transition)


@compiled()
@no_type_check
def _forward_loops(initial, columns, can_enter, lik, lengths, probs, scale, lowest):
    num_steps, num_contexts, batch = lik.shape
    low, total = np.empty(batch), np.empty(batch)
    for t in range(num_steps):
        _fill(low, 1.0)
        _fill(total, 0.0)
        if t > 0:
            np.dot(columns, probs[t - 1], probs[t])
        for k in range(num_contexts):
            if t == 0:
                _fill(probs[t, k], initial[k])
            if initial[k] > 0.0 if t == 0 else can_enter[k]:
                _lower(low, probs[t, k])
            _weigh(probs[t, k], lik[t, k], total)
        _close_step(t, lengths, low, total, scale, lowest)
        for k in range(num_contexts):
            _scale(probs[t, k], total)


@compiled()
@no_type_check
def _fill(row, value):
    for b in range(len(row)):
        row[b] = value


@compiled()
@no_type_check
def _lower(low, row):
    for b in range(len(low)):
        # A NaN is taken over: its sequence then counts as not carried.
        low[b] = low[b] if low[b] <= row[b] else row[b]


@compiled()
@no_type_check
def _weigh(row, lik, total):
    for b in range(len(row)):
        row[b] *= lik[b]
        total[b] += row[b]


@compiled()
@no_type_check
def _close_step(t, lengths, low, total, scale, lowest):
    """Record the normaliser and the smallest prediction; turn the totals into factors."""
    for b in range(len(total)):
        is_inside = t < lengths[b]
        # After an impossible step nothing is left to lose.
        is_alive = is_inside and (t == 0 or scale[t - 1, b] != 0.0)
        if is_alive and not low[b] >= lowest[b]:
            lowest[b] = low[b]
        scale[t, b] = total[b] if is_inside else 1.0
        total[b] = 0.0 if total[b] == 0.0 else 1.0 / total[b]


@compiled()
@no_type_check
def _scale(row, factors):
    for b in range(len(row)):
        row[b] *= factors[b]


@compiled()
@no_type_check
def _backward_loops(transition, lik, probs, scale, lengths, weights, marginals, by_initial, by_transition, largest):
    num_steps, num_contexts, batch = lik.shape
    backward, ratio = np.empty((num_contexts, batch)), np.empty((num_contexts, batch))
    inverse, marginal = np.empty(batch), np.empty((num_contexts, batch))
    pairs = np.empty((num_contexts, num_contexts))
    for t in range(num_steps - 1, -1, -1):
        for b in range(batch):
            inverse[b] = 1.0 / scale[t, b]
        for k in range(num_contexts):
            _restart(backward[k], t + 1, lengths)
            _combine(probs[t, k], lik[t, k], backward[k], inverse, marginal[k], ratio[k], largest)
        _store(marginals, t, marginal)
        if t > 0:
            np.dot(transition, ratio, backward)
        for k in range(num_contexts):
            _scale(ratio[k], weights)
        if t > 0:
            np.dot(probs[t - 1], ratio.T, pairs)
            for k in range(num_contexts):
                _add(by_transition[k], pairs[k])
    # After the first step the ratios are its weighted likelihood * backward message.
    for k in range(num_contexts):
        for b in range(batch):
            by_initial[k] += ratio[k, b] if num_steps > 0 else 0.0


@compiled()
@no_type_check
def _add(row, values):
    for b in range(len(row)):
        row[b] += values[b]


@compiled()
@no_type_check
def _combine(probs, lik, backward, inverse, marginal, ratio, largest):
    for b in range(len(probs)):
        marginal[b] = probs[b] * backward[b]
        # In this order: a context that cannot be entered may have a likelihood that only a zero message tames.
        value = lik[b] * backward[b] * inverse[b]
        ratio[b] = largest if value > largest else value


@compiled()
@no_type_check
def _store(marginals, t, marginal):
    """Leave the layout of the passes: marginals[b, t, k] = marginal[k, b]."""
    for b in range(len(marginals)):
        row = marginals[b, t]
        for k in range(len(row)):
            row[k] = marginal[k, b]


@compiled()
@no_type_check
def _restart(backward, t, lengths):
    for b in range(len(backward)):
        backward[b] = backward[b] if t < lengths[b] else 1.0
