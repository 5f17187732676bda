"""Readings that jump away and come back at once: spikes of a sensor hide contexts, since models have normal noise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Bool, Float

from mbrl_hdp.data.trajectories import Trajectories

# A spike lies this many usual deviations away from the mean of its neighbours ...
_FAR = 12.0
# ... and is rare; a column in which more readings do so moves that way.
_MOST_SHARE = 0.05
_FEWEST = 5
_USUAL = 1.4826  # standard deviations in a median absolute deviation of normal numbers


def is_spike(data: Trajectories) -> Bool[np.ndarray, "N T1 S"]:
    """Mark readings that lie far from both neighbours, which are close to each other."""
    obs: Float[np.ndarray, "N T1 S"] = np.where(
        (np.arange(data.max_steps + 1) <= data.lengths[:, None])[..., None], data.obs, np.nan
    )
    marked = np.zeros(obs.shape, dtype=bool)
    away = obs[:, 1:-1] - 0.5 * (obs[:, :-2] + obs[:, 2:])
    for column in range(data.obs_dim):
        known = away[..., column][np.isfinite(away[..., column])]
        usual = _USUAL * float(np.median(np.abs(known - np.median(known)))) if known.size else 0.0
        if usual > 0.0:
            with np.errstate(invalid="ignore"):
                is_far = np.abs(away[..., column]) > _FAR * usual
                is_back = np.abs(obs[:, 2:, column] - obs[:, :-2, column]) < np.abs(away[..., column])
            marked[:, 1:-1, column] = is_far & is_back
    return marked


def sensor_spikes(data: Trajectories, names: Sequence[str]) -> Iterator[str]:
    """Yield a sentence if a few readings of some columns jump away and come back."""
    counts = is_spike(data).sum((0, 1))
    total = int((data.lengths + 1).sum())
    found = [
        f"{name} ({count} readings)"
        for name, count in zip(names, counts.tolist(), strict=True)
        if _FEWEST <= count <= _MOST_SHARE * total
    ]
    if found:
        yield (
            f"readings jump away and come back at once in {', '.join(found)}: if these are spikes of the sensor, empty "
            "these cells and set allow_missing=true; spikes hide contexts"
        )
