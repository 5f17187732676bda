"""Capacity first: grow the features until cross-fitted predictions stop improving."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from mbrl_hdp.inference.search.em import State, maximise, start_state, subset
from mbrl_hdp.inference.search.features import MOST_FEATURES, Features, best_products, monomials
from mbrl_hdp.inference.search.rows import Rows
from mbrl_hdp.inference.search.stages import sign_of_life

_SAMPLE = 3000


def loss(rows: Rows, state: State) -> float:
    """Return the cross-fitted negative log density per row with the contexts as they are weighted."""
    return -float((state.log_lik * state.weight).sum()) / len(rows)


def fitted(rows: Rows, features: Features, weight: np.ndarray, floor: float, offset: np.ndarray | None = None) -> State:
    """Fit heads and noise for fixed context probabilities."""
    state = start_state(rows, weight, floor)
    if offset is not None:
        state.offset = offset
    for _ in range(2):
        maximise(rows, features.values, state, num_noise=3)
    return state


def grow(
    rows: Rows,
    features: Features,
    weight: Float[np.ndarray, "M K"],
    floor: float,
    rounds: int = 14,
    least_gain: float = 0.0015,
    offset: np.ndarray | None = None,
) -> Features:
    """Add products that lower the cross-fitted loss; polynomials are tried where they are better.

    Ends after two rounds that gain less than `least_gain` nats a row for each term, or when every residual is at the
    floor.
    """
    best, best_loss, state = features, np.inf, fitted(rows, features, weight, floor, offset)
    best_loss = loss(rows, state)
    sample = subset(rows, _SAMPLE, seed=0)
    now, failures = features, 0
    for _ in range(rounds):
        sign_of_life()
        residual = state.mean_residual()
        spread = np.sqrt(np.square(residual).mean(0))
        if (spread < floor).all() or failures == 2 or len(now) >= MOST_FEATURES:
            break
        more = best_products(now, residual / np.maximum(spread, floor), weight, sample)
        if not more:
            break
        now = now.with_terms(more)
        maximise(rows, now.values, state, num_noise=2)
        value = loss(rows, state)
        failures += 1
        if value < best_loss - max(0.003, least_gain * (len(now) - len(best))):
            best, best_loss, failures = now, value, 0
    return best


def with_polynomials(rows: Rows, features: Features, weight: np.ndarray, floor: float) -> Features:
    """Start from the plain polynomial, linear to cubic, that predicts best."""
    choices = [features]
    for degree in (2, 3):
        terms = monomials(features.library, degree, MOST_FEATURES // 2)
        if len(terms) > len(choices[-1]):
            choices.append(features.with_terms(terms))
    losses = [loss(rows, fitted(rows, choice, weight, floor)) for choice in choices]
    best = 0
    for i in range(1, len(choices)):
        if losses[i] < losses[best] - 0.01:
            best = i
    return choices[best]
