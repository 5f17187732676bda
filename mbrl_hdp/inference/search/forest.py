"""A small forest of extremely randomised trees: cross-fitted probabilities of an event given the inputs."""

from __future__ import annotations

from typing import no_type_check

import numpy as np
from jaxtyping import Float, Int

from mbrl_hdp.compiling import compiled

_TREES = 24
_LEAST_LEAF = 12
_TRIES = 3


def cross_probability(
    inputs: Float[np.ndarray, "n X"], event: Float[np.ndarray, " n"], fold: Int[np.ndarray, " n"], seed: int = 0
) -> Float[np.ndarray, " n"]:
    """Return the probability of `event` in every row from trees grown on the rows of the other folds.

    Rows of fold -1 grow no tree; they are predicted from all others. Where nothing is known, it is one half.
    """
    probability = np.empty(len(event))
    for number in np.unique(fold):
        inside, others = fold == number, (fold != number) & (fold >= 0)
        if others.sum() < 2 * _LEAST_LEAF:
            known = event[fold >= 0]
            probability[inside] = known.mean() if len(known) else 0.5
            continue
        probability[inside] = _forest(
            np.ascontiguousarray(inputs[others]), event[others].astype(np.float64),
            np.ascontiguousarray(inputs[inside]), _TREES, _LEAST_LEAF, _TRIES, seed,
        )  # fmt: skip
    return probability


@compiled()
@no_type_check
def _forest(inputs, event, queries, num_trees, least_leaf, tries, seed):
    np.random.seed(seed)  # noqa: NPY002  numba's own generator, not numpy's
    result = np.zeros(len(queries))
    for _ in range(num_trees):
        _grow(inputs, event, queries, least_leaf, tries, result)
    return result / num_trees


@compiled()
@no_type_check
def _grow(inputs, event, queries, least_leaf, tries, result):
    """Grow one tree and add its prediction for every query; nodes are ranges of two permutations."""
    rows, asked = np.arange(len(inputs)), np.arange(len(queries))
    stack = [(0, len(inputs), 0, len(queries))]
    while len(stack) > 0:
        begin, end, first, last = stack.pop()
        if first == last:
            continue
        mean = 0.0
        for i in range(begin, end):
            mean += event[rows[i]]
        mean /= end - begin
        column, cut = -1, 0.0
        if end - begin >= 2 * least_leaf and 0.0 < mean < 1.0:
            column, cut = _best_cut(inputs, event, rows[begin:end], least_leaf, tries)
        if column < 0:
            # One pseudo-observation of one half on either side keeps probabilities off 0 and 1.
            value = (mean * (end - begin) + 0.5) / (end - begin + 1.0)
            for i in range(first, last):
                result[asked[i]] += value
            continue
        middle = begin + _partition(rows[begin:end], inputs, column, cut)
        between = first + _partition(asked[first:last], queries, column, cut)
        stack.append((begin, middle, first, between))
        stack.append((middle, end, between, last))


@compiled()
@no_type_check
def _best_cut(inputs, event, rows, least_leaf, tries):
    best, column, cut = 0.0, -1, 0.0
    total = 0.0
    for row in rows:
        total += event[row]
    for candidate in range(inputs.shape[1]):
        for _ in range(tries):
            # Between two random rows: cuts lie where the data lie.
            one = inputs[rows[np.random.randint(len(rows))], candidate]  # noqa: NPY002
            two = inputs[rows[np.random.randint(len(rows))], candidate]  # noqa: NPY002
            threshold = one + np.random.random() * (two - one)  # noqa: NPY002
            count, left = 0, 0.0
            for row in rows:
                if inputs[row, candidate] <= threshold:
                    count += 1
                    left += event[row]
            if count < least_leaf or len(rows) - count < least_leaf:
                continue
            score = left * left / count + (total - left) ** 2 / (len(rows) - count) - total * total / len(rows)
            if score > best:
                best, column, cut = score, candidate, threshold
    return column, cut


@compiled()
@no_type_check
def _partition(rows, values, column, cut):
    front = 0
    for i in range(len(rows)):
        if values[rows[i], column] <= cut:
            rows[front], rows[i] = rows[i], rows[front]
            front += 1
    return front
