"""Messages over (context, phase) as compiled loops: a step costs O(K^2 + S), not O(S^2).

Moves between contexts leave from any phase and enter at first phases only, so they are one K by K product of what
leaves each context; inside a context a phase hears of itself and of the phase before. A block of sequences is carried
through the forward and the backward pass before the next one, so that its messages stay in the cache.

Messages of a step are kept before they are normalised; the factor goes into the likelihoods of the next step, where
there are K of them instead of S.
"""

from __future__ import annotations

from typing import NamedTuple, no_type_check

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mbrl_hdp.compiling import compiled
from mbrl_hdp.probability.scaling import LARGEST, SMALLEST

WIDTH = 64


class PhaseArrays(NamedTuple):
    """A phase chain as the loops take it: float64, contiguous, on the CPU.

    Attributes:
        first: first state of every context, and the number of states at the end.
    """

    initial: Float[Tensor, " S"]
    stay: Float[Tensor, " S"]
    advance: Float[Tensor, " S"]
    leave: Float[Tensor, " S"]
    moves: Float[Tensor, "K K"]
    first: Int[Tensor, " K1"]


class PhaseForward(NamedTuple):
    """Result of the forward pass.

    Attributes:
        probs: filtered probabilities of contexts.
        following: probabilities of the context of the next step, before it is seen.
        scale: normaliser of every step; 1 beyond a sequence's length.
        is_exact: False for sequences that scaled messages cannot carry.
    """

    probs: Float[Tensor, "B T K"]
    following: Float[Tensor, "B T K"]
    scale: Float[Tensor, "T B"]
    is_exact: Tensor


class PhaseDerivatives(NamedTuple):
    """Derivatives of `weights @ log_evidence` by the chain, and the smoothed contexts (unweighted)."""

    marginals: Float[Tensor, "B T K"]
    by_initial: Float[Tensor, " S"]
    by_stay: Float[Tensor, " S"]
    by_advance: Float[Tensor, " S"]
    by_leave: Float[Tensor, " S"]
    by_moves: Float[Tensor, "K K"]


def filter_pass(
    chain: PhaseArrays, lik: Float[Tensor, "T K B"], lengths: Int[Tensor, " B"], dtype: torch.dtype
) -> PhaseForward:
    """Filter; likelihoods as `scaling.scaled_likelihoods` makes them."""
    num_steps, num_contexts, batch = lik.shape
    probs, following = (torch.zeros(batch, num_steps, num_contexts, dtype=dtype) for _ in range(2))
    scale, lowest = lik.new_ones(num_steps, batch), lik.new_ones(batch)
    arrays = (*chain, lik, lengths, probs, following, scale, lowest)
    _filter_loops(*(value.numpy() for value in arrays))
    return PhaseForward(probs, following, scale, lowest >= SMALLEST)


def smooth_pass(
    chain: PhaseArrays,
    lik: Float[Tensor, "T K B"],
    lengths: Int[Tensor, " B"],
    weights: Float[Tensor, " B"],
    dtype: torch.dtype,
) -> tuple[Float[Tensor, "T B"], Tensor, PhaseDerivatives]:
    """Run both passes; return normalisers, which sequences are exact, and the derivatives of those."""
    num_steps, num_contexts, batch = lik.shape
    marginals = torch.zeros(batch, num_steps, num_contexts, dtype=dtype)
    scale, lowest = lik.new_ones(num_steps, batch), lik.new_ones(batch)
    by_state = torch.zeros(4, len(chain.stay), dtype=torch.float64)
    by_moves = torch.zeros_like(chain.moves)
    arrays = (*chain, lik, lengths, weights.contiguous(), marginals, scale, lowest, by_state, by_moves)
    # Arguments, because numba's cache would not notice a change of a constant in another file.
    _smooth_loops(*(value.numpy() for value in arrays), SMALLEST, LARGEST)
    by_state[2, chain.first[1:] - 1] = 0.0  # there is no phase after the last
    found = PhaseDerivatives(marginals, by_state[0], by_state[1], by_state[2], by_state[3], by_moves)
    return scale, lowest >= SMALLEST, found


@compiled()
@no_type_check
def _filter_loops(initial, stay, advance, leave, moves, first, lik, lengths, probs, following, scale, lowest):
    num_steps, num_contexts, batch = lik.shape
    chain = (initial, stay, advance, leave, first)
    columns = np.ascontiguousarray(moves.T)
    states = np.zeros((2, len(stay), WIDTH))
    flow = np.zeros((2, num_contexts, WIDTH))
    inside = np.zeros((num_contexts, WIDTH))
    factor = np.ones(WIDTH)
    for start in range(0, batch, WIDTH):
        width = min(WIDTH, batch - start)
        factor[:] = 1.0
        for t in range(num_steps):
            before, after = states[(t + 1) % 2], states[t % 2]
            _step(t, chain, before, after, flow, inside, lik[t], start, width, factor, lowest, lengths)
            _close(t, inside, start, width, factor, scale, lengths)
            np.dot(columns, flow[0], flow[1])
            for w in range(width):
                for k in range(num_contexts):
                    now = inside[k, w] * factor[w]
                    probs[start + w, t, k] = now
                    # What was left goes out, what is entered comes in; rounding must not make it negative.
                    following[start + w, t, k] = max(now + (flow[1, k, w] - flow[0, k, w]) * factor[w], 0.0)


@compiled()
@no_type_check
def _step(t, chain, before, after, flow, inside, lik, start, width, factor, lowest, lengths):
    """Move one step along the chain and weigh by the likelihoods; not normalised."""
    initial, stay, advance, leave, first = chain
    gain = np.empty(WIDTH)
    for k in range(len(first) - 1):
        begin, end = first[k], first[k + 1]
        total, out, entered = inside[k], flow[0, k], flow[1, k]
        for w in range(width):
            gain[w] = lik[k, start + w] * factor[w]
            total[w] = 0.0
            # What enters is the least that is known about the context; see `semi_markov`.
            is_alive = 0 < t < lengths[start + w] and factor[w] != 0.0
            if is_alive and not entered[w] * factor[w] >= lowest[start + w]:
                lowest[start + w] = entered[w] * factor[w]
            out[w] = 0.0
        for s in range(begin, end):
            row = after[s]
            if t == 0:
                for w in range(width):
                    row[w] = initial[s] * gain[w]
            elif s == begin:
                for w in range(width):
                    row[w] = (stay[s] * before[s, w] + entered[w]) * gain[w]
            else:
                for w in range(width):
                    row[w] = (stay[s] * before[s, w] + advance[s - 1] * before[s - 1, w]) * gain[w]
            for w in range(width):
                total[w] += row[w]
                out[w] += leave[s] * row[w]


@compiled()
@no_type_check
def _close(t, inside, start, width, factor, scale, lengths):
    """Record the normaliser of a step and make it the factor of the next."""
    for w in range(width):
        total = 0.0
        for k in range(len(inside)):
            total += inside[k, w]
        scale[t, start + w] = total if t < lengths[start + w] else 1.0
        factor[w] = 0.0 if total == 0.0 else 1.0 / total


@compiled()
@no_type_check
def _smooth_loops(
    initial,
    stay,
    advance,
    leave,
    moves,
    first,
    lik,
    lengths,
    weights,
    marginals,
    scale,
    lowest,
    by_state,
    by_moves,
    smallest,
    largest,
):
    num_steps, num_contexts, batch = lik.shape
    chain = (initial, stay, advance, leave, first)
    columns = np.ascontiguousarray(moves.T)
    states = np.zeros((num_steps, len(stay), WIDTH))
    flow = np.zeros((2, num_contexts, WIDTH))
    inside = np.zeros((num_contexts, WIDTH))
    factors = np.ones((num_steps + 1, WIDTH))
    sums = np.zeros((4, len(stay), WIDTH))
    work = (np.zeros((len(stay) + 1, WIDTH)), np.zeros((len(stay), WIDTH)), np.zeros((4, num_contexts, WIDTH)))
    for start in range(0, batch, WIDTH):
        width = min(WIDTH, batch - start)
        for t in range(num_steps):
            factors[t + 1] = factors[t]
            _step(t, chain, states[max(t - 1, 0)], states[t], flow, inside, lik[t], start, width, factors[t + 1],
                  lowest, lengths)  # fmt: skip
            _close(t, inside, start, width, factors[t + 1], scale, lengths)
            np.dot(columns, flow[0], flow[1])
        _leave_out(states, factors, start, width, lowest, smallest)
        _backward(chain, moves, states, factors, lik, lengths, weights, marginals, start, width, work, sums, by_moves,
                  largest)  # fmt: skip
    for place in range(4):
        for s in range(len(stay)):
            by_state[place, s] = sums[place, s].sum()


@compiled()
@no_type_check
def _leave_out(states, factors, start, width, lowest, smallest):
    """Remove the sequences that scaled messages cannot carry, and what an earlier block left beside a narrow one."""
    for w in range(WIDTH):
        if w >= width or not lowest[start + w] >= smallest:
            states[:, :, w] = 0.0
            factors[1:, w] = 0.0


@compiled()
@no_type_check
def _backward(
    chain, moves, states, factors, lik, lengths, weights, marginals, start, width, work, sums, by_moves, largest
):
    _, stay, advance, leave, first = chain
    ratio, message, small = work
    entry, heard, out, marginal = small[0], small[1], small[2], small[3]
    num_steps, num_contexts = lik.shape[:2]
    pairs = np.empty((num_contexts, num_contexts))
    earlier = np.zeros(WIDTH)
    for t in range(num_steps - 1, -1, -1):
        _restart(message, t + 1, lengths, start, width)
        for k in range(num_contexts):
            marginal[k] = 0.0
            for s in range(first[k], first[k + 1]):
                for w in range(width):
                    marginal[k, w] += states[t, s, w] * message[s, w]
                    value = lik[t, k, start + w] * message[s, w] * factors[t + 1, w]
                    ratio[s, w] = largest if value > largest else value
            entry[k] = ratio[first[k]]
            for w in range(width):
                marginals[start + w, t, k] = marginal[k, w] * factors[t + 1, w]
        if t == 0:
            break
        np.dot(moves, entry, heard)
        for w in range(width):
            earlier[w] = factors[t, w] * weights[start + w]
        for k in range(num_contexts):
            out[k] = 0.0
            for s in range(first[k], first[k + 1]):
                for w in range(width):
                    now = states[t - 1, s, w] * earlier[w]
                    sums[1, s, w] += now * ratio[s, w]
                    sums[2, s, w] += now * ratio[s + 1, w]
                    sums[3, s, w] += now * heard[k, w]
                    out[k, w] += now * leave[s]
                    message[s, w] = stay[s] * ratio[s, w] + advance[s] * ratio[s + 1, w] + leave[s] * heard[k, w]
        np.dot(out, entry.T, pairs)
        by_moves += pairs
    for s in range(len(stay)):
        for w in range(width):
            sums[0, s, w] += ratio[s, w] * weights[start + w] if num_steps > 0 else 0.0


@compiled()
@no_type_check
def _restart(message, t, lengths, start, width):
    """Begin with ones at the last step of every sequence."""
    for w in range(width):
        if t >= lengths[start + w]:
            message[:, w] = 1.0


@compiled()
@no_type_check
def most_likely_paths(initial, stay, advance, leave, moves, first, log_lik, lengths, paths):
    """Fill `paths` with the contexts of the most likely path of states (Viterbi); all but lik in logarithms."""
    batch, num_steps, num_contexts = log_lik.shape
    num_states = len(stay)
    origin = np.zeros((num_steps, num_states), np.int64)
    best, score = np.empty(num_states), np.empty(num_states)
    exit_score, exit_state = np.empty(num_contexts), np.zeros(num_contexts, np.int64)
    context = np.zeros(num_states, np.int64)
    for k in range(num_contexts):
        context[first[k] : first[k + 1]] = k
    for b in range(batch):
        for t in range(lengths[b]):
            for k in range(num_contexts if t > 0 else 0):
                exit_state[k] = first[k] + np.argmax(best[first[k] : first[k + 1]] + leave[first[k] : first[k + 1]])
                exit_score[k] = best[exit_state[k]] + leave[exit_state[k]]
            for s in range(num_states):
                k = context[s]
                if t == 0:
                    score[s] = initial[s]
                else:
                    score[s], origin[t, s] = best[s] + stay[s], s
                    if s > first[k] and best[s - 1] + advance[s - 1] > score[s]:
                        score[s], origin[t, s] = best[s - 1] + advance[s - 1], s - 1
                    for j in range(num_contexts if s == first[k] else 0):
                        if exit_score[j] + moves[j, k] > score[s]:
                            score[s], origin[t, s] = exit_score[j] + moves[j, k], exit_state[j]
                score[s] += log_lik[b, t, k]
            best[:] = score
        state = np.argmax(best)
        for t in range(lengths[b] - 1, -1, -1):
            paths[b, t] = context[state]
            state = origin[t, state]


@compiled()
@no_type_check
def survival_loops(stay, advance, survival):
    """Fill in the probability that a stay which begins in the first phase lasts longer than n steps."""
    inside = np.zeros(len(stay))
    inside[0] = 1.0
    for n in range(len(survival)):
        survival[n] = inside.sum()
        for s in range(len(stay) - 1, -1, -1):
            inside[s] = stay[s] * inside[s] + (advance[s - 1] * inside[s - 1] if s > 0 else 0.0)
