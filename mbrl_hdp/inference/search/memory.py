"""Does the past predict what the heads leave over? Then a part of the state is not recorded, or an input acts late."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from mbrl_hdp.inference.search.rows import NUM_FOLDS, Rows

# Numbers of earlier steps that are compared; more are taken only where they gain so many nats a step.
STEPS = (1, 2, 3, 5, 8)
_WORTH = 0.05
# An input acts late if its earlier values explain this share of what one context leaves over in some column ...
LATE_INPUT = 0.1
# ... and a state is missing if earlier changes and inputs explain this share of what the contexts leave over. Noise of
# a sensor enters two neighbouring changes, which explains less than half.
MISSING_STATE = 0.6
# Residuals below this share of the usual changes do not matter.
_SMALL = 0.03
# Further inputs that a search can do with.
_MOST_INPUTS = 40


def past_steps(rows: Rows, obs_dim: int, pooled: Float[np.ndarray, "M Y"], final: Float[np.ndarray, "M Y"]) -> int:
    """Return how many earlier steps promise to explain what is left over; 0: none does.

    Contexts that last are no memory of the inputs, and explain themselves what earlier changes say about them, so
    neither test takes them for an incomplete state.

    Args:
        rows: the transitions.
        obs_dim: observation columns; the inputs after them are actions.
        pooled: residuals of one context.
        final: residuals of the contexts that were found, each row's under its own.
    """
    actions = np.flatnonzero(rows.input_columns >= obs_dim)
    inputs = rows.inputs[:, actions]
    width = rows.targets.shape[1] + len(actions)
    candidates = [steps for steps in STEPS if steps == 1 or steps * width <= _MOST_INPUTS]
    both = np.concatenate([rows.targets, inputs], 1)
    late = _shares(rows, inputs, pooled, candidates) if len(actions) else {}
    missing = _shares(rows, both, final, candidates)
    if max(late.values(), default=0.0) > LATE_INPUT:
        return _fewest(_shares(rows, both, pooled, candidates))
    return _fewest(missing) if max(missing.values(), default=0.0) > MISSING_STATE else 0


def _fewest(shares: dict[int, float]) -> int:
    """Return the fewest steps that predict almost as well as the best number of them."""
    losses = {steps: 0.5 * np.log(max(1.0 - share, 1e-6)) for steps, share in shares.items()}
    return next(steps for steps, loss in losses.items() if loss <= min(losses.values()) + _WORTH)


def _shares(
    rows: Rows, past: Float[np.ndarray, "M P"], left: Float[np.ndarray, "M Y"], candidates: list[int]
) -> dict[int, float]:
    """Return by number of earlier steps the largest share of a column's residuals that their values explain."""
    earlier = _earlier(rows, candidates[-1])
    is_whole = (earlier >= 0).all(0)
    matters = np.sqrt(np.square(left).mean(0)) > _SMALL
    if is_whole.sum() < 10 * candidates[-1] * past.shape[1] or not matters.any():
        return {}
    kept = np.flatnonzero(is_whole)
    left, fold = left[kept][:, matters], rows.fold[kept]
    found = {}
    for steps in candidates:
        design = np.concatenate([past[earlier[n, kept]] for n in range(steps)], 1)
        found[steps] = float(_explained(design, left, fold).max())
    return found


def _earlier(rows: Rows, steps: int) -> Int[np.ndarray, "n M"]:
    """Return the row of 1, 2, ... steps earlier, -1 where there is none."""
    before = np.append(rows.previous, -1)
    found = [rows.previous]
    for _ in range(steps - 1):
        found.append(before[found[-1]])
    return np.stack(found)


def _explained(
    design: Float[np.ndarray, "m D"], left: Float[np.ndarray, "m Y"], fold: Int[np.ndarray, " m"]
) -> Float[np.ndarray, " Y"]:
    """Return the share of the variance of every column that a cross-fitted linear regression explains."""
    design = np.concatenate([np.ones((len(design), 1)), design], 1)
    error = left - left.mean(0)
    total = np.square(error).mean(0)
    for number in range(NUM_FOLDS):
        mine = fold == number
        gram = design[~mine].T @ design[~mine] + np.eye(design.shape[1])
        error[mine] = left[mine] - design[mine] @ np.linalg.solve(gram, design[~mine].T @ left[~mine])
    return 1.0 - np.square(error).mean(0) / total
