"""Scores against the truth and on held-out data: alignment, accuracy, transition error, switch delay."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from scipy.optimize import linear_sum_assignment


@dataclass(frozen=True)
class Alignment:
    """The one-to-one matching of learned contexts to true ones that agrees most often (Hungarian method).

    Attributes:
        to_true: true context matched to each learned one, -1 where none is left, `k`.
        accuracy: share of labelled steps whose matched label is right.
        confusion: number of steps by learned (rows) and true (columns) context.
    """

    to_true: Int[np.ndarray, " k"]
    accuracy: float
    confusion: Int[np.ndarray, "k c"]


def align(labels: Int[np.ndarray, "*n"], truth: Int[np.ndarray, "*n"]) -> Alignment:
    """Match learned to true contexts; steps labelled -1 on either side do not count.

    Example:
        >>> align(np.array([2, 2, 0, 0]), np.array([0, 0, 1, 1])).accuracy
        1.0
    """
    is_known = (labels >= 0) & (truth >= 0)
    learned, true = labels[is_known], truth[is_known]
    if learned.size == 0:
        return Alignment(np.zeros(0, dtype=np.int64), float("nan"), np.zeros((0, 0), dtype=np.int64))
    confusion = np.zeros((int(learned.max()) + 1, int(true.max()) + 1), dtype=np.int64)
    np.add.at(confusion, (learned, true), 1)
    rows, columns = linear_sum_assignment(-confusion)
    to_true = np.full(len(confusion), -1, dtype=np.int64)
    to_true[rows] = columns
    return Alignment(to_true, float(confusion[rows, columns].sum() / learned.size), confusion)


def empirical_transition(truth: Int[np.ndarray, "N T"], num_contexts: int | None = None) -> Float[np.ndarray, "c c"]:
    """Count the true moves and normalise every row; a context never left has a row of NaN."""
    before, after = truth[:, :-1], truth[:, 1:]
    is_known = (before >= 0) & (after >= 0)
    size = num_contexts or int(truth.max()) + 1
    counts = np.zeros((size, size))
    np.add.at(counts, (before[is_known], after[is_known]), 1.0)
    with np.errstate(invalid="ignore"):
        return counts / counts.sum(-1, keepdims=True)


def transition_error(
    learned: Float[np.ndarray, "k k"], truth: Float[np.ndarray, "c c"], to_true: Int[np.ndarray, " m"]
) -> float:
    """Return the largest absolute difference between matched entries of the learned and the true matrix."""
    matched = [k for k in range(len(learned)) if k < len(to_true) and to_true[k] >= 0]
    if not matched:
        return float("nan")
    true_index = to_true[matched]
    difference = learned[np.ix_(matched, matched)] - truth[np.ix_(true_index, true_index)]
    return float(np.nanmax(np.abs(difference)))


def switch_delays(labels: Int[np.ndarray, "N T"], truth: Int[np.ndarray, "N T"]) -> Int[np.ndarray, " switches"]:
    """Return, for every true switch, the steps until the label is right; a missed one counts its whole dwell.

    Args:
        labels: arg max of the filter, already in the true contexts' numbering; -1 beyond an episode's end.
        truth: true contexts, -1 beyond an episode's end.
    """
    delays = []
    for label, true in zip(labels, truth, strict=True):
        length = int((true >= 0).sum())
        starts = [t for t in range(1, length) if true[t] != true[t - 1]]
        for start, end in zip(starts, [*starts[1:], length], strict=False):
            right = np.flatnonzero(label[start:end] == true[start])
            delays.append(int(right[0]) if right.size else end - start)
    return np.asarray(delays, dtype=np.int64)
