"""Readings that jump away and come back at once: spikes of a sensor, which hide contexts from models with normal noise.

`mbrl-hdp fit log.csv obs=[level,flow] spikes=drop` leaves them out; in Python, `without_spikes(data)` does.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float

from mbrl_hdp.data.trajectories import Trajectories

# A spike lies this many usual deviations away from the mean of its neighbours ...
_FAR = 12.0
# ... and this many times as far as nine in ten readings move in a step: a pump that is reversed turns a level round
# within a step, but no further away than it moves anyway.
_FASTER = 3.0
_MOST_MOVES = 0.9
# Spikes are rare: a column with more of them moves that way.
MOST_SHARE = 0.05
_USUAL = 1.4826  # standard deviations in a median absolute deviation of normal numbers


def is_spike(data: Trajectories) -> Bool[np.ndarray, "N T1 S"]:
    """Mark readings that lie far from both neighbours, which are close to each other; none where these are not rare."""
    obs: Float[np.ndarray, "N T1 S"] = np.where(
        (np.arange(data.max_steps + 1) <= data.lengths[:, None])[..., None], data.obs, np.nan
    )
    marked = np.zeros(obs.shape, dtype=bool)
    if data.max_steps < 2:
        return marked
    away = obs[:, 1:-1] - 0.5 * (obs[:, :-2] + obs[:, 2:])
    for column in range(data.obs_dim):
        least = _least(away[..., column], np.diff(obs[..., column], axis=1))
        if least > 0.0:
            with np.errstate(invalid="ignore"):
                is_far = np.abs(away[..., column]) > least
                is_back = np.abs(obs[:, 2:, column] - obs[:, :-2, column]) < np.abs(away[..., column])
            marked[:, 1:-1, column] = is_far & is_back
    is_rare = marked.sum((0, 1)) <= MOST_SHARE * (data.lengths + 1).sum()
    return marked & is_rare


def without_spikes(data: Trajectories) -> Trajectories:
    """Return the same episodes with spikes as missing readings (NaN).

    Example:
        >>> model = mbrl_hdp.fit(without_spikes(data))
    """
    marked = is_spike(data)
    if not marked.any():
        return data
    obs = np.where(marked, np.nan, data.obs)
    arrays = {name: getattr(data, name) for name in ("act", "lengths", "context", "reward", "terminated")}
    return Trajectories(obs=obs, **arrays, allow_missing=True, names=data.names)


def _least(away: Float[np.ndarray, "N T"], moves: Float[np.ndarray, "N T"]) -> float:
    """Return how far away a spike of this column lies at least; 0 where that cannot be known."""
    away, moves = away[np.isfinite(away)], np.abs(moves[np.isfinite(moves)])
    if not away.size:
        return 0.0
    usual = _USUAL * float(np.median(np.abs(away - np.median(away))))
    return max(_FAR * usual, _FASTER * float(np.quantile(moves, _MOST_MOVES)))
