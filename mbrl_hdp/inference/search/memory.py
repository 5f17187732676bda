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
# An effect that contexts turn round has no mean: it is looked for within so many steps before and after each one.
_AROUND = 8
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
    if max(missing.values(), default=0.0) > MISSING_STATE:
        return _fewest(missing)
    turned = turned_input(rows, inputs, pooled, candidates[-1])
    return next(steps for steps in (0, *candidates) if steps >= turned)


def _fewest(shares: dict[int, float]) -> int:
    """Return the fewest steps that predict almost as well as the best number of them."""
    losses = {steps: 0.5 * np.log(max(1.0 - share, 1e-6)) for steps, share in shares.items()}
    return next(steps for steps, loss in losses.items() if loss <= min(losses.values()) + _WORTH)


def _shares(
    rows: Rows, past: Float[np.ndarray, "M P"], left: Float[np.ndarray, "M Y"], candidates: list[int]
) -> dict[int, float]:
    """Return by number of earlier steps the largest share of a column's residuals that their values explain."""
    earlier = earlier_rows(rows, candidates[-1])
    is_whole = (earlier >= 0).all(0)
    matters = np.sqrt(np.square(left).mean(0)) > _SMALL
    if is_whole.sum() < 10 * candidates[-1] * past.shape[1] or not matters.any():
        return {}
    kept = np.flatnonzero(is_whole)
    left, fold = left[kept][:, matters], rows.fold[kept]
    found = {}
    for steps in candidates:
        design = np.concatenate([past[earlier[n, kept]] for n in range(steps)], 1)
        found[steps] = float(explained_share(design, left, fold).max())
    return found


def turned_input(
    rows: Rows, inputs: Float[np.ndarray, "M A"], left: Float[np.ndarray, "M Y"], most: int
) -> int:  # fmt: skip
    """Return how many steps ago an input acted whose effect differs from time to time, on average none; 0: none did.

    Contexts may turn an actuator round, so that its earlier values explain nothing over the whole data. Around a step
    they do: a slope is fitted to the steps around it, without itself, and must predict more than a local mean does,
    and more than the input at the step itself, which contexts without a delay turn round as well.

    Args:
        rows: the transitions.
        inputs: the actions.
        left: residuals of one context.
        most: steps ago, at most.
    """
    earlier = earlier_rows(rows, most)
    matters = np.sqrt(np.square(left).mean(0)) > _SMALL
    if not inputs.shape[1] or not matters.any():
        return 0
    own = np.arange(len(rows))
    there = [ago for ago in earlier if (ago >= 0).any()]
    shares = [_explained_around(rows, inputs, left[:, matters], ago) for ago in (own, *there)]
    best = int(np.argmax(shares))
    return best if shares[best] > max(shares[0], 0.0) + LATE_INPUT else 0


def _explained_around(
    rows: Rows, inputs: Float[np.ndarray, "M A"], left: Float[np.ndarray, "M Y"], ago: Int[np.ndarray, " M"]
) -> float:
    """Return the largest share of a column's residuals that the slope of some input around each step predicts."""
    is_there = ago >= 0
    one = is_there.astype(float)[:, None]
    target, count = left * one, _around(rows, one)
    mean = _around(rows, target) / np.maximum(count, 1.0)
    usual = left[is_there] - left[is_there].mean(0)
    # The past of a column that drifts is no sign of an input.
    base = np.minimum(np.square(usual).mean(0), np.square(left - mean)[is_there].mean(0))
    best = 0.0
    for values in inputs.T:
        value = np.where(is_there, values[ago], 0.0)[:, None]
        centre = _around(rows, value) / np.maximum(count, 1.0)
        spread = _around(rows, value**2) - count * centre**2
        # One further step of the usual size, of which nothing is known, keeps slopes of few or equal values small.
        slope = (_around(rows, value * target) - count * centre * mean) / (spread + np.square(values).mean())
        error = left - mean - slope * (value - centre)
        best = max(best, float((1.0 - np.square(error[is_there]).mean(0) / base).max()))
    return best


def _around(rows: Rows, values: Float[np.ndarray, "M k"]) -> Float[np.ndarray, "M k"]:
    """Return sums over the steps around each one, itself left out."""
    total = np.cumsum(rows.pad(values), 1)
    num_steps = total.shape[1]
    steps = np.arange(num_steps)
    until = total[:, np.minimum(steps + _AROUND, num_steps - 1)]
    before = np.where((steps > _AROUND)[:, None], total[:, np.maximum(steps - _AROUND - 1, 0)], 0.0)
    return rows.flatten(until - before) - values


def earlier_rows(rows: Rows, steps: int) -> Int[np.ndarray, "n M"]:
    """Return the row of 1, 2, ... steps earlier, -1 where there is none."""
    before = np.append(rows.previous, -1)
    found = [rows.previous]
    for _ in range(steps - 1):
        found.append(before[found[-1]])
    return np.stack(found)


def explained_share(
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
