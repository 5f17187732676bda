"""Where a split begins: windows of steps whose residuals vary with the inputs in the same way belong together."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from mbrl_hdp.inference.search.rows import Rows

WINDOW = 10
_MOST_COLUMNS = 90
_WAVES = 60


def window_of(rows: Rows, window: int = WINDOW, shift: int = 0) -> np.ndarray:
    """Return the number of the window of steps that every row lies in."""
    per_episode = rows.shape[1] // window + 2
    return rows.episode * per_episode + (rows.step + shift) // window


def signed_splits(
    rows: Rows,
    residual: Float[np.ndarray, "M Y"],
    share: Float[np.ndarray, " M"],
    seed: int = 0,
    num_directions: int = 2,
) -> list[Float[np.ndarray, " M"]]:
    """Return scores in [-1, 1] that divide the windows in two, several ways.

    A window is described by sum_t residual_t * feature(x_t). If two contexts differ by d(x), a window of one has the
    description +a, of the other -b, along the same direction wherever they visit the same states; local features
    (random waves) and global ones (polynomials) find different divisions. The scores are the first left singular
    vectors.

    Args:
        rows: data.
        residual: residuals of the context to be divided, scaled to unit variance.
        share: how much every row belongs to it.
        seed: seed of the random waves.
        num_directions: singular vectors of each description.
    """
    window = window_of(rows)
    _, group = np.unique(window, return_inverse=True)
    scores: list[np.ndarray] = []
    clipped = np.clip(residual, -4.0, 4.0) * share[:, None]
    for basis in _bases(rows, seed):
        description = _describe(clipped, basis, group)
        norm = np.linalg.norm(description, axis=1, keepdims=True)
        description = description / (norm + np.median(norm) + 1e-12)
        left = _left_vectors(description)
        for direction in range(min(num_directions, left.shape[1])):
            vector = left[:, direction]
            scores.append(np.tanh(vector / (np.abs(vector).mean() + 1e-12))[group])
    return scores


def _describe(residual: np.ndarray, basis: np.ndarray, group: np.ndarray) -> np.ndarray:
    count = group.max() + 1
    order = np.argsort(group, kind="stable")
    bounds = np.searchsorted(group[order], np.arange(count))
    sums = [
        np.add.reduceat(residual[order, y : y + 1] * basis[order], bounds, axis=0) for y in range(residual.shape[1])
    ]
    return np.concatenate(sums, 1)


def _left_vectors(description: Float[np.ndarray, "W d"]) -> Float[np.ndarray, "W n"]:
    """Return the left singular vectors, largest first, from the smaller of the two Gram matrices."""
    if description.shape[1] <= len(description):
        _, right = np.linalg.eigh(description.T @ description)
        left = description @ right[:, ::-1]
        return left / np.maximum(np.linalg.norm(left, axis=0), 1e-12)
    return np.linalg.eigh(description @ description.T)[1][:, ::-1]


def _bases(rows: Rows, seed: int) -> list[Float[np.ndarray, "M B"]]:
    x = np.clip(rows.coordinates, -3.0, 3.0)
    num_inputs = x.shape[1]
    affine = np.concatenate([np.ones((len(x), 1)), x], 1)
    bases = [affine]
    pairs = [x[:, i] * x[:, j] for i in range(num_inputs) for j in range(i, num_inputs)]
    if len(pairs) + num_inputs + 1 <= _MOST_COLUMNS:
        bases.append(np.concatenate([affine, np.stack(pairs, 1)], 1))
    rng = np.random.default_rng(seed)
    frequency = rng.standard_normal((num_inputs, _WAVES)) * 1.2 / np.sqrt(max(1.0, num_inputs / 3.0))
    phase = rng.uniform(0.0, 2.0 * np.pi, _WAVES)
    bases.append(np.cos(x @ frequency + phase))
    return bases
