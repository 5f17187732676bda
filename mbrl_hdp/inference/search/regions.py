"""Is a context a region? The share of the switching entropy that state and action explain, cross-fitted."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from mbrl_hdp.inference.search.em import State, expect, start_state
from mbrl_hdp.inference.search.forest import cross_probability
from mbrl_hdp.inference.search.rows import Rows

# Rows that a share is computed from at most.
_MOST_ROWS = 4000
# With fewer switches between two contexts nothing is known about where one ends.
_FEWEST_SWITCHES = 20


def region_share(rows: Rows, labels: Int[np.ndarray, " M"], context: int, seed: int = 0) -> float:
    """Return 1 - H(leave | x) / H(leave) for the steps after one context: whether it is left, explained by x.

    Zero: when the context is left does not depend on state and action. One: they decide it. A context that is a region
    of the state space is near one, a hidden one near zero.
    """
    before = np.where(rows.previous >= 0, labels[rows.previous], -1)
    index = np.flatnonzero(before == context)
    if len(index) > _MOST_ROWS:
        index = np.sort(np.random.default_rng(seed).choice(index, _MOST_ROWS, replace=False))
    event = (labels[index] != context).astype(np.float64)
    if len(index) < 50 or not 5 <= event.sum() <= len(event) - 5:
        return 0.0
    fold = rows.fold[index]
    chance = np.empty(len(index))
    for number in np.unique(fold):
        inside = fold == number
        chance[inside] = (event[~inside].sum() + 0.5) / ((~inside).sum() + 1.0)
    informed = cross_probability(rows.inputs[index], event, fold)
    return max(0.0, 1.0 - _surprise(event, informed) / _surprise(event, chance))


def gated_evidence(rows: Rows, state: State, pair: tuple[int, int]) -> Float[np.ndarray, " N"]:
    """Return the evidence of every episode if state and action alone decide between two contexts.

    The pair becomes one context whose density is g(x) p_i(y | x) + (1 - g(x)) p_j(y | x), with g a cross-fitted forest:
    one larger head without memory. Regions lose nothing by it, hidden contexts do.
    """
    first, second = pair
    share = state.weight[:, first] + state.weight[:, second]
    inside = share > 0.5
    is_first = (state.weight[:, first] > state.weight[:, second]).astype(np.float64)
    gate = cross_probability(rows.inputs, is_first, np.where(inside, rows.fold, -1))
    both = np.logaddexp(
        np.log(np.clip(gate, 1e-4, 1.0)) + state.log_lik[:, first],
        np.log(np.clip(1.0 - gate, 1e-4, 1.0)) + state.log_lik[:, second],
    )
    kept = first if first < second else first - 1
    weight, log_lik = np.delete(state.weight, second, axis=1), np.delete(state.log_lik, second, axis=1)
    weight[:, kept], log_lik[:, kept] = share, both
    merged = start_state(rows, weight, state.noise.floor)
    merged.log_lik = log_lik
    for _ in range(4):
        expect(rows, merged)
    return merged.evidence


def jump_share(rows: Rows, state: State, pair: tuple[int, int]) -> float | None:
    """Return how much the steps beside a switch between two contexts speak for their label, relative to all steps.

    A region that a head is too small for ends where another head predicts as well: there it does not matter which one
    is taken, and the share is near zero. Where the dynamics jump at a boundary, which no larger head of smooth features
    expresses, or where a hidden context switches, the steps beside a switch are as clear as all others: near one. With
    too few switches it is None. Measured in log p_own(y | x) - log p_other(y | x).
    """
    first, second = pair
    labels = state.weight.argmax(1)
    inside, before = (labels == first) | (labels == second), rows.previous
    switch = np.flatnonzero((before >= 0) & inside & inside[before] & (labels != labels[before]))
    if len(switch) < _FEWEST_SWITCHES:
        return None
    clear = np.where(labels == first, 1.0, -1.0) * (state.log_lik[:, first] - state.log_lik[:, second])
    beside = np.concatenate([switch, before[switch]])
    return float(clear[beside].mean() / max(clear[inside].mean(), 1e-12))


def _surprise(event: np.ndarray, probability: np.ndarray) -> float:
    probability = np.clip(probability, 1e-6, 1.0 - 1e-6)
    return float(-(event * np.log(probability) + (1.0 - event) * np.log(1.0 - probability)).sum())
