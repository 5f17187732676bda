"""Moves of the search: split a context, hold labels longer, merge two contexts, drop a small one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from mbrl_hdp.inference.search.em import State, expect, maximise, run, start_state
from mbrl_hdp.inference.search.features import Factor, Features, linear_features, monomials
from mbrl_hdp.inference.search.growth import fitted, grow, loss, with_polynomials
from mbrl_hdp.inference.search.heads import cross_predict, solve_ridge
from mbrl_hdp.inference.search.rows import Rows
from mbrl_hdp.inference.search.starts import signed_splits

# In the early steps of a split a step's evidence counts at most so much, and contexts are left so rarely.
_PATIENCE = ((1.0, 1e-2), (0.4, 1e-3))
_VOTES = 1.0
_RARELY = 1e-3
# Starts are compared on about this many rows; so many different ones go on.
_START_ROWS = 4000
_MOST_STARTS = 3
_SMALLEST_SHARE = 0.02
# Rows with less weight than this in robust regression are outliers.
_OUTLIER = 0.2
# An input matters if the heads lose this many nats a row without it.
_LEAST_LOSS = 0.1


@dataclass
class Candidate:
    """A model and the features that its heads use."""

    state: State
    features: Features

    @property
    def num_contexts(self) -> int:
        """Number of contexts."""
        return self.state.num_contexts

    def evidence(self) -> float:
        """Return the cross-fitted log evidence of all data."""
        return float(self.state.evidence.sum())


def rebuilt_features(rows: Rows, features: Features, weight: Float[np.ndarray, "M K"], floor: float) -> Features:
    """Choose the features anew for given context probabilities; the smaller set unless the larger is better."""
    linear = linear_features(features.library)
    first = grow(rows, linear, weight, floor)
    polynomial = with_polynomials(rows, linear, weight, floor)
    second = first if polynomial is linear else grow(rows, polynomial, weight, floor)
    one, two = (loss(rows, fitted(rows, choice, weight, floor)) for choice in (first, second))
    smaller, larger = ((one, first), (two, second)) if len(first) <= len(second) else ((two, second), (one, first))
    return larger[1] if larger[0] < smaller[0] - 0.03 else smaller[1]


def settle(rows: Rows, features: Features, weight: np.ndarray, floor: float, num_steps: int = 15) -> Candidate:
    """Run EM from context probabilities."""
    state = start_state(rows, weight, floor)
    return Candidate(run(rows, features.values, state, num_steps), features)


def rebuild(rows: Rows, candidate: Candidate, num_steps: int = 15) -> Candidate:
    """Choose features for the candidate's contexts and run EM with them."""
    state = candidate.state
    features = rebuilt_features(rows, candidate.features, state.weight, state.noise.floor)
    return settle(rows, features, state.weight, state.noise.floor, num_steps)


def split(rows: Rows, parent: Candidate, context: int, seed: int = 0) -> Candidate:
    """Return the best division of one context, after EM with the parent's features.

    Every start is run as two heads on few features of what the context's head leaves over, on some episodes; the best
    three by evidence (of different labels) go on with all features and all episodes.
    """
    state = parent.state
    share = state.weight[:, context]
    residual = state.residuals[context]
    spread = np.sqrt(np.average(np.square(residual), axis=0, weights=share + 1e-12))
    scores = signed_splits(rows, residual / np.maximum(spread, state.noise.floor), share, seed, num_directions=1)
    part, index = rows.sample(_START_ROWS, seed)
    starts: list[_Start] = []
    widths: set[int] = set()
    for degree in (1, 2, 3):
        basis = Features(parent.features.library, monomials(parent.features.library, degree, 60))
        if len(basis) in widths:
            break
        widths.add(len(basis))
        starts += [
            _two_heads(part, index, state, context, score, basis.values, *patience)
            for score in scores
            for patience in _PATIENCE
        ]
    starts.sort(key=lambda start: -start.evidence)
    kept: list[_Start] = []
    for start in starts:
        if all(_agreement(start.weight[:, -2:], other.weight[:, -2:]) < 0.9 for other in kept):
            kept.append(start)
        if len(kept) == _MOST_STARTS:
            break
    features = parent.features.with_terms(monomials(parent.features.library, 3, 60))
    weights = (start.weight if part is rows else _extended(rows, index, state, context, start) for start in kept)
    candidates = [settle(rows, features, weight, state.noise.floor, 5) for weight in weights]
    best = max(candidates, key=Candidate.evidence)
    return Candidate(run(rows, features.values, best.state, 15), features)


def _agreement(one: np.ndarray, two: np.ndarray) -> float:
    """Return the share of rows that two divisions put together, up to an exchange of the halves."""
    total = min(one.sum(), two.sum()) + 1e-12
    same = float((one * two).sum() / total)
    crossed = float((one * two[:, ::-1]).sum() / total)
    return max(same, crossed)


@dataclass(frozen=True)
class _Start:
    """A division of one context on some episodes; its halves are the last two contexts."""

    evidence: float
    weight: Float[np.ndarray, "m K"]
    basis: Float[np.ndarray, "M D"]
    trial: State


def _two_heads(
    part: Rows, index: np.ndarray, state: State, context: int, score: Float[np.ndarray, " M"],
    basis: Float[np.ndarray, "M D"], votes: float, leave: float,
) -> _Start:  # fmt: skip
    """Run EM on some episodes, in which only the two halves of a context move."""
    others = [k for k in range(state.num_contexts) if k != context]
    share, score = state.weight[index, context], score[index]
    halves = np.stack([share * (0.5 + 0.45 * score), share * (0.5 - 0.45 * score)], 1)
    trial = start_state(part, np.concatenate([state.weight[index][:, others], halves], 1), state.noise.floor)
    target, fixed, design = state.residuals[context][index], state.residuals[others][:, index], basis[index]
    last = -np.inf
    for step in range(14):
        robust = 1.0 if trial.robust is None else trial.robust[:, -2:]
        left = target - cross_predict(part, design, target, trial.weight[:, -2:] * robust, _ridge(trial))
        trial.residuals = np.concatenate([fixed, left])
        if trial.robust is None:
            trial.noise.covariance = state.noise.covariance.copy()
            trial.robust = trial.noise.log_density(trial.residuals)[1]
        trial.noise.update(trial.residuals, trial.weight, trial.robust)
        trial.log_lik, trial.robust = trial.noise.log_density(trial.residuals)
        if step < 7:
            expect(part, trial, votes, leave)
            continue
        expect(part, trial)
        if trial.evidence.sum() - last < 1e-3 * len(part):
            break
        last = trial.evidence.sum()
    return _Start(float(trial.evidence.sum()), trial.weight, basis, trial)


def _ridge(trial: State) -> float:
    return float(np.clip(np.diagonal(trial.noise.covariance).mean(), 1e-4, 1.0))


def _extended(
    rows: Rows, index: np.ndarray, state: State, context: int, start: _Start
) -> Float[np.ndarray, "M K"]:  # fmt: skip
    """Return the context probabilities of all rows under the heads that a start found on some episodes."""
    others = [k for k in range(state.num_contexts) if k != context]
    design, target = start.basis[index], state.residuals[context]
    left = []
    for half in start.weight[:, -2:].T:
        scaled = design * half[:, None]
        left.append(
            target - start.basis @ solve_ridge(scaled.T @ design, scaled.T @ target[index], _ridge(start.trial))
        )
    whole = start_state(rows, np.zeros((len(rows), state.num_contexts + 1)), state.noise.floor)
    whole.transition = start.trial.transition
    whole.log_lik = start.trial.noise.log_density(np.concatenate([state.residuals[others], np.stack(left)]))[0]
    expect(rows, whole, learn_chain=False)
    return whole.weight


def birth(rows: Rows, parent: Candidate) -> tuple[int, Candidate] | None:
    """Make a context of the rows that no context explains, wherever they were put.

    A rare context that is spread over several others as outliers cannot be found by dividing one of them.

    Returns:
        The context that loses most rows to the new one, and the model in which these are the last two; None if fewer
        rows than a smallest context are outliers.
    """
    state = parent.state
    assert state.robust is not None
    is_outlier = (state.weight * state.robust).sum(1) < _OUTLIER
    if is_outlier.mean() < _SMALLEST_SHARE:
        return None
    donor = int(state.weight[is_outlier].sum(0).argmax())
    order = [*(k for k in range(state.num_contexts) if k != donor), donor]
    new = 0.9 * is_outlier[:, None]
    weight = np.concatenate([state.weight[:, order] * (1.0 - new), new], 1)
    return donor, settle(rows, parent.features, weight, state.noise.floor)


def hold_longer(rows: Rows, candidate: Candidate, num_steps: int = 6, leave: float = _RARELY) -> Candidate:
    """Run EM on a very sticky chain with bounded votes, then free; return the better of before and after.

    Labels that were exchanged on one side of where two heads agree then hold across.
    """
    again = candidate.state.copy()
    run(rows, candidate.features.values, again, num_steps, _VOTES, leave)
    run(rows, candidate.features.values, again, 15)
    held = Candidate(again, candidate.features)
    return held if held.evidence() > candidate.evidence() else candidate


def without(rows: Rows, candidate: Candidate, merged: tuple[int, int]) -> Candidate:
    """Return the candidate with two contexts made one."""
    first, second = merged
    weight = candidate.state.weight.copy()
    weight[:, first] += weight[:, second]
    weight = np.delete(weight, second, axis=1)
    return settle(rows, candidate.features, weight, candidate.state.noise.floor)


def drop_small(rows: Rows, candidate: Candidate, least: float = _SMALLEST_SHARE) -> Candidate:
    """Remove contexts that own less than `least` of the rows."""
    share = candidate.state.weight.mean(0)
    if candidate.num_contexts == 1 or share.min() >= least:
        return candidate
    weight = np.delete(candidate.state.weight, int(share.argmin()), axis=1)
    weight = weight / np.maximum(weight.sum(1, keepdims=True), 1e-9)
    return drop_small(rows, settle(rows, candidate.features, weight, candidate.state.noise.floor), least)


def nearest_pairs(candidate: Candidate, count: int = 2) -> list[tuple[int, int]]:
    """Return the pairs of contexts whose heads predict most alike where either is active."""
    state = candidate.state
    covariance = state.noise.covariance + state.noise.floor**2 * np.eye(len(state.noise.covariance))
    white = np.linalg.inv(np.linalg.cholesky(covariance))
    distances = []
    for i in range(state.num_contexts):
        for j in range(i + 1, state.num_contexts):
            gap = np.square((state.residuals[i] - state.residuals[j]) @ white.T).sum(1)
            weight = state.weight[:, i] + state.weight[:, j]
            distances.append((float(np.log1p(gap) @ weight / weight.sum()), (i, j)))
    return [pair for _, pair in sorted(distances)[:count]]


def simpler(rows: Rows, candidate: Candidate, most: int = 3) -> list[Candidate]:
    """Return models without what the heads make of single inputs beyond a straight line, the costliest first.

    Where a context depends on the place (stripes), waves and hinges of the place imitate it in part, and what is left
    to divide no longer looks like a context. Inputs without which the evidence hardly falls are not tried.
    """
    state, library = candidate.state, candidate.features.library
    found = []
    for column in range(rows.inputs.shape[1]):
        if column in rows.angles:
            continue
        line = (Factor(column),)
        terms = [t for t in candidate.features.terms if t == line or all(factor.column != column for factor in t)]
        features = Features(library, terms)
        fewer = fitted(rows, features, state.weight, state.noise.floor)
        expect(rows, fewer)
        found.append(Candidate(fewer, features))
    found = [each for each in found if candidate.evidence() - each.evidence() > _LEAST_LOSS * len(rows)]
    return sorted(found, key=Candidate.evidence)[:most]


def one_context(rows: Rows, features: Features, floor: float) -> Candidate:
    """Return the model with one context and features grown for it."""
    weight = np.ones((len(rows), 1))
    chosen = rebuilt_features(rows, features, weight, floor)
    state = fitted(rows, chosen, weight, floor)
    maximise(rows, chosen.values, state)
    expect(rows, state)
    return Candidate(state, chosen)
