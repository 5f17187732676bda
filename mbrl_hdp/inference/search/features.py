"""Features: products of coordinates, sines, cosines and hinges, chosen greedily."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float

from mbrl_hdp.inference.search.rows import LEAST_WEIGHT, Rows

MOST_FEATURES = 140
MOST_FACTORS = 4
# Sines and cosines turn this often (radians) within a standard deviation of the input.
_TURNS = np.geomspace(0.5, 8.0, 13)
_NATURAL = (1.0, 2.0)
_KNOTS = (0.1, 0.3, 0.5, 0.7, 0.9)


@dataclass(frozen=True, order=True)
class Factor:
    """One function of one input: `x` (standardised), `sin`/`cos` (raw units), `hinge` (standardised).

    Attributes:
        column: input.
        kind: x, sin, cos or hinge.
        number: frequency of a sine or cosine, knot of a hinge.
    """

    column: int
    kind: str = "x"
    number: float = 0.0

    def __call__(self, inputs: Float[np.ndarray, "M X"], raw: Float[np.ndarray, "M X"]) -> Float[np.ndarray, " M"]:
        """Evaluate on standardised and raw inputs."""
        if self.kind == "sin":
            return np.sin(self.number * raw[:, self.column])
        if self.kind == "cos":
            return np.cos(self.number * raw[:, self.column])
        if self.kind == "hinge":
            return np.maximum(inputs[:, self.column] - self.number, 0.0)
        return inputs[:, self.column]


# A term is a product of factors, sorted; the empty one is the constant.
Term = tuple[Factor, ...]


class Library:
    """The single factors that products are made of, evaluated on all rows."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.factors = [factor for column in range(rows.inputs.shape[1]) for factor in _factors(rows, column)]
        self.values = np.stack([factor(rows.inputs, rows.raw_inputs) for factor in self.factors], 1)

    def evaluate(self, term: Term) -> Float[np.ndarray, " M"]:
        """Return a term on all rows."""
        return evaluate(term, self.rows)


def evaluate(term: Term, rows: Rows) -> Float[np.ndarray, " M"]:
    """Return a term on some rows."""
    value = np.ones(len(rows))
    for factor in term:
        value = value * factor(rows.inputs, rows.raw_inputs)
    return value


def _factors(rows: Rows, column: int) -> list[Factor]:
    scale, values = rows.input_scale[column], rows.inputs[:, column]
    natural = [turn for turn in _NATURAL if _TURNS[0] / 4 <= turn * scale <= _TURNS[-1] * 2]
    turns = [*natural, *(_TURNS / scale)]
    waves = [Factor(column, kind, float(turn)) for turn in turns for kind in ("sin", "cos")]
    knots = sorted({float(knot) for knot in np.quantile(values, _KNOTS)})
    return [Factor(column), *waves, *(Factor(column, "hinge", knot) for knot in knots)]


class Features:
    """Chosen terms and their standardised values.

    Attributes:
        library: where they come from.
        terms: the chosen terms, the constant first.
    """

    def __init__(self, library: Library, terms: list[Term]) -> None:
        self.library, self.terms = library, terms

    @cached_property
    def products(self) -> Float[np.ndarray, "M D"]:
        """Values of the terms."""
        return np.stack([self.library.evaluate(term) for term in self.terms], 1)

    @cached_property
    def moments(self) -> tuple[Float[np.ndarray, " D"], Float[np.ndarray, " D"]]:
        """Mean and spread of the terms (0 and 1 for the constant)."""
        center, scale = self.products.mean(0), self.products.std(0)
        center[0], scale[0] = 0.0, 1.0
        return center, np.maximum(scale, 1e-9)

    @cached_property
    def values(self) -> Float[np.ndarray, "M D"]:
        """Values of the terms, centred and scaled (the constant is one)."""
        center, scale = self.moments
        return (self.products - center) / scale

    def on(self, rows: Rows) -> Float[np.ndarray, "m D"]:
        """Return the values on other rows, centred and scaled as here."""
        center, scale = self.moments
        return (np.stack([evaluate(term, rows) for term in self.terms], 1) - center) / scale

    def __len__(self) -> int:
        """Return the number of terms."""
        return len(self.terms)

    def with_terms(self, more: list[Term]) -> Features:
        """Return these and more terms."""
        fresh = [term for term in more if term not in set(self.terms)]
        return Features(self.library, self.terms + fresh)


def coordinates(rows: Rows) -> list[Factor]:
    """Return every input, of a known angle its cosine and sine."""
    found = []
    for column in range(rows.inputs.shape[1]):
        is_angle = column in rows.angles
        found += [Factor(column, "cos", 1.0), Factor(column, "sin", 1.0)] if is_angle else [Factor(column)]
    return found


def linear_features(library: Library) -> Features:
    """Return the constant and every coordinate."""
    return Features(library, [(), *((factor,) for factor in coordinates(library.rows))])


def monomials(library: Library, degree: int, most: int) -> list[Term]:
    """Return all products of up to `degree` coordinates, of the largest degree that has at most `most` of them.

    The square of a cosine is left out: the constant and the square of the sine say the same.
    """
    factors = coordinates(library.rows)
    terms: list[Term] = [()]
    layer: list[Term] = [()]
    for _ in range(degree):
        layer = [
            (*term, factor)
            for term in layer
            for factor in factors[factors.index(term[-1]) if term else 0 :]
            if not (factor.kind == "cos" and factor in term)
        ]
        if len(terms) + len(layer) > most:
            break
        terms = terms + layer
    return terms


def best_products(
    features: Features,
    residual: Float[np.ndarray, "M Y"],
    weight: Float[np.ndarray, "M K"],
    sample: np.ndarray,
    per_output: int = 2,
    least: float = 30.0,
    pool: int = 12,
) -> list[Term]:
    """Return the terms (existing term x factor) that explain most of what is left.

    For every output the `pool` products with the largest drop of the squared error, summed over contexts, are made
    orthogonal to the present features; then the best are taken one by one.

    Args:
        features: present features.
        residual: what is left of the targets in every row's context, divided by its standard deviation or floor.
        weight: probability of every context.
        sample: rows to look at.
        per_output: terms to take for each output at most.
        least: smallest drop of the chi-square statistic of all rows that counts.
        pool: candidates of each output.
    """
    library, inflate = features.library, len(features.library.rows) / len(sample)
    parents = [i for i, term in enumerate(features.terms) if len(term) < MOST_FACTORS]
    left, right = features.products[sample][:, parents], library.values[sample]
    left = left / np.maximum(np.abs(left).max(0), 1e-12)
    candidates = _shortlist(features, parents, left, right, residual[sample], weight[sample], pool)
    if not candidates:
        return []
    values = np.stack([library.evaluate(term)[sample] for term in candidates], 1)
    return _greedy(
        features.values[sample], values, candidates, residual[sample], weight[sample], inflate, per_output, least
    )


def _shortlist(
    features: Features, parents: list[int], left: np.ndarray, right: np.ndarray, residual: np.ndarray,
    weight: np.ndarray, pool: int,
) -> list[Term]:  # fmt: skip
    known = set(features.terms)
    scores = [np.zeros((left.shape[1], right.shape[1])) for _ in range(residual.shape[1])]
    for share in weight.T:
        if share.sum() < 1.0:
            continue
        used = np.flatnonzero(share > LEAST_WEIGHT)
        context, parent, factor = share[used], left[used], right[used]
        weighted, own = parent * context[:, None], residual[used]
        power = (parent * weighted).T @ np.square(factor) - np.square(weighted.T @ factor) / context.sum()
        power = np.maximum(power, 1e-6 * context.sum())
        for output in range(len(scores)):
            scores[output] += np.square((weighted * own[:, output : output + 1]).T @ factor) / power
    found: list[Term] = []
    for score in scores:
        taken = 0
        for flat in np.argsort(-score, axis=None)[: 6 * pool]:
            row, column = np.unravel_index(int(flat), score.shape)
            term = tuple(sorted((*features.terms[parents[row]], features.library.factors[column])))
            if term not in known:
                known.add(term)
                found.append(term)
                taken += 1
            if taken == pool:
                break
    return found


def _greedy(
    present: np.ndarray, values: np.ndarray, candidates: list[Term], residual: np.ndarray, weight: np.ndarray,
    inflate: float, per_output: int, least: float,
) -> list[Term]:  # fmt: skip
    basis, _ = np.linalg.qr(present)
    values = (values - values.mean(0)) / np.maximum(values.std(0), 1e-9)
    values = values - basis @ (basis.T @ values)
    is_new = np.square(values).mean(0) > 1e-4
    chosen: list[Term] = []
    residual = residual.copy()
    for _ in range(per_output * residual.shape[1]):
        power = weight.T @ np.square(values) + 1e-9
        slopes = np.einsum("nk,no,nc->koc", weight, residual, values, optimize=True) / power[:, None]
        gain = inflate * (np.square(slopes) * power[:, None]).sum((0, 1)) * is_new
        best = int(gain.argmax())
        if gain[best] < least * max(1, int((weight.sum(0) > 1).sum())):
            break
        chosen.append(candidates[best])
        column = values[:, best].copy()
        residual -= np.einsum("nk,ko,n->no", weight, slopes[:, :, best], column, optimize=True)
        values = values - np.outer(column, column @ values / (column @ column))
        is_new &= np.square(values).mean(0) > 1e-4
    return chosen
