"""A cell of `theorem1`: distil random chains and compare with the chain itself, watched only in the kept contexts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mbrl_hdp.probability.markov import distilled_transition, stationary

if TYPE_CHECKING:
    from mbrl_hdp.experiments.studies.study import Results, Settings

Matrix = np.ndarray[Any, Any]


def run(settings: Settings) -> Results:
    """Return, for every random chain, how far each statement of the theorem is from being exact."""
    rng = np.random.default_rng(settings["seed"])
    found: dict[str, list[float]] = {"rows": [], "formula": [], "proportions": [], "watched_z": [], "spurious": []}
    for _ in range(settings["num_chains"]):
        chain, keep = _random_chain(rng, settings["num_contexts"], settings["num_spurious"])
        reduced = distilled_transition(torch.from_numpy(chain), torch.from_numpy(keep)).numpy()
        full = stationary(torch.from_numpy(chain)).numpy()
        found["rows"].append(float(np.abs(reduced.sum(1) - 1.0).max()))
        found["formula"].append(float(np.abs(reduced - _theorem(chain, keep)).max()))
        own = stationary(torch.from_numpy(reduced)).numpy()
        found["proportions"].append(float(np.abs(own - full[keep] / full[keep].sum()).max()))
        found["watched_z"].append(_watched(chain, keep, reduced, rng, settings["num_steps"]))
        found["spurious"].append(float(full[~keep].sum()))
    return found


def _random_chain(rng: np.random.Generator, size: int, num_spurious: int) -> tuple[Matrix, Matrix]:
    """Draw a sticky chain some contexts of which are rarely entered and soon left."""
    chain = rng.dirichlet(np.full(size, 0.5), size) + 4.0 * np.eye(size)
    keep = np.arange(size) >= num_spurious
    chain[:, ~keep] *= 0.02
    chain /= chain.sum(1, keepdims=True)
    order = rng.permutation(size)
    return chain[order][:, order], keep[order]


def _theorem(chain: Matrix, keep: Matrix) -> Matrix:
    """Return R11 + R12 (I - R22)^-1 R21 as it is printed, by a linear solver."""
    inside, out = chain[np.ix_(keep, keep)], chain[np.ix_(keep, ~keep)]
    stay, back = chain[np.ix_(~keep, ~keep)], chain[np.ix_(~keep, keep)]
    found: Matrix = inside + out @ np.linalg.solve(np.eye(len(stay)) - stay, back)
    return found


def _watched(chain: Matrix, keep: Matrix, reduced: Matrix, rng: np.random.Generator, num_steps: int) -> float:
    """Simulate the chain, drop the steps in other contexts, and compare the counted moves with the distilled rows.

    Returns:
        The largest deviation of a counted frequency, in standard errors.
    """
    cumulative = chain.cumsum(1)
    draws = rng.random(num_steps)
    path = np.empty(num_steps, dtype=np.int64)
    state = 0
    for step in range(num_steps):
        state = min(int(np.searchsorted(cumulative[state], draws[step])), len(chain) - 1)
        path[step] = state
    place = np.cumsum(keep) - 1
    seen = place[path[keep[path]]]
    counts = np.zeros_like(reduced)
    np.add.at(counts, (seen[:-1], seen[1:]), 1.0)
    visits = np.maximum(counts.sum(1, keepdims=True), 1.0)
    error = np.sqrt(np.maximum(reduced * (1.0 - reduced), 1e-12) / visits)
    return float((np.abs(counts / visits - reduced) / np.maximum(error, 1.0 / visits)).max())
