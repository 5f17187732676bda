"""Exchange two contexts on one side of where their heads agree: EM alone cannot undo labels that are swapped there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.cluster.vq import kmeans2

from mbrl_hdp.inference.search.em import subset
from mbrl_hdp.inference.search.features import Features, monomials
from mbrl_hdp.inference.search.moves import Candidate, hold_longer, nearest_pairs, rebuild, rebuilt_features, settle
from mbrl_hdp.inference.search.rows import Rows

_SAMPLE = 3000
_CUTS = (0.2, 0.35, 0.5, 0.65, 0.8)
_MOST_TERMS = 60
_ITERATIONS = 12
_STEPS = 8
# A difference of which a polynomial leaves at most this share is smooth as it is.
_SMOOTH = 0.1
# Signs are tried if they leave less than this share of what a polynomial left without them.
_SMOOTHER = 0.5
_MOST_PATTERNS = 2
_MOST_PAIRS = 6
_LEAST_SHARE = 0.03
# Evidence per row that an exchange must gain.
_LEAST_GAIN = 0.005
# Cells of the state space, of one input and of all together, in which labels are exchanged or not.
_BINS = 20
_CELLS = 40
# Labels so many steps apart are compared: where two heads agree, a switch shows only after some steps.
_LAGS = (4, 12)
# Labels that were exchanged by the sign of an input that is drawn anew at every step differ from one step to the next.
_NEXT = (1,)
# An exchange is tried if it makes so many pairs of steps alike that were labelled differently, and this share of them,
# next steps for the last one.
_FEWEST_SAVED = 20
_LEAST_SAVED = 0.15
_LEAST_SAVED_NEXT = 0.5


def exchanged(rows: Rows, candidate: Candidate) -> Candidate:
    """Return the candidate with labels exchanged wherever that raises the evidence.

    Two contexts whose heads agree on a surface can be exchanged on one side of it: each head then has a kink there,
    and no step of EM leads back. Of all differences s(x) d(x) between the heads, s = +-1, the true one is the
    smoothest. So look for the signs that bring the difference closest to a polynomial, exchange the contexts where
    they are negative, and run EM; where that gains, choose the features anew. Differences that are no polynomial, such
    as those of friction, show it in time: labels that are exchanged beyond a surface switch whenever it is crossed. So
    exchange them, too, where that leaves fewer switches.

    Where a random input turns the difference round, labels that were exchanged by its sign switch all the time, and the
    heads have grown kinks in place of the smooth features that the true labels need. So features are chosen anew for
    the exchanged labels where these hardly switch any more.
    """
    library = candidate.features.library
    polynomials = {len(terms): terms for terms in (monomials(library, degree, _MOST_TERMS) for degree in (1, 2, 3))}
    bases = [Features(library, terms).values for terms in polynomials.values()]
    is_better = True
    while is_better:
        is_better = False
        for trial in _trials(rows, candidate, bases):
            if trial.evidence() > candidate.evidence() + _LEAST_GAIN * len(rows):
                candidate, is_better = trial, True
                break
    return candidate


def _trials(rows: Rows, candidate: Candidate, bases: list[Float[np.ndarray, "M _"]]) -> Iterator[Candidate]:
    """Return exchanges that gain after a few steps of EM on smooth features, after more EM on features of their own."""
    if candidate.num_contexts == 1:
        return
    library, floor = candidate.features.library, candidate.state.noise.floor
    smooth = candidate.features.with_terms(monomials(library, 3, _MOST_TERMS))
    for pair in nearest_pairs(candidate, _MOST_PAIRS):
        patterns = sign_patterns(rows, candidate, pair, bases) + switch_patterns(rows, candidate, pair)
        for is_other in patterns:
            weight = _swapped(candidate, pair, is_other)
            trial = settle(rows, smooth, weight, floor, _STEPS)
            if trial.evidence() > candidate.evidence():
                yield hold_longer(rows, rebuild(rows, trial))
        for is_other in switch_patterns(rows, candidate, pair, _NEXT, _LEAST_SAVED_NEXT):
            weight = _swapped(candidate, pair, is_other)
            features = rebuilt_features(rows, candidate.features, weight, floor)
            yield hold_longer(rows, settle(rows, features, weight, floor))


def _swapped(
    candidate: Candidate, pair: tuple[int, int], is_other: Bool[np.ndarray, " M"]
) -> Float[np.ndarray, "M K"]:  # fmt: skip
    """Return the context probabilities with a pair exchanged on some rows."""
    weight, both = candidate.state.weight.copy(), list(pair)
    weight[:, both] = np.where(is_other[:, None], weight[:, both[::-1]], weight[:, both])
    return weight


def sign_patterns(
    rows: Rows, candidate: Candidate, pair: tuple[int, int], bases: list[Float[np.ndarray, "M _"]]
) -> list[Bool[np.ndarray, " M"]]:
    """Return where to exchange two contexts, the most promising pattern first; none where they differ smoothly.

    Args:
        rows: data.
        candidate: model.
        pair: two of its contexts.
        bases: polynomials of rising degree on all rows.
    """
    state, sample = candidate.state, subset(rows, _SAMPLE, seed=1)
    spread = np.sqrt(np.diagonal(state.noise.covariance) + state.noise.floor**2)
    gap = (state.residuals[pair[1]] - state.residuals[pair[0]]) / spread
    root = np.sqrt(state.weight[sample][:, pair].sum(1, keepdims=True))
    target = gap[sample] * root
    size = float(np.square(target).sum()) + 1e-12
    found: list[tuple[float, Bool[np.ndarray, " M"]]] = []
    for basis in bases:
        design = basis[sample] * root
        inverse = np.linalg.pinv(design)
        plain = float(np.square(target - design @ (inverse @ target)).sum()) / size
        if plain < _SMOOTH:
            break
        for sign in _first_signs(rows.inputs[sample]):
            head, left = _aligned(design, target, inverse, sign)
            is_other = (gap * (basis @ head)).sum(1) < 0.0
            if left / size < _SMOOTHER * plain and _LEAST_SHARE < is_other.mean() < 1.0 - _LEAST_SHARE:
                found.append((left / size / plain, is_other))
    return _different([pattern for _, pattern in sorted(found, key=lambda each: each[0])])


def switch_patterns(
    rows: Rows, candidate: Candidate, pair: tuple[int, int], lags: Sequence[int] = _LAGS, least: float = _LEAST_SAVED
) -> list[Bool[np.ndarray, " M"]]:  # fmt: skip
    """Return where to exchange two contexts so that they switch less often, the most promising pattern first.

    The state space is cut into cells. Two cells are joined by the episodes that lead from one to the other within a few
    steps: positively if labels are the same then, negatively if not. Signs of the cells that agree best with these
    joints are where labels are exchanged (-1) or not. Contexts that switch anywhere, as hidden ones do, leave every
    sign positive.

    Args:
        rows: data.
        candidate: model.
        pair: two of its contexts.
        lags: how many steps apart.
        least: share of the pairs of steps with different labels that a pattern must make alike.
    """
    labels = candidate.state.weight.argmax(1)
    inside = np.isin(labels, pair)
    row, before = _links(rows, inside, lags)
    vote = np.where(labels[row] == labels[before], 1.0, -1.0)
    num_unlike = float((vote < 0.0).sum())
    found: list[tuple[float, Bool[np.ndarray, " M"]]] = []
    if num_unlike < _FEWEST_SAVED:
        return []
    for cell, count in _cells(rows):
        joint = np.zeros((count, count))
        np.add.at(joint, (cell[row], cell[before]), vote)
        sign = _best_signs(joint + joint.T)
        saved = num_unlike - float((vote * sign[cell[row]] * sign[cell[before]] < 0.0).sum())
        is_other = sign[cell] < 0.0
        share = is_other[inside].mean()
        if saved >= max(_FEWEST_SAVED, least * num_unlike) and _LEAST_SHARE < share < 1.0 - _LEAST_SHARE:
            found.append((-saved, is_other))
    return _different([pattern for _, pattern in sorted(found, key=lambda each: each[0])])


def _links(
    rows: Rows, inside: Bool[np.ndarray, " M"], lags: Sequence[int]
) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " n"]]:  # fmt: skip
    """Return rows and those some steps before them, where both are `inside`."""
    far, found = np.arange(len(rows)), []
    for lag in range(1, max(lags) + 1):
        far = np.where(far >= 0, rows.previous[far], -1)
        if lag in lags:
            row = np.flatnonzero((far >= 0) & inside & inside[far])
            found.append((row, far[row]))
    return np.concatenate([row for row, _ in found]), np.concatenate([before for _, before in found])


def _cells(rows: Rows) -> Iterator[tuple[Int[np.ndarray, " M"], int]]:
    """Return the cell of every row, and their number: quantiles of each input, then clusters of all inputs."""
    for column in rows.inputs.T:
        cuts = np.unique(np.quantile(column, np.linspace(0.0, 1.0, _BINS + 1)[1:-1]))
        yield np.searchsorted(cuts, column), len(cuts) + 1
    if rows.inputs.shape[1] > 1:
        _, cell = kmeans2(rows.inputs, _CELLS, iter=10, minit="points", seed=0)
        yield cell, _CELLS


def _best_signs(joint: Float[np.ndarray, "c c"]) -> Float[np.ndarray, " c"]:
    """Return signs s of cells with a large sum of s_a joint[a, b] s_b: the first eigenvector's, then better ones."""
    joint = joint - np.diag(np.diagonal(joint))
    scale = 1.0 / np.sqrt(np.maximum(np.abs(joint).sum(1), 1.0))
    sign = np.where(np.linalg.eigh(scale[:, None] * joint * scale)[1][:, -1] < 0.0, -1.0, 1.0)
    for _ in range(10 * len(sign)):
        gain = -sign * (joint @ sign)
        if gain.max() <= 0.0:
            break
        sign[gain.argmax()] *= -1.0
    return sign


def _first_signs(inputs: Float[np.ndarray, "m X"]) -> Iterator[Float[np.ndarray, " m"]]:
    for column in inputs.T:
        for cut in np.quantile(column, _CUTS):
            yield np.where(column > cut, 1.0, -1.0)


def _aligned(
    design: np.ndarray, target: np.ndarray, inverse: np.ndarray, sign: Float[np.ndarray, " m"]
) -> tuple[Float[np.ndarray, "D Y"], float]:
    """Alternate between the polynomial closest to sign * target and the signs; return polynomial and error."""
    for _ in range(_ITERATIONS):
        head = inverse @ (target * sign[:, None])
        before, sign = sign, np.where((target * (design @ head)).sum(1) < 0.0, -1.0, 1.0)
        if (sign == before).all():
            break
    return head, float(np.square(target * sign[:, None] - design @ head).sum())


def _different(patterns: list[Bool[np.ndarray, " M"]]) -> list[Bool[np.ndarray, " M"]]:
    """Return the first patterns that differ from each other, also up to an exchange everywhere."""
    kept: list[Bool[np.ndarray, " M"]] = []
    for pattern in patterns:
        same = [float((pattern == other).mean()) for other in kept]
        if len(kept) < _MOST_PATTERNS and all(0.1 < share < 0.9 for share in same):
            kept.append(pattern)
    return kept
