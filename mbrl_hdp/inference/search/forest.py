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
            np.ascontiguousarray(inputs[others].T), event[others].astype(np.int64),
            np.ascontiguousarray(inputs[inside].T), _TREES, _LEAST_LEAF, _TRIES, seed,
        )  # fmt: skip
    return probability


@compiled()
@no_type_check
def _forest(columns, event, queries, num_trees, least_leaf, tries, seed):
    np.random.seed(seed)  # noqa: NPY002  numba's own generator, not numpy's
    result = np.zeros(queries.shape[1])
    values, flags = np.empty(columns.shape[1]), np.empty(columns.shape[1], np.int64)
    for _ in range(num_trees):
        _grow(columns, event, queries, least_leaf, tries, values, flags, result)
    return result / num_trees


@compiled()
@no_type_check
def _grow(columns, event, queries, least_leaf, tries, values, flags, result):
    """Grow one tree and add its prediction for every query; nodes are ranges of two permutations."""
    rows, asked = np.arange(columns.shape[1]), np.arange(queries.shape[1])
    stack = [(0, len(rows), 0, len(asked))]
    while len(stack) > 0:
        begin, end, first, last = stack.pop()
        if first == last:
            continue
        count = end - begin
        total = 0
        for i in range(count):
            flags[i] = event[rows[begin + i]]
            total += flags[i]
        column, cut = -1, 0.0
        if count >= 2 * least_leaf and 0 < total < count:
            column, cut = _best_cut(columns, rows[begin:end], least_leaf, tries, values[:count], flags[:count], total)
        if column < 0:
            # One pseudo-observation of one half on either side keeps probabilities off 0 and 1.
            value = (total + 0.5) / (count + 1.0)
            for i in range(first, last):
                result[asked[i]] += value
            continue
        middle = begin + _partition(rows[begin:end], columns[column], cut)
        between = first + _partition(asked[first:last], queries[column], cut)
        stack.append((begin, middle, first, between))
        stack.append((middle, end, between, last))


@compiled()
@no_type_check
def _best_cut(columns, rows, least_leaf, tries, values, flags, total):
    """Return column and threshold of the best of some random cuts, -1 if no cut leaves both sides enough rows.

    Values and events of the node's rows are gathered once, so that counting them is plain vector code.
    """
    best, column, cut = 0.0, -1, 0.0
    size = len(rows)
    for candidate in range(len(columns)):
        for i in range(size):
            values[i] = columns[candidate, rows[i]]
        for _ in range(tries):
            # Between two random rows: cuts lie where the data lie.
            one = values[np.random.randint(size)]  # noqa: NPY002
            two = values[np.random.randint(size)]  # noqa: NPY002
            threshold = one + np.random.random() * (two - one)  # noqa: NPY002
            count, left = 0, 0
            for i in range(size):
                is_below = np.int64(values[i] <= threshold)
                count += is_below
                left += is_below & flags[i]
            if count < least_leaf or size - count < least_leaf:
                continue
            right = total - left
            score = left * left / count + right * right / (size - count) - total * total / size
            if score > best:
                best, column, cut = score, candidate, threshold
    return column, cut


@compiled()
@no_type_check
def _partition(rows, values, cut):
    front = 0
    for i in range(len(rows)):
        if values[rows[i]] <= cut:
            rows[front], rows[i] = rows[i], rows[front]
            front += 1
    return front
