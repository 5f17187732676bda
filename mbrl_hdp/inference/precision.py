"""Checks for data whose changes would be lost in single precision, in which the transition models compute."""

from __future__ import annotations

import numpy as np

from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.errors import FitError

_SINGLE = np.finfo(np.float32)


def check_precision(data: Trajectories) -> None:
    """Raise if a column overflows single precision or changes by less than it can represent.

    A counter or a time stamp of size 1e9 that moves in thousandths is such a column: it would be rounded to nonsense
    without a word.

    Raises:
        FitError: naming the column, its size and its changes.
    """
    before, act, after = data.transitions()
    for name, rows in (("obs", after), ("obs", before), ("act", act)):
        for column, size in enumerate(np.abs(rows).max(0, initial=0.0)):
            if size > _SINGLE.max:
                raise FitError(
                    f"{name} column {column} (from 0) reaches {size:.3g}, too large for single precision: "
                    "use other units"
                )
    change = after - before
    sizes = np.maximum(np.abs(before), np.abs(after)).max(0, initial=0.0)
    for column, (size, spread) in enumerate(zip(sizes, change.std(0), strict=True)):
        rounding = float(_SINGLE.eps * size)
        if spread > np.finfo(np.float64).eps * size * 4 and spread < rounding / 4:
            raise FitError(
                f"obs column {column} (from 0) changes by about {spread:.3g} around values of {size:.3g}, too little "
                "for single precision: subtract a constant from it, or leave it out if it is a clock or a counter"
            )
