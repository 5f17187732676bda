"""Heads linear in the features, by weighted ridge, each fold predicted from the others."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from scipy.linalg.lapack import dposv

from mbrl_hdp.inference.search.rows import LEAST_WEIGHT, NUM_FOLDS, Rows


def cross_predict(
    rows: Rows,
    features: Float[np.ndarray, "M D"],
    targets: Float[np.ndarray, "M Y"],
    weight: Float[np.ndarray, "M K"],
    ridge: float,
) -> Float[np.ndarray, "K M Y"]:
    """Return what every context predicts for every row, from the rows of the other folds."""
    num_contexts, width, size = weight.shape[1], features.shape[1], targets.shape[1]
    grams = np.empty((num_contexts, NUM_FOLDS, width, width))
    moments = np.empty((num_contexts, NUM_FOLDS, width, size))
    for fold, index in enumerate(rows.fold_rows):
        for context in range(num_contexts):
            used = index[weight[index, context] > LEAST_WEIGHT]
            root = np.sqrt(weight[used, context])[:, None]
            scaled = features[used] * root
            # A matrix times its own transpose costs half of another product.
            grams[context, fold], moments[context, fold] = scaled.T @ scaled, scaled.T @ (targets[used] * root)
    predictions = np.empty((num_contexts, *targets.shape))
    gram, moment = grams.sum(1), moments.sum(1)
    for fold, index in enumerate(rows.fold_rows):
        others = zip(gram - grams[:, fold], moment - moments[:, fold], strict=True)
        heads = np.concatenate([solve_ridge(*other, ridge) for other in others], 1)
        found = (features[index] @ heads).reshape(len(index), num_contexts, size)
        predictions[:, index] = found.transpose(1, 0, 2)
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
