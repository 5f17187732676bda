"""Contexts that differ in their noise only: calm and rough times of one and the same head."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float

from mbrl_hdp.inference.search.em import start_state
from mbrl_hdp.inference.search.noise import Noise
from mbrl_hdp.inference.search.regions import gated_evidence, region_share
from mbrl_hdp.inference.search.rows import Rows
from mbrl_hdp.probability.hmm import smooth
from mbrl_hdp.types import ContextChain

_NUM_STEPS = 30
# Steps over which the size of the residuals is averaged to begin with.
_WINDOW = 15
# Both levels last for ten steps on average and act for a twentieth of the time, at least.
_LEAST_STAY = 0.9
_LEAST_SHARE = 0.05
# The rough one has at least this many times the variance of the calm one in some direction.
_LEAST_RATIO = 2.0
# State and action explain at most this share of when a level is left: otherwise a head is too small for a region.
_MOST_REGION = 0.1
# Nats a row over one level, and over levels that state and action decide, at least.
_LEAST_GAIN = 0.03
# Residuals below this share of the usual changes are what a head cannot express rather than noise.
_LEAST_SIZE = 0.1
_ERRORS = 3.0


@dataclass(frozen=True)
class NoiseLevels:
    """Two levels of noise, the calm one first.

    Attributes:
        probability: probability of each at every step, `N T 2`; rows of zeros where nothing was observed.
        transition: their chain.
    """

    probability: Float[np.ndarray, "N T 2"]
    transition: Float[np.ndarray, "2 2"]


def noise_levels(
    rows: Rows, residual: Float[np.ndarray, "M Y"], floor: float, null: Float[np.ndarray, " N"]
) -> NoiseLevels | None:
    """Divide the residuals of one context into two levels of noise that last; None where the data knows only one.

    Args:
        rows: the transitions.
        residual: what the head of the only context leaves over.
        floor: smallest noise.
        null: log evidence of every episode under one context whose noise may depend on the state and have a memory.
    """
    weight = _first_levels(rows, residual)
    noises = [Noise(floor, np.eye(residual.shape[1])) for _ in range(2)]
    transition = np.array([[0.95, 0.05], [0.05, 0.95]])
    evidence, density = np.full(len(null), -np.inf), np.zeros((len(rows), 2))
    for _ in range(_NUM_STEPS):
        density = _density(noises, residual, weight)
        chain = ContextChain(torch.full((2,), 0.5, dtype=torch.float64), torch.as_tensor(transition))
        found = smooth(chain, torch.as_tensor(rows.pad(density)), rows.length_tensor)
        weight, last = rows.flatten(found.marginals.numpy()), evidence.sum()
        evidence = found.log_evidence.numpy()
        counts = found.expected_transitions.numpy() + 1.0
        transition = counts / counts.sum(1, keepdims=True)
        if evidence.sum() - last < 1e-4 * len(rows):
            break
    gain = (evidence - null).sum() / len(rows)
    error = float((evidence - null).std()) * np.sqrt(len(null)) / len(rows)
    levels = start_state(rows, weight, floor)
    levels.log_lik = density
    beyond_gate = (evidence - gated_evidence(rows, levels, (0, 1))).sum() / len(rows)
    ratio = np.linalg.eigvals(np.linalg.solve(noises[0].covariance, noises[1].covariance)).real
    is_noise = (
        gain > max(_LEAST_GAIN, _ERRORS * error)
        and beyond_gate > _LEAST_GAIN
        and np.sqrt(np.square(residual).mean(0)).max() > _LEAST_SIZE
        and np.diagonal(transition).min() > _LEAST_STAY
        and weight.mean(0).min() > _LEAST_SHARE
        and max(ratio.max(), 1.0 / max(ratio.min(), 1e-12)) > _LEAST_RATIO
        and max(region_share(rows, weight.argmax(1), level) for level in range(2)) < _MOST_REGION
    )
    return NoiseLevels(rows.pad(weight), transition) if is_noise else None


def _first_levels(rows: Rows, residual: Float[np.ndarray, "M Y"]) -> Float[np.ndarray, "M 2"]:
    """Begin with the steps around which residuals are smaller, and larger, than in the middle."""
    covariance = np.cov(residual.T).reshape(residual.shape[1], -1) + 1e-12 * np.eye(residual.shape[1])
    size = np.log(np.einsum("my,my->m", residual @ np.linalg.inv(covariance), residual) + 1e-6)
    is_row = rows.pad(np.ones(len(rows)))
    total = np.apply_along_axis(np.convolve, 1, rows.pad(size), np.ones(_WINDOW), "same")
    count = np.apply_along_axis(np.convolve, 1, is_row, np.ones(_WINDOW), "same")
    around = rows.flatten(total / np.maximum(count, 1.0))
    is_rough = (around > np.median(around)).astype(float)
    return np.stack([0.9 - 0.8 * is_rough, 0.1 + 0.8 * is_rough], 1)


def _density(noises: list[Noise], residual: np.ndarray, weight: np.ndarray) -> Float[np.ndarray, "M 2"]:
    """Fit the noise of each level; return the log density of every row in both."""
    columns = []
    for noise, share in zip(noises, weight.T, strict=True):
        robust = noise.log_density(residual[None])[1]
        noise.update(residual[None], share[:, None], robust)
        columns.append(noise.log_density(residual[None])[0][:, 0])
    return np.stack(columns, 1)
