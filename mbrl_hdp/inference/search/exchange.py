"""Exchange two contexts on one side of where their heads agree: EM alone cannot undo labels that are swapped there."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from jaxtyping import Bool, Float

from mbrl_hdp.inference.search.em import subset
from mbrl_hdp.inference.search.features import Features, monomials
from mbrl_hdp.inference.search.moves import Candidate, hold_longer, nearest_pairs, rebuild, settle
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


def exchanged(rows: Rows, candidate: Candidate) -> Candidate:
    """Return the candidate with labels exchanged wherever that raises the evidence.

    Two contexts whose heads agree on a surface can be exchanged on one side of it: each head then has a kink there,
    and no step of EM leads back. Of all differences s(x) d(x) between the heads, s = +-1, the true one is the
    smoothest. So look for the signs that bring the difference closest to a polynomial, exchange the contexts where
    they are negative, and run EM; where that gains, choose the features anew.
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
    library = candidate.features.library
    smooth = candidate.features.with_terms(monomials(library, 3, _MOST_TERMS))
    for pair in nearest_pairs(candidate, _MOST_PAIRS):
        for is_other in sign_patterns(rows, candidate, pair, bases):
            weight, both = candidate.state.weight.copy(), list(pair)
            weight[:, both] = np.where(is_other[:, None], weight[:, both[::-1]], weight[:, both])
            trial = settle(rows, smooth, weight, candidate.state.noise.floor, _STEPS)
            if trial.evidence() > candidate.evidence():
                yield hold_longer(rows, rebuild(rows, trial))


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
