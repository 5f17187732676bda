"""The past as further inputs, for logs in which a part of the state is not recorded or an input acts late."""

from __future__ import annotations

import dataclasses

import numpy as np

from mbrl_hdp.data.names import Names
from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.errors import DataError


def with_past(data: Trajectories, steps: int) -> Trajectories:
    """Add the changes and actions of the last `steps` steps to the actions of every step.

    A model that is learned from this predicts the same observations, but knows what happened before: a velocity that
    no sensor measures shows in the last change of the position, a valve with dead time in its earlier openings. The
    first `steps` transitions of an episode have no such past: they count as not observed, and still get a label.

    Args:
        data: episodes, each longer than `steps`.
        steps: how many earlier steps; 0 returns the data.

    Raises:
        DataError: if no episode is long enough.

    Example:
        >>> model = mbrl_hdp.fit(data.with_past(2))
    """
    if steps < 0:
        raise DataError(f"with_past: the number of steps must be at least 0, got {steps}")
    if steps == 0:
        return data
    if data.lengths.max() <= steps:
        raise DataError(f"past={steps}: no episode has more than {steps} transitions; use fewer steps")
    changes = data.obs[:, 1:] - data.obs[:, :-1]
    act = np.concatenate([data.act, *(_ago(part, n) for n in range(1, steps + 1) for part in (changes, data.act))], -1)
    names = data.names or Names.numbered(data.obs_dim, data.act_dim)
    return data.with_actions(act, with_past_names(names, steps))


def with_past_names(names: Names, steps: int) -> Names:
    """Return names with those of the further inputs, in order: `temp_change_ago_1`, `valve_ago_1`, ..."""
    past = [
        name
        for n in range(1, steps + 1)
        for name in (*(f"{each}_change_ago_{n}" for each in names.obs), *(f"{each}_ago_{n}" for each in names.act))
    ]
    return dataclasses.replace(names, act=(*names.act, *past))


def past_width(obs_dim: int, act_dim: int, steps: int) -> int:
    """Return the width of actions with the past of so many steps, of which the present one has `act_dim`."""
    return act_dim + steps * (obs_dim + act_dim)


def _ago(values: np.ndarray, steps: int) -> np.ndarray:
    """Return the values of so many steps earlier, NaN before the first."""
    earlier = np.full_like(values, np.nan)
    earlier[:, steps:] = values[:, : values.shape[1] - steps]
    return earlier
