"""Is the belief right as often as it says? A reliability diagram against the true contexts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

_NORMAL = 1.96
"""97.5 % quantile of the standard normal distribution."""


@dataclass(frozen=True)
class Bin:
    """Steps whose largest probability lies in one interval.

    Attributes:
        count: how many steps.
        predicted: mean of their largest probability.
        right: share of them in which that context was the true one.
        low: lower end of the 95 % interval of that share (Wilson's), as if steps were independent.
        high: its upper end.
    """

    count: int
    predicted: float
    right: float
    low: float
    high: float


@dataclass(frozen=True)
class Calibration:
    """How well probabilities agree with frequencies.

    Attributes:
        bins: those that hold steps, from the lowest probability to the highest.
        error: mean distance between predicted probability and frequency, weighted by steps.
    """

    bins: list[Bin]
    error: float


def calibrate(
    belief: Float[np.ndarray, "N T k"], truth: Int[np.ndarray, "N T"], to_true: Sequence[int], num_bins: int = 10
) -> Calibration | None:
    """Compare the largest probability of every step with how often it is right; None if no step has a known truth.

    Args:
        belief: probabilities of the contexts; NaN beyond an episode's end.
        truth: true contexts, -1 where unknown.
        to_true: true context that every learned one was matched to, -1 for none.
        num_bins: intervals of equal width between 0 and 1.
    """
    is_known = (truth >= 0) & np.isfinite(belief).all(-1)
    if not is_known.any():
        return None
    chosen = belief[is_known]
    predicted = np.clip(chosen.max(-1), 0.0, 1.0)
    right = np.asarray(to_true)[chosen.argmax(-1)] == truth[is_known]
    place = np.minimum((predicted * num_bins).astype(int), num_bins - 1)
    bins = [_bin(predicted[place == number], right[place == number]) for number in np.unique(place)]
    error = sum(each.count * abs(each.predicted - each.right) for each in bins) / len(predicted)
    return Calibration(bins, float(error))


def _bin(predicted: Float[np.ndarray, " n"], right: np.ndarray) -> Bin:
    count, share = len(right), float(right.mean())
    centre = (share + _NORMAL**2 / (2 * count)) / (1 + _NORMAL**2 / count)
    half = _NORMAL * np.sqrt(share * (1 - share) / count + _NORMAL**2 / (4 * count**2)) / (1 + _NORMAL**2 / count)
    return Bin(count, float(predicted.mean()), share, float(max(centre - half, 0.0)), float(min(centre + half, 1.0)))
