"""Evidence of a candidate under noise as rich as the data asks for, so that no context is needed to explain noise."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from mbrl_hdp.inference.search.em import State, run
from mbrl_hdp.inference.search.moves import Candidate
from mbrl_hdp.inference.search.noise import Noise, fit_scale, predict_from_past
from mbrl_hdp.inference.search.rows import Rows


def enriched(rows: Rows, candidate: Candidate, num_steps: int = 4) -> Candidate:
    """Return the candidate with the noise that raises its evidence most: plain, scaled by the state, with memory.

    Every step of enrichment is kept only if the evidence rises.
    """
    best = candidate
    for has_memory, has_scale in ((True, False), (False, True)):
        state = best.state.copy()
        if has_memory:
            # Residuals before the present offset was taken off.
            state.offset = predict_from_past(rows, state.mean_residual() + state.offset)
        if has_scale:
            scale = fit_scale(rows, state.mean_residual(), state.noise.floor)
            state.noise = Noise(state.noise.floor, state.noise.covariance, scale)
            state.robust = None
        trial = Candidate(run(rows, best.features.values, state, num_steps), best.features)
        if trial.evidence() > best.evidence() + 0.002 * len(rows):
            best = trial
    return best


def gain_of(rows: Rows, more: State, fewer: State) -> tuple[float, float]:
    """Return the gain in evidence per row and its standard error over episodes."""
    difference: Float[np.ndarray, " N"] = more.evidence - fewer.evidence
    per_row = float(difference.sum()) / len(rows)
    error = float(difference.std()) * np.sqrt(len(difference)) / len(rows)
    return per_row, error
