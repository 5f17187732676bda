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

# Sequences of a block: wider ones leave the cache, narrower ones do not fill a loop.
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
    width = _block_width(batch)
    columns = np.ascontiguousarray(moves.T)
    states = np.zeros((2, len(stay), width))
    flow, inside = np.zeros((2, num_contexts, width)), np.zeros((num_contexts, width))
    for start in range(0, batch, width):
        number = min(width, batch - start)
        seen, lasting = _block(lik, lengths, start, number, width)
        factor, low, total = np.ones(width), np.ones(width), np.zeros(width)
        for t in range(num_steps):
            before, after = states[(t + 1) % 2], states[t % 2]
            _step(t, initial, stay, advance, leave, first, before, after, flow, inside, seen[t], factor, low, lasting)
            _close(t, inside, total, factor, lasting)
            np.dot(columns, flow[0], flow[1])
            for w in range(number):
                scale[t, start + w] = total[w]
                for k in range(num_contexts):
                    now = inside[k, w] * factor[w]
                    probs[start + w, t, k] = now
                    # What was left goes out, what is entered comes in; rounding must not make it negative.
                    following[start + w, t, k] = max(now + (flow[1, k, w] - flow[0, k, w]) * factor[w], 0.0)
        lowest[start : start + number] = low[:number]


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
    width = _block_width(batch)
    columns = np.ascontiguousarray(moves.T)
    states = np.zeros((num_steps, len(stay), width))
    flow, inside = np.zeros((2, num_contexts, width)), np.zeros((num_contexts, width))
    factors, sums = np.ones((num_steps + 1, width)), np.zeros((4, len(stay), width))
    ratio, message = np.zeros((len(stay) + 1, width)), np.zeros((len(stay), width))
    small = np.zeros((4, num_contexts, width))
    for start in range(0, batch, width):
        number = min(width, batch - start)
        seen, lasting = _block(lik, lengths, start, number, width)
        low, total, weight = np.ones(width), np.zeros(width), np.zeros(width)
        weight[:number] = weights[start : start + number]
        for t in range(num_steps):
            factors[t + 1] = factors[t]
            _step(t, initial, stay, advance, leave, first, states[max(t - 1, 0)], states[t], flow, inside, seen[t],
                  factors[t + 1], low, lasting)  # fmt: skip
            _close(t, inside, total, factors[t + 1], lasting)
            scale[t, start : start + number] = total[:number]
            np.dot(columns, flow[0], flow[1])
        lowest[start : start + number] = low[:number]
        _leave_out(states, factors, low, smallest)
        _backward(stay, advance, leave, moves, first, states, factors, seen, lasting, weight,
                  marginals[start : start + number], ratio, message, small, sums, by_moves, largest)  # fmt: skip
    for place in range(4):
        for s in range(len(stay)):
            by_state[place, s] = sums[place, s].sum()


@compiled()
@no_type_check
def _block_width(batch):
    """Return the width of blocks that are almost equal, so that little is computed for nobody."""
    num_blocks = max((batch + WIDTH - 1) // WIDTH, 1)
    return max((batch + num_blocks - 1) // num_blocks, 1)


@compiled()
@no_type_check
def _block(lik, lengths, start, number, width):
    """Copy the likelihoods and lengths of some sequences; beyond them the block has length 0."""
    seen, lasting = np.zeros((lik.shape[0], lik.shape[1], width)), np.zeros(width, np.int64)
    seen[:, :, :number] = lik[:, :, start : start + number]
    lasting[:number] = lengths[start : start + number]
    return seen, lasting


@compiled()
@no_type_check
def _step(t, initial, stay, advance, leave, first, before, after, flow, inside, seen, factor, low, lasting):
    """Move one step along the chain and weigh by the likelihoods; not normalised."""
    gain = np.empty(len(factor))
    for k in range(len(first) - 1):
        total, out, entered = inside[k], flow[0, k], flow[1, k]
        if t > 0:
            _lower(t, low, entered, factor, lasting)
        _clear(seen[k], factor, gain, total, out)
        for s in range(first[k], first[k + 1]):
            if t == 0:
                _begin(after[s], initial[s], gain)
            elif s == first[k]:
                _hear(after[s], stay[s], before[s], 1.0, entered, gain)
            else:
                _hear(after[s], stay[s], before[s], advance[s - 1], before[s - 1], gain)
            _add(after[s], leave[s], total, out)


@compiled()
@no_type_check
def _lower(t, low, entered, factor, lasting):
    for w in range(len(low)):
        # What enters is the least that is known about the context; see `semi_markov`. A NaN is taken over.
        least = entered[w] * factor[w]
        if t < lasting[w] and factor[w] != 0.0 and not least >= low[w]:
            low[w] = least


@compiled()
@no_type_check
def _clear(seen, factor, gain, total, out):
    for w in range(len(gain)):
        gain[w] = seen[w] * factor[w]
        total[w] = 0.0
        out[w] = 0.0


@compiled()
@no_type_check
def _begin(row, initial, gain):
    for w in range(len(row)):
        row[w] = initial * gain[w]


@compiled()
@no_type_check
def _hear(row, stay, own, advance, other, gain):
    for w in range(len(row)):
        row[w] = (stay * own[w] + advance * other[w]) * gain[w]


@compiled()
@no_type_check
def _add(row, leave, total, out):
    for w in range(len(row)):
        total[w] += row[w]
        out[w] += leave * row[w]


@compiled()
@no_type_check
def _close(t, inside, total, factor, lasting):
    """Find the normaliser of a step, 1 beyond a sequence's end, and make it the factor of the next."""
    for w in range(len(total)):
        total[w] = 0.0
    for k in range(len(inside)):
        row = inside[k]
        for w in range(len(total)):
            total[w] += row[w]
    for w in range(len(total)):
        factor[w] = 0.0 if total[w] == 0.0 else 1.0 / total[w]
        total[w] = total[w] if t < lasting[w] else 1.0


@compiled()
@no_type_check
def _leave_out(states, factors, low, smallest):
    """Remove the sequences that scaled messages cannot carry."""
    for w in range(len(low)):
        if not low[w] >= smallest:
            states[:, :, w] = 0.0
            factors[1:, w] = 0.0


@compiled()
@no_type_check
def _backward(
    stay,
    advance,
    leave,
    moves,
    first,
    states,
    factors,
    seen,
    lasting,
    weight,
    marginals,
    ratio,
    message,
    small,
    sums,
    by_moves,
    largest,
):
    num_steps, num_contexts, width = seen.shape
    entry, heard, out, marginal = small[0], small[1], small[2], small[3]
    pairs = np.empty((num_contexts, num_contexts))
    earlier, gain, now = np.zeros(width), np.zeros(width), np.zeros(width)
    shortest = lasting.min()
    for t in range(num_steps - 1, -1, -1):
        if t + 1 >= shortest:
            _restart(message, t + 1, lasting)
        for k in range(num_contexts):
            _clear(seen[t, k], factors[t + 1], gain, marginal[k], out[k])
            for s in range(first[k], first[k + 1]):
                _multiplied_add(marginal[k], states[t, s], message[s])
                _combine(message[s], gain, ratio[s], largest)
            entry[k] = ratio[first[k]]
        _store(marginals, t, marginal, factors[t + 1])
        if t == 0:
            break
        np.dot(moves, entry, heard)
        _multiply(earlier, factors[t], weight)
        for k in range(num_contexts):
            for s in range(first[k], first[k + 1]):
                _multiply(now, states[t - 1, s], earlier)
                _multiplied_add(sums[1, s], now, ratio[s])
                _multiplied_add(sums[2, s], now, ratio[s + 1])
                _multiplied_add(sums[3, s], now, heard[k])
                _scaled_add(out[k], leave[s], now)
                _tell(message[s], stay[s], ratio[s], advance[s], ratio[s + 1], leave[s], heard[k])
        np.dot(out, entry.T, pairs)
        by_moves += pairs
    for s in range(len(stay) if num_steps > 0 else 0):
        _multiplied_add(sums[0, s], ratio[s], weight)


# Loops over few arrays each: with more, the compiler gives up proving that they do not overlap and does not vectorise.
@compiled()
@no_type_check
def _multiply(row, one, other):
    for w in range(len(row)):
        row[w] = one[w] * other[w]


@compiled()
@no_type_check
def _scaled_add(row, factor, other):
    for w in range(len(row)):
        row[w] += factor * other[w]


@compiled()
@no_type_check
def _multiplied_add(row, one, other):
    for w in range(len(row)):
        row[w] += one[w] * other[w]


@compiled()
@no_type_check
def _combine(message, gain, ratio, largest):
    for w in range(len(ratio)):
        value = gain[w] * message[w]
        ratio[w] = largest if value > largest else value


@compiled()
@no_type_check
def _tell(message, stay, own, advance, following, leave, heard):
    for w in range(len(message)):
        message[w] = stay * own[w] + advance * following[w] + leave * heard[w]


@compiled()
@no_type_check
def _store(marginals, t, marginal, factor):
    """Leave the layout of the passes: marginals[b, t, k] = marginal[k, b], normalised."""
    for b in range(len(marginals)):
        row = marginals[b, t]
        for k in range(len(row)):
            row[k] = marginal[k, b] * factor[b]


@compiled()
@no_type_check
def _restart(message, t, lasting):
    """Begin with ones at the last step of every sequence."""
    for w in range(len(lasting)):
        if t >= lasting[w]:
            message[:, w] = 1.0
