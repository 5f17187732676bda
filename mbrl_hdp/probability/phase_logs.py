"""Messages over (context, phase) in logarithms, as compiled loops: for sequences that scaled messages cannot carry.

Contexts whose likelihoods differ by hundreds of nats a step underflow in `phase_kernels`. Here nothing does; a step
costs O(K^2 + S) as there, with a logarithm in place of every sum.
"""

from __future__ import annotations

from typing import no_type_check

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mbrl_hdp.compiling import compiled
from mbrl_hdp.probability.phase_kernels import PhaseArrays, PhaseDerivatives, PhaseParts
from mbrl_hdp.probability.scaling import LARGEST


def log_smooth(
    chain: PhaseArrays, log_lik: Float[Tensor, "B T K"], lengths: Int[Tensor, " B"], weights: Float[Tensor, " B"]
) -> tuple[Float[Tensor, " B"], PhaseDerivatives]:
    """Return the evidence, -inf where it is impossible, and the derivatives of `weights @ evidence`."""
    evidence, marginals = log_lik.new_zeros(len(log_lik)), torch.zeros_like(log_lik)
    by_state = torch.zeros(4, len(chain.parts.stay), dtype=torch.float64)
    by_moves = torch.zeros_like(chain.parts.moves)
    arrays = (
        *_logs(chain),
        log_lik.contiguous(),
        lengths,
        weights.contiguous(),
        marginals,
        evidence,
        by_state,
        by_moves,
    )
    _smooth_loops(*(value.numpy() for value in arrays), LARGEST)
    by_chain = PhaseParts(by_state[0], by_state[1], by_state[2], by_state[3], by_moves)
    return evidence, PhaseDerivatives(marginals, by_chain)


def log_filter(
    chain: PhaseArrays, log_lik: Float[Tensor, "B T K"], lengths: Int[Tensor, " B"]
) -> tuple[Float[Tensor, " B"], Float[Tensor, "B T K"], Float[Tensor, "B T K"]]:
    """Return evidence, filtered contexts and those of the next step before it is seen; zeros if impossible."""
    evidence = log_lik.new_zeros(len(log_lik))
    probs, following = torch.zeros_like(log_lik), torch.zeros_like(log_lik)
    arrays = (
        *_logs(chain),
        chain.parts.leave,
        chain.parts.moves,
        log_lik.contiguous(),
        lengths,
        probs,
        following,
        evidence,
    )
    _filter_loops(*(value.numpy() for value in arrays))
    return evidence, probs, following


def _logs(chain: PhaseArrays) -> tuple[Tensor, ...]:
    return *(value.log() for value in chain.parts), chain.first


@compiled()
@no_type_check
def _add(one, two):
    """Return log(e^one + e^two)."""
    if one < two:
        one, two = two, one
    return one if two == -np.inf else one + np.log1p(np.exp(two - one))


@compiled()
@no_type_check
def _total(values, factors):
    """Return log(sum_i e^(values_i + factors_i))."""
    largest = -np.inf
    for i in range(len(values)):
        largest = max(largest, values[i] + factors[i])
    if largest == -np.inf:
        return largest
    total = 0.0
    for i in range(len(values)):
        total += np.exp(values[i] + factors[i] - largest)
    return largest + np.log(total)


@compiled()
@no_type_check
def _forward(initial, stay, advance, leave, columns, first, log_lik, length, forward, out):
    """Fill the forward messages and what leaves every context; return the evidence."""
    num_contexts = len(first) - 1
    nothing = np.zeros(len(stay))
    for t in range(length):
        for k in range(num_contexts):
            entered = -np.inf if t == 0 else _total(out[t - 1], columns[k])
            for s in range(first[k], first[k + 1]):
                if t == 0:
                    predicted = initial[s]
                elif s == first[k]:
                    predicted = _add(forward[t - 1, s] + stay[s], entered)
                else:
                    predicted = _add(forward[t - 1, s] + stay[s], forward[t - 1, s - 1] + advance[s - 1])
                forward[t, s] = predicted + log_lik[t, k]
            out[t, k] = _total(forward[t, first[k] : first[k + 1]], leave[first[k] : first[k + 1]])
    return _total(forward[length - 1], nothing) if length > 0 else 0.0


@compiled()
@no_type_check
def _filter_loops(
    initial, stay, advance, leave, moves, first, left, moved, log_lik, lengths, probs, following, evidence
):
    num_contexts, num_steps = len(first) - 1, log_lik.shape[1]
    columns = np.ascontiguousarray(moves.T)
    forward, out = np.empty((num_steps, len(stay))), np.empty((num_steps, num_contexts))
    nothing = np.zeros(len(stay))
    for b in range(len(log_lik)):
        evidence[b] = _forward(initial, stay, advance, leave, columns, first, log_lik[b], lengths[b], forward, out)
        if evidence[b] == -np.inf:
            continue
        for t in range(lengths[b]):
            total = _total(forward[t], nothing)
            for k in range(num_contexts):
                inside, leaving = 0.0, 0.0
                for s in range(first[k], first[k + 1]):
                    now = np.exp(forward[t, s] - total)
                    inside += now
                    leaving += now * left[s]
                probs[b, t, k] = inside
                following[b, t, k] += inside - leaving
                for j in range(num_contexts):
                    following[b, t, j] += leaving * moved[k, j]


@compiled()
@no_type_check
def _smooth_loops(
    initial, stay, advance, leave, moves, first, log_lik, lengths, weights, marginals, evidence, by_state, by_moves,
    largest,
):  # fmt: skip
    num_contexts, num_steps, num_states = len(first) - 1, log_lik.shape[1], len(stay)
    columns = np.ascontiguousarray(moves.T)
    forward, out = np.empty((num_steps, num_states)), np.empty((num_steps, num_contexts))
    seen, message, entry = np.empty(num_states), np.empty(num_states), np.empty(num_contexts)
    for b in range(len(log_lik)):
        length, weight = lengths[b], weights[b]
        evidence[b] = _forward(initial, stay, advance, leave, columns, first, log_lik[b], length, forward, out)
        if evidence[b] == -np.inf:
            continue
        message[:] = -evidence[b]
        for t in range(length - 1, -1, -1):
            for k in range(num_contexts):
                for s in range(first[k], first[k + 1]):
                    marginals[b, t, k] += np.exp(forward[t, s] + message[s])
                    seen[s] = log_lik[b, t, k] + message[s]
                entry[k] = seen[first[k]]
            if t == 0:
                for s in range(num_states):
                    by_state[0, s] += weight * min(np.exp(seen[s]), largest)
                break
            for j in range(num_contexts):
                heard = _total(entry, moves[j])
                for k in range(num_contexts):
                    by_moves[j, k] += weight * min(np.exp(out[t - 1, j] + entry[k]), largest)
                for s in range(first[j], first[j + 1]):
                    now, is_last = forward[t - 1, s], s + 1 == first[j + 1]
                    message[s] = _add(stay[s] + seen[s], leave[s] + heard)
                    by_state[1, s] += weight * min(np.exp(now + seen[s]), largest)
                    by_state[3, s] += weight * min(np.exp(now + heard), largest)
                    if not is_last:
                        message[s] = _add(message[s], advance[s] + seen[s + 1])
                        by_state[2, s] += weight * min(np.exp(now + seen[s + 1]), largest)
