"""Scaled messages as compiled loops: for few contexts on the CPU, where tensor calls cost more than the arithmetic.

The sequences of a batch lie side by side in memory (`T K B`), so the innermost loops run over them and vectorise. The
functions take the arguments of their namesakes in `batched`, and agree with them to rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, no_type_check

import numba
import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mbrl_hdp.probability.scaling import LARGEST, SMALLEST, Derivatives, Forward

# Sequences worked on together: the arrays of one step, K * LANES numbers each, stay in the fastest cache.
LANES = 128


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile on first call; keep the machine code on disk where there is a place to write it.

    Sums may be reordered and multiplications fused; NaN and infinities keep their meaning.
    """
    options: dict[str, Any] = {"fastmath": {"reassoc", "contract", "nsz"}, "error_model": "numpy"}
    try:
        return numba.njit(cache=True, **options)(function)  # type: ignore[no-any-return]
    except RuntimeError:  # numba found no writable cache directory
        return numba.njit(**options)(function)  # type: ignore[no-any-return]


def forward_pass(
    initial: Float[Tensor, " K"],
    transition: Float[Tensor, "K K"],
    lik: Float[Tensor, "T K B"],
    offset: Float[Tensor, " B"],
    lengths: Int[Tensor, " B"],
) -> Forward:
    """Filter; see `batched.forward_pass`."""
    num_steps, _, batch = lik.shape
    probs = torch.empty_like(lik)
    scale = lik.new_empty(num_steps, batch)
    lowest = lik.new_ones(batch)
    arrays = (value.numpy() for value in (initial, transition, lik, lengths, probs, scale, lowest))
    _forward_loops(*arrays)
    return Forward(lik, probs, scale, offset + scale.log().sum(0), lowest >= SMALLEST)


def backward_pass(
    transition: Float[Tensor, "K K"], forward: Forward, lengths: Int[Tensor, " B"], weights: Float[Tensor, " B"]
) -> Derivatives:
    """Smooth; see `batched.backward_pass`."""
    marginals = torch.empty_like(forward.probs)
    by_initial = transition.new_zeros(len(transition))
    by_transition = torch.zeros_like(transition)
    inputs = (transition, forward.lik, forward.probs, forward.scale, lengths, weights.contiguous())
    _backward_loops(*(value.numpy() for value in (*inputs, marginals, by_initial, by_transition)))
    return Derivatives(marginals, by_initial, by_transition)


@compiled
@no_type_check
def _forward_loops(initial, transition, lik, lengths, probs, scale, lowest):
    num_steps, num_contexts, batch = lik.shape
    can_enter = np.zeros(num_contexts, dtype=np.bool_)
    for j in range(num_contexts):
        for k in range(num_contexts):
            can_enter[k] |= transition[j, k] > 0.0
    predicted = np.empty((num_contexts, LANES))
    low = np.empty(LANES)
    total = np.empty(LANES)
    for start in range(0, batch, LANES):
        width = min(LANES, batch - start)
        for t in range(num_steps):
            low[:] = 1.0
            for k in range(num_contexts):
                if t == 0:
                    predicted[k, :width] = initial[k]
                else:
                    _mix_into(predicted[k], probs[t - 1, :, start:], transition[:, k], width)
                if initial[k] > 0.0 if t == 0 else can_enter[k]:
                    for b in range(width):
                        low[b] = min(low[b], predicted[k, b])
            total[:] = 0.0
            for k in range(num_contexts):
                for b in range(width):
                    joint = predicted[k, b] * lik[t, k, start + b]
                    predicted[k, b] = joint
                    total[b] += joint
            for b in range(width):
                is_inside = t < lengths[start + b]
                # After an impossible step nothing is left to lose.
                is_alive = is_inside and (t == 0 or scale[t - 1, start + b] != 0.0)
                if is_alive and not low[b] >= lowest[start + b]:
                    lowest[start + b] = low[b]
                scale[t, start + b] = total[b] if is_inside else 1.0
                total[b] = 0.0 if total[b] == 0.0 else 1.0 / total[b]
            for k in range(num_contexts):
                for b in range(width):
                    probs[t, k, start + b] = predicted[k, b] * total[b]


@compiled
@no_type_check
def _mix_into(out, sources, factors, width):
    """Set out[b] = sum_j factors[j] * sources[j, b], four sources at a time to spare memory traffic."""
    num_sources = len(factors)
    whole = num_sources - num_sources % 4
    if whole == 0:
        out[:width] = 0.0
    for j in range(0, whole, 4):
        f0, f1, f2, f3 = factors[j], factors[j + 1], factors[j + 2], factors[j + 3]
        s0, s1, s2, s3 = sources[j], sources[j + 1], sources[j + 2], sources[j + 3]
        if j == 0:
            for b in range(width):
                out[b] = f0 * s0[b] + f1 * s1[b] + f2 * s2[b] + f3 * s3[b]
        else:
            for b in range(width):
                out[b] += f0 * s0[b] + f1 * s1[b] + f2 * s2[b] + f3 * s3[b]
    for j in range(whole, num_sources):
        factor, source = factors[j], sources[j]
        for b in range(width):
            out[b] += factor * source[b]


@compiled
@no_type_check
def _backward_loops(transition, lik, probs, scale, lengths, weights, marginals, by_initial, by_transition):
    num_steps, num_contexts, batch = lik.shape
    backward = np.empty((num_contexts, LANES))
    ratio = np.empty((num_contexts, LANES))
    for start in range(0, batch, LANES):
        width = min(LANES, batch - start)
        backward[:] = 1.0
        for t in range(num_steps - 1, -1, -1):
            for k in range(num_contexts):
                for b in range(width):
                    marginals[t, k, start + b] = probs[t, k, start + b] * backward[k, b]
                    value = lik[t, k, start + b] * backward[k, b] / scale[t, start + b]
                    ratio[k, b] = LARGEST if value > LARGEST else value
            if t > 0:
                for j in range(num_contexts):
                    _mix_into(backward[j], ratio, transition[j], width)
                    for b in range(width):
                        backward[j, b] = backward[j, b] if t < lengths[start + b] else 1.0
            for k in range(num_contexts):
                for b in range(width):
                    ratio[k, b] *= weights[start + b]
            if t > 0:
                _add_products(by_transition, probs[t - 1, :, start:], ratio, width)
            else:
                for k in range(num_contexts):
                    by_initial[k] += ratio[k, :width].sum()


@compiled
@no_type_check
def _add_products(out, left, right, width):
    """Add left @ right.T to out."""
    for j in range(len(out)):
        for k in range(len(out)):
            total = 0.0
            for b in range(width):
                total += left[j, b] * right[k, b]
            out[j, k] += total
