"""Cells of `peers` with hmmlearn: a Gaussian hidden Markov model of what one pooled head leaves over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int

from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.errors import ConfigError
from mbrl_hdp.experiments.studies.peer_cell import INSTALL, NUM_ITERATIONS, NUM_STARTS, score, standard
from mbrl_hdp.inference.fit import fit
from mbrl_hdp.inference.residuals import own_residuals
from mbrl_hdp.inference.schedule import FitConfig

if TYPE_CHECKING:
    from mbrl_hdp.experiments.studies.study import Results, Settings


def run_cell(settings: Settings) -> Results:
    """Label one data set.

    Raises:
        ConfigError: if hmmlearn is not installed.
    """
    return score(settings, label)


def label(data: Trajectories, num_contexts: int) -> Int[np.ndarray, "N T"]:
    """Fit the residuals of `fit` with one context, features chosen from the data; return the most likely paths.

    The best of several starts by its own log density is taken.
    """
    try:
        from hmmlearn.hmm import GaussianHMM
    except ImportError as error:
        raise ConfigError(f"the peer residual_hmm needs hmmlearn, which is not installed; {INSTALL}") from error
    config = FitConfig(num_contexts=1, halves_within_s=0.0)
    pooled = fit(data, dynamics="sparse", max_contexts=1, config=config, progress=False)
    zeros = np.zeros(int(data.is_observed.sum()), dtype=np.int64)
    left = standard(own_residuals(pooled, data, zeros))
    best: Any = None
    for seed in range(NUM_STARTS):
        model = GaussianHMM(num_contexts, "full", n_iter=NUM_ITERATIONS, random_state=seed)
        model.fit(left, data.lengths)
        if best is None or model.score(left, data.lengths) > best.score(left, data.lengths):
            best = model
    labels = np.full(data.is_observed.shape, -1)
    labels[data.is_observed] = best.predict(left, data.lengths)
    return labels
