"""Columns that are angles and jump back after a whole turn, as compasses and joint sensors log them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from mbrl_hdp.data.logs import Log, count_of
from mbrl_hdp.data.trajectories import Trajectories

# One turn -> how numpy makes an angle in these units go on beyond it, in radians.
TURNS = {2.0 * np.pi: "numpy.unwrap(...)", 360.0: "numpy.unwrap(numpy.radians(...))"}
_FEWEST = 3
# Values of such a column fill most of a turn and never more than one, this share of them the middle half; a jump is a
# turn but for the motion of a step, and most steps are far smaller.
_FILLED, _MOST, _MIDDLE = 0.8, 1.01, 0.1
_JUMP, _STEP = 0.8, 0.25


class Jumps(NamedTuple):
    """A column that jumps: its number, one turn in its units, and how often it jumps."""

    column: int
    turn: float
    times: int


def jumping_angles(data: Trajectories) -> list[Jumps]:
    """Return the observed columns that jump by a whole turn."""
    found = []
    for column in range(data.obs_dim):
        values = data.obs[:, :, column]
        change = np.abs(np.diff(values, axis=1)[data.is_step])
        change = change[np.isfinite(change)]
        known = values[np.isfinite(values)]
        if not len(change):
            continue  # the column is empty
        middle = np.abs(known - 0.5 * (known.min() + known.max())) < 0.25 * np.ptp(known)
        for turn in TURNS:
            count = int((change > _JUMP * turn).sum())
            is_angle = _FILLED * turn < np.ptp(known) < _MOST * turn and middle.mean() > _MIDDLE
            if is_angle and count >= _FEWEST and np.median(change) < _STEP * turn:
                found.append(Jumps(column, turn, count))
    return found


def turn_remarks(log: Log) -> Iterator[str]:
    """Yield what a person should know of columns that jump by a whole turn."""
    for column, turn, times in jumping_angles(log.data):
        yield (
            f"{log.obs_names[column]} jumps by a whole turn of {turn:.4g} ({count_of(times, 'time')}): as an angle in "
            f"radians that goes on beyond a turn, {TURNS[turn]}, and named in angles=, it is predicted better"
        )
