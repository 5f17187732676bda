"""Readings that jump away and come back at once: spikes of a sensor, which hide contexts from models with normal noise.

`mbrl-hdp fit log.csv obs=[level,flow] spikes=drop` leaves them out; in Python, `without_spikes(data)` does.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float

from mbrl_hdp.data.trajectories import Trajectories

# A spike lies this many usual deviations away from the line through its four neighbours ...
_FAR = 12.0
# ... and this many times as far as any of them: where a pump turns a level round within a step, three times.
_FARTHER = 6.0
# Spikes are rare: a column with more of them moves that way.
_MOST_SHARE = 0.05
_USUAL = 1.4826  # standard deviations in a median absolute deviation of normal numbers
_PLACES = (-2, -1, 1, 2)


def is_spike(data: Trajectories) -> Bool[np.ndarray, "N T1 S"]:
    """Mark readings that lie far from the line through their neighbours; none in a column where these are not rare.

    The first two and the last two readings of an episode are not judged, and spikes beside each other hide each other.
    """
    is_read = (np.arange(data.max_steps + 1) <= data.lengths[:, None])[..., None]
    obs: Float[np.ndarray, "N T1 S"] = np.where(is_read, data.obs, np.nan)
    if data.max_steps < len(_PLACES):
        return np.zeros(obs.shape, dtype=bool)
    marked = _is_far(obs)
    return marked & (marked.sum((0, 1)) <= _MOST_SHARE * (data.lengths + 1).sum())


def _is_far(obs: Float[np.ndarray, "N T1 S"]) -> Bool[np.ndarray, "N T1 S"]:
    """Mark readings far from the least-squares line through the two before and the two after, which lie close to it."""
    size = obs.shape[1] - 4
    near = np.stack([obs[:, 2 + place : 2 + place + size] for place in _PLACES])
    places = np.array(_PLACES, float)[:, None, None, None]
    slope = (places * near).sum(0) / (places**2).sum()
    spread = np.abs(near - near.mean(0) - slope * places).max(0)
    away = np.abs(obs[:, 2:-2] - near.mean(0))
    usual, marked = _usual(obs), np.zeros(obs.shape, dtype=bool)
    marked[:, 2:-2] = (usual > 0.0) & (away > _FAR * usual) & (away > _FARTHER * spread)
    return marked


def _usual(obs: Float[np.ndarray, "N T1 S"]) -> Float[np.ndarray, " S"]:
    """Return how far readings of each column usually lie from the mean of their neighbours; 0 where none is known."""
    away = obs[:, 1:-1] - 0.5 * (obs[:, :-2] + obs[:, 2:])
    columns = [column[np.isfinite(column)] for column in away.reshape(-1, obs.shape[2]).T]
    return np.array(
        [_USUAL * float(np.median(np.abs(each - np.median(each)))) if each.size else 0.0 for each in columns]
    )


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
