"""Prediction errors in units of how much every column changes; columns that never change do not count."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from mbrl_hdp.data.trajectories import Trajectories

_ROUNDING = 8.0 * float(np.finfo(np.float32).eps)


def scaled_errors(predicted: Float[np.ndarray, "N T S"], data: Trajectories) -> Float[np.ndarray, "M S2"]:
    """Return the errors of observed transitions over the spread of the changes, one column for each that varies.

    A column whose changes differ by less than the rounding of its values (single precision) is constant: dividing by
    its spread would turn rounding errors into an error of any size.
    """
    keep = data.is_observed
    next_obs = data.obs[:, 1:][keep]
    spread = (next_obs - data.obs[:, :-1][keep]).std(0)
    varies = spread > _ROUNDING * np.abs(next_obs).max(0, initial=0.0)
    if not varies.any():
        return np.zeros((len(next_obs), 1))
    return (predicted[keep] - next_obs)[:, varies] / spread[varies]
