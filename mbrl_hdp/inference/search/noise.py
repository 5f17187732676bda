"""Noise of the search: multivariate Student t with full covariance, a scale that depends on the state, and memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.special import gammaln

from mbrl_hdp.inference.search.rows import NUM_FOLDS, Rows

DEGREES = 5.0
# Correlation of two outputs' noise beyond which independent noise counts their evidence twice.
CORRELATED = 0.3


@dataclass
class Noise:
    """What the residuals are divided by.

    Attributes:
        floor: smallest standard deviation, in units of each target's spread.
        covariance: of the residuals after division by `scale`, `Y Y`.
        scale: relative scale of every row and output, `M Y`; None is one.
    """

    floor: float
    covariance: Float[np.ndarray, "Y Y"]
    scale: Float[np.ndarray, "M Y"] | None = None

    def log_density(self, residuals: Float[np.ndarray, "K M Y"]) -> tuple[np.ndarray, np.ndarray]:
        """Return log densities and the weights of robust regression, `M K` each."""
        size = residuals.shape[-1]
        if self.scale is not None:
            residuals = residuals / self.scale
        covariance = self.covariance + self.floor**2 * np.eye(size)
        # The covariance of Student's t is its shape matrix times nu / (nu - 2).
        factor = np.linalg.cholesky(covariance * (DEGREES - 2.0) / DEGREES)
        white = residuals @ np.linalg.inv(factor).T
        square = np.square(white).sum(-1).T
        peak = gammaln(0.5 * (DEGREES + size)) - gammaln(0.5 * DEGREES) - 0.5 * size * np.log(DEGREES * np.pi)
        peak -= np.log(np.diagonal(factor)).sum()
        density = peak - 0.5 * (DEGREES + size) * np.log1p(square / DEGREES)
        if self.scale is not None:
            density -= np.log(self.scale).sum(1)[:, None]
        return density, (DEGREES + size) / (DEGREES + square)

    def largest_correlation(self) -> float:
        """Return the largest correlation of two outputs' noise; noise of the floor's size counts as independent."""
        covariance = self.covariance + self.floor**2 * np.eye(len(self.covariance))
        std = np.sqrt(np.diagonal(covariance))
        correlation = np.abs(covariance / std / std[:, None])
        np.fill_diagonal(correlation, 0.0)
        return float(correlation.max())

    def peak(self) -> float:
        """Return the log density of a residual of zero if nothing but the floor were left."""
        size = len(self.covariance)
        log_peak = gammaln(0.5 * (DEGREES + size)) - gammaln(0.5 * DEGREES) - 0.5 * size * np.log(DEGREES * np.pi)
        return float(log_peak - size * np.log(self.floor * np.sqrt((DEGREES - 2.0) / DEGREES)))

    def update(
        self, residuals: Float[np.ndarray, "K M Y"], weight: Float[np.ndarray, "M K"], robust: np.ndarray
    ) -> None:
        """Set the covariance to its optimum (one step of the t's EM, brought to the covariance)."""
        if self.scale is not None:
            residuals = residuals / self.scale
        total = np.zeros_like(self.covariance)
        for k in range(weight.shape[1]):
            total += (residuals[k] * (weight[:, k] * robust[:, k])[:, None]).T @ residuals[k]
        self.covariance = total / weight.sum() * DEGREES / (DEGREES - 2.0)


def mean_residual(residuals: Float[np.ndarray, "K M Y"], weight: Float[np.ndarray, "M K"]) -> Float[np.ndarray, "M Y"]:
    """Return the residual expected under the context probabilities."""
    return np.einsum("kmy,mk->my", residuals, weight)


def fit_scale(rows: Rows, residual: Float[np.ndarray, "M Y"], floor: float) -> Float[np.ndarray, "M Y"]:
    """Return a relative scale for every row and output, log-linear in x, |x| and x^2, cross-fitted.

    The regression is on log(residual^2 + small): robust, and right up to a constant, which is divided out.
    """
    x = rows.inputs
    design = np.concatenate([np.ones((len(x), 1)), x, np.abs(x), np.minimum(np.square(x), 9.0)], 1)
    spread = np.sqrt(np.square(residual).mean(0)) + floor
    log_square = np.log(np.square(residual) + np.square(0.1 * spread + 0.3 * floor))
    prediction = np.empty_like(log_square)
    for index in rows.fold_rows:
        others = np.ones(len(x), dtype=bool)
        others[index] = False
        gram = design[others].T @ design[others] + 10.0 * np.eye(design.shape[1])
        prediction[index] = design[index] @ np.linalg.solve(gram, design[others].T @ log_square[others])
    prediction -= np.median(prediction, 0)
    return np.exp(0.5 * np.clip(prediction, -4.0, 4.0))


def predict_from_past(rows: Rows, residual: Float[np.ndarray, "M Y"], lags: int = 2) -> Float[np.ndarray, "M Y"]:
    """Return what the residuals of the last `lags` steps say about every row's, by cross-fitted regression."""
    past, before = [], rows.previous
    values = np.concatenate([residual, np.zeros((1, residual.shape[1]))])
    index = before
    for _ in range(lags):
        past.append(values[index])
        index = np.where(index >= 0, np.append(before, -1)[index], -1)
    design = np.concatenate(past, 1)
    prediction = np.empty_like(residual)
    for fold in range(NUM_FOLDS):
        others = rows.fold != fold
        gram = design[others].T @ design[others]
        gram += (1e-3 * np.trace(gram) / len(gram) + 1e-12) * np.eye(len(gram))
        head = np.linalg.solve(gram, design[others].T @ residual[others])
        prediction[~others] = design[~others] @ head
    return prediction
