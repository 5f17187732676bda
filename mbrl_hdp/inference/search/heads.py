"""Heads linear in the features, by weighted ridge, each fold predicted from the others."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from scipy.linalg.lapack import dposv

from mbrl_hdp.inference.search.rows import NUM_FOLDS, Rows

# Rows that belong to a context less than this are left out of its head: the cost then hardly grows with the contexts.
_LEAST_WEIGHT = 1e-3


def cross_predict(
    rows: Rows,
    features: Float[np.ndarray, "M D"],
    targets: Float[np.ndarray, "M Y"],
    weight: Float[np.ndarray, "M K"],
    ridge: float,
) -> Float[np.ndarray, "K M Y"]:
    """Return what every context predicts for every row, from the rows of the other folds."""
    num_contexts, width = weight.shape[1], features.shape[1]
    predictions = np.empty((num_contexts, *targets.shape))
    for context in range(num_contexts):
        grams = np.empty((NUM_FOLDS, width, width))
        moments = np.empty((NUM_FOLDS, width, targets.shape[1]))
        for fold, index in enumerate(rows.fold_rows):
            used = index[weight[index, context] > _LEAST_WEIGHT]
            part = features[used]
            scaled = part * weight[used, context : context + 1]
            grams[fold], moments[fold] = scaled.T @ part, scaled.T @ targets[used]
        gram, moment = grams.sum(0), moments.sum(0)
        for fold, index in enumerate(rows.fold_rows):
            head = solve_ridge(gram - grams[fold], moment - moments[fold], ridge)
            predictions[context, index] = features[index] @ head
    return predictions


def solve_ridge(gram: np.ndarray, moment: np.ndarray, ridge: float) -> Float[np.ndarray, "D Y"]:
    """Solve (gram + ridge) head = moment, with more ridge where rounding asks for it."""
    diagonal = np.arange(len(gram))
    while True:
        matrix = gram.copy()
        matrix[diagonal, diagonal] += ridge
        # LAPACK itself: for matrices this small scipy's checks cost more than the solution.
        _, head, failure = dposv(matrix, moment, lower=1)
        if failure == 0:
            return np.asarray(head)
        ridge *= 100.0
