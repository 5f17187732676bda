"""Messages over (context, phase) as compiled loops: a step costs O(K^2 + S), not O(S^2).

Moves between contexts leave from any phase and enter at first phases only, so they are one K by K product of what
leaves each context; inside a context a phase hears of itself and of the phase before. A block of sequences is carried
through the forward and the backward pass before the next one, so that its messages stay in the cache.

Messages of a step are kept before they are normalised; the factor goes into the likelihoods of the next step, where
there are K of them instead of S. The backward messages carry the factor that belongs to their step, so a product of the
two messages needs none.
"""

from __future__ import annotations

from typing import NamedTuple, no_type_check

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mbrl_hdp.compiling import compiled
from mbrl_hdp.probability.scaling import LARGEST, SMALLEST

# Sequences of a block: as many as keep its messages (float64 numbers) in the cache, within limits: narrow blocks do not
# fill a loop. Loops run over whole vectors, so a block is padded to a multiple of `_LANES`.
_CACHED = 1_200_000
_NARROWEST, _WIDEST = 24, 128
_LANES = 4


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


class PhaseArrays(NamedTuple):
    """A phase chain as the loops take it: float64, contiguous, on the CPU.

    Attributes:
        parts: its probabilities.
        first: first state of every context, and the number of states at the end.
    """

    parts: PhaseParts
    first: Int[Tensor, " K1"]


class PhaseDerivatives(NamedTuple):
    """Smoothed contexts (unweighted), and the derivatives of `weights @ log_evidence` by the chain."""

    marginals: Float[Tensor, "B T K"]
    by: PhaseParts


class PhaseParts(NamedTuple):
    """One number for each probability of a `PhaseChain`: its value, the derivative by it, or the expected count.

    Attributes:
        initial: of sequences that begin in each state.
        stay: of steps that stay in each phase.
        advance: of steps from each phase to the next.
        leave: of steps that leave the context from each phase.
        moves: of steps from context j to context k.
    """

    initial: Float[Tensor, " S"]
    stay: Float[Tensor, " S"]
    advance: Float[Tensor, " S"]
    leave: Float[Tensor, " S"]
    moves: Float[Tensor, "K K"]


def filter_pass(
    chain: PhaseArrays, lik: Float[Tensor, "T K B"], lengths: Int[Tensor, " B"], dtype: torch.dtype
) -> PhaseForward:
    """Filter; likelihoods as `scaling.scaled_likelihoods` makes them."""
    num_steps, num_contexts, batch = lik.shape
    probs, following = (torch.zeros(batch, num_steps, num_contexts, dtype=dtype) for _ in range(2))
    scale, lowest = lik.new_ones(num_steps, batch), lik.new_ones(batch)
    arrays = (*chain.parts, chain.first, lik, lengths, probs, following, scale, lowest)
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
    by_state = torch.zeros(4, len(chain.parts.stay), dtype=torch.float64)
    by_moves = torch.zeros_like(chain.parts.moves)
    arrays = (*chain.parts, chain.first, lik, lengths, weights.contiguous(), marginals, scale, lowest)
    # Arguments, because numba's cache would not notice a change of a constant in another file.
    _smooth_loops(*(value.numpy() for value in (*arrays, by_state, by_moves)), SMALLEST, LARGEST)
    by_state[2, chain.first[1:] - 1] = 0.0  # there is no phase after the last
    by_chain = PhaseParts(by_state[0], by_state[1], by_state[2], by_state[3], by_moves)
    return scale, lowest >= SMALLEST, PhaseDerivatives(marginals, by_chain)


@compiled()
@no_type_check
def _filter_loops(initial, stay, advance, leave, moves, first, lik, lengths, probs, following, scale, lowest):
    num_steps, num_contexts, batch = lik.shape
    width = _block_width(batch, 2 * len(stay))
    columns = np.ascontiguousarray(moves.T)
    states = np.zeros((2, len(stay), width))
    shape = (num_contexts, width)
    entered, out, inside = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    factor, low, total = np.ones(width), np.ones(width), np.ones(width)
    for start in range(0, batch, width):
        number = min(width, batch - start)
        seen, lasting = _block(lik, lengths, start, number, width)
        factor[:], low[:] = 1.0, 1.0
        for t in range(num_steps):
            before, after = states[(t + 1) % 2], states[t % 2]
            _step(t, initial, stay, advance, leave, first, before, after, entered, out, inside, seen, factor)
            _close(t, inside, entered, total, factor, factor, low, lasting)
            np.dot(columns, out, entered)
            for w in range(number):
                scale[t, start + w] = total[w]
                for k in range(num_contexts):
                    now = inside[k, w] * factor[w]
                    probs[start + w, t, k] = now
                    # What was left goes out, what is entered comes in; rounding must not make it negative.
                    following[start + w, t, k] = max(now + (entered[k, w] - out[k, w]) * factor[w], 0.0)
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
    width = _block_width(batch, num_steps * (len(stay) + 2 * num_contexts))
    columns = np.ascontiguousarray(moves.T)
    states, factors = np.empty((num_steps, len(stay), width)), np.ones((num_steps + 1, width))
    # What leaves and enters every context: (K, T, W), so that the moves of all steps are one matrix product.
    flows = np.zeros((2, num_contexts, num_steps, width))
    shape = (num_contexts, width)
    entered, out, inside = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    message = np.zeros((len(stay) + 1, width))
    low, total, weight = np.ones(width), np.zeros(width), np.zeros(width)
    for start in range(0, batch, width):
        number = min(width, batch - start)
        seen, lasting = _block(lik, lengths, start, number, width)
        low[:], weight[:] = 1.0, 0.0
        weight[:number] = weights[start : start + number]
        for t in range(num_steps):
            _step(t, initial, stay, advance, leave, first, states[max(t - 1, 0)], states[t], entered, out, inside,
                  seen, factors[t])  # fmt: skip
            _close(t, inside, entered, total, factors[t], factors[t + 1], low, lasting)
            scale[t, start : start + number] = total[:number]
            if t + 1 < num_steps:
                np.dot(columns, out, entered)
                for k in range(num_contexts):
                    for w in range(width):
                        flows[0, k, t, w] = out[k, w] * weight[w]
        lowest[start : start + number] = low[:number]
        _leave_out(states, factors, flows[0], low, smallest)
        own = marginals[start : start + number]
        _backward(stay, advance, leave, moves, first, states, factors, seen, lasting, weight, own, message, entered,
                  out, inside, by_state, flows, largest)  # fmt: skip
        if num_steps > 1:
            leaving, entering = flows[0].reshape(num_contexts, -1), flows[1].reshape(num_contexts, -1)
            by_moves += np.dot(leaving, entering.T)


@compiled()
@no_type_check
def _block_width(batch, num_values):
    """Return the width of blocks that are almost equal, so that little is computed for nobody."""
    most = min(max(_CACHED // max(num_values, 1), _NARROWEST), _WIDEST)
    num_blocks = max((batch + most - 1) // most, 1)
    width = max((batch + num_blocks - 1) // num_blocks, 1)
    return (width + _LANES - 1) // _LANES * _LANES


@compiled()
@no_type_check
def _block(lik, lengths, start, number, width):
    """Copy the likelihoods and lengths of some sequences; padding is impossible from its first step on."""
    num_steps, num_contexts, _ = lik.shape
    seen, lasting = np.empty((num_steps, num_contexts, width)), np.full(width, num_steps)
    for t in range(num_steps):
        for k in range(num_contexts):
            for w in range(number):
                seen[t, k, w] = lik[t, k, start + w]
            for w in range(number, width):
                seen[t, k, w] = 0.0
    lasting[:number] = lengths[start : start + number]
    return seen, lasting


# Loops that are handed whole arrays and write to one or two of them: a row taken out of an array costs as much as the
# arithmetic on it, and with more arrays the compiler gives up proving that they do not overlap and does not vectorise.
@compiled()
@no_type_check
def _step(t, initial, stay, advance, leave, first, before, after, entered, out, inside, seen, factor):
    """Move one step along the chain and weigh by the likelihoods; not normalised."""
    width = len(factor)
    gain = np.empty(width)
    for k in range(len(first) - 1):
        for w in range(width):
            gain[w] = seen[t, k, w] * factor[w]
            inside[k, w] = 0.0
            out[k, w] = 0.0
        for s in range(first[k], first[k + 1]):
            # Numbers, not entries of arrays: those would have to be proved untouched by the loops.
            begun, kept, passed, left = initial[s], stay[s], advance[s - 1], leave[s]
            if t == 0:
                for w in range(width):
                    after[s, w] = begun * gain[w]
            elif s == first[k]:
                for w in range(width):
                    after[s, w] = (kept * before[s, w] + entered[k, w]) * gain[w]
            else:
                for w in range(width):
                    after[s, w] = (kept * before[s, w] + passed * before[s - 1, w]) * gain[w]
            for w in range(width):
                inside[k, w] += after[s, w]
                out[k, w] += left * after[s, w]


@compiled()
@no_type_check
def _close(t, inside, entered, total, before, factor, low, lasting):
    """Find the normaliser of a step, 1 beyond a sequence's end, and the factor of the next; note what entered least."""
    width = len(total)
    least = np.full(width, np.inf)
    for w in range(width):
        total[w] = 0.0
    for k in range(len(inside)):
        for w in range(width):
            total[w] += inside[k, w]
            least[w] = entered[k, w] if not entered[k, w] >= least[w] else least[w]
    for w in range(width):
        # What enters is the least that is known about a context; see `semi_markov`. A NaN is taken over.
        if 0 < t < lasting[w] and before[w] != 0.0 and not least[w] * before[w] >= low[w]:
            low[w] = least[w] * before[w]
        factor[w] = 0.0 if total[w] == 0.0 else 1.0 / total[w]
        total[w] = total[w] if t < lasting[w] else 1.0


@compiled()
@no_type_check
def _leave_out(states, factors, leaving, low, smallest):
    """Remove the sequences that scaled messages cannot carry."""
    for w in range(len(low)):
        if not low[w] >= smallest:
            states[:, :, w] = 0.0
            factors[1:, w] = 0.0
            leaving[:, :, w] = 0.0


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
    message,
    entry,
    heard,
    marginal,
    by_state,
    flows,
    largest,
):
    num_steps, num_contexts, width = seen.shape
    shortest = lasting.min()
    for t in range(num_steps - 1, -1, -1):
        if t + 1 >= shortest:
            _restart(message, t + 1, lasting, factors[t + 1])
        _combine(t, first, states, factors[t], seen, message, marginal, largest)
        _store(marginals, t, marginal)
        if t == 0:
            break
        for k in range(num_contexts):
            for w in range(width):
                entry[k, w] = message[first[k], w]
                flows[1, k, t - 1, w] = entry[k, w]
        np.dot(moves, entry, heard)
        for k in range(num_contexts):
            for s in range(first[k], first[k + 1]):
                _tell(t - 1, s, k, stay[s], advance[s], leave[s], states, weight, heard, message, by_state)
    for s in range(len(stay) if num_steps > 0 else 0):
        for w in range(width):
            by_state[0, s] += message[s, w] * weight[w]


@compiled()
@no_type_check
def _combine(t, first, states, factor, seen, message, marginal, largest):
    """Join the two messages of a step; weigh the backward one by likelihood and normaliser, in place."""
    width = len(factor)
    gain = np.empty(width)
    for k in range(len(first) - 1):
        for w in range(width):
            gain[w] = seen[t, k, w] * factor[w]
            marginal[k, w] = 0.0
        for s in range(first[k], first[k + 1]):
            for w in range(width):
                marginal[k, w] += states[t, s, w] * message[s, w]
                value = gain[w] * message[s, w]
                message[s, w] = largest if value > largest else value


@compiled("reordered", is_inlined=True)
@no_type_check
def _tell(t, s, k, stay, advance, leave, states, weight, heard, message, by_state):
    """Make the backward message of a state at step t, in place, and count what happens after that step."""
    stayed, advanced, left = 0.0, 0.0, 0.0
    for w in range(len(weight)):
        now = states[t, s, w] * weight[w]
        own, following, elsewhere = message[s, w], message[s + 1, w], heard[k, w]
        stayed += now * own
        advanced += now * following
        left += now * elsewhere
        message[s, w] = stay * own + advance * following + leave * elsewhere
    by_state[1, s] += stayed
    by_state[2, s] += advanced
    by_state[3, s] += left


@compiled()
@no_type_check
def _store(marginals, t, marginal):
    """Leave the layout of the passes: marginals[b, t, k] = marginal[k, b]."""
    for b in range(len(marginals)):
        for k in range(len(marginal)):
            marginals[b, t, k] = marginal[k, b]


@compiled()
@no_type_check
def _restart(message, t, lasting, factor):
    """Begin anew at the last step of every sequence; the row after the last state stays zero."""
    for w in range(len(lasting)):
        if t >= lasting[w]:
            message[:-1, w] = factor[w]
