"""Episodes of different lengths as one array."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mbrl_hdp.data.checks import number_array
from mbrl_hdp.errors import DataError

if TYPE_CHECKING:
    from mbrl_hdp.data.trajectories import Episode


def episode_length(index: int, episode: Episode) -> int:
    """Count transitions; padding would hide arrays of one episode that do not fit together, so look before it."""
    length = np.atleast_1d(number_array("obs", episode.obs)).shape[0] - 1
    for name in ("act", "context", "reward"):
        value = getattr(episode, name)
        shape = (length,) if value is None else number_array(name, value).shape
        if shape[:1] != (length,):
            raise DataError(
                f"{name} of episode {index} has shape {list(shape)}, but {length + 1} observations make "
                f"{length} transitions"
            )
    return length


def stack(values: list[Any], name: str) -> np.ndarray | None:
    """Pad `L ...` arrays of several episodes with zeros to one `N max(L) ...` array; None if all of them are None."""
    missing = [index for index, value in enumerate(values) if value is None]
    if len(missing) == len(values):
        return None
    if missing:
        raise DataError(f"{name} is given for some episodes but not for episode {missing[0]}: give it for all or none")
    arrays = [number_array(name, value) for value in values]
    for index, array in enumerate(arrays):
        if array.shape[1:] != arrays[0].shape[1:] or array.ndim != arrays[0].ndim:
            raise DataError(
                f"{name} of episode {index} has shape {list(array.shape)}, episode 0 {list(arrays[0].shape)}"
            )
    if arrays[0].ndim == 0:
        return np.stack(arrays)
    shape = (len(arrays), max(map(len, arrays)), *arrays[0].shape[1:])
    padded = np.zeros(shape, np.result_type(*arrays))
    for row, array in zip(padded, arrays, strict=True):
        row[: len(array)] = array
    return padded
