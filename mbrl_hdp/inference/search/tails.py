"""Does the noise that the contexts leave over have heavy tails?"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool
from scipy.spatial import KDTree

from mbrl_hdp.inference.search.em import State
from mbrl_hdp.inference.search.rows import Rows

# Usual deviations beyond which a normal residual does not lie: once in 500 million rows.
_FAR = 6.0
_USUAL = 1.4826  # standard deviations in a median absolute deviation of normal numbers
_NUM_NEIGHBOURS = 10
# Fewer rows say nothing about a distribution.
_FEWEST = 5
# Share of the rows beyond which tails are heavy: a t distribution with four degrees of freedom has as many.
HEAVY = 0.003


def far_share(rows: Rows, state: State) -> float:
    """Return the share of rows that lie far from what every context predicts, where their neighbours do not.

    Where heads are too small for a part of the state space, rows beside each other are far; heavy tails are anywhere.
    """
    far = np.flatnonzero(is_far(state))
    if len(far) < _FEWEST:
        return 0.0
    near = KDTree(rows.inputs).query(rows.inputs[far], _NUM_NEIGHBOURS + 1)[1]
    others = np.isin(near, far) & (near != far[:, None])
    return float((~others.any(1)).sum()) / len(rows)


def is_far(state: State) -> Bool[np.ndarray, " M"]:
    """Mark rows that no context predicts to within six usual deviations in all outputs.

    The usual deviation of an output is that of the rows' own contexts by its median, together with the noise floor,
    after division by the scale that depends on the state where the evidence asked for one. A row beside a switch may
    have the label of the other context, so it is compared with all of them.
    """
    residuals = state.residuals if state.noise.scale is None else state.residuals / state.noise.scale
    own = residuals[state.weight.argmax(1), np.arange(residuals.shape[1])]
    usual = _USUAL * np.median(np.abs(own - np.median(own, 0)), 0)
    return (np.abs(residuals) > _FAR * np.sqrt(np.square(usual) + state.noise.floor**2)).any(-1).all(0)
