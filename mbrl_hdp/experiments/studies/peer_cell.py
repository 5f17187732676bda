"""What the cells of `peers` share: data of a system, labels from another library, a score."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Int

from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.envs.systems import build_system, simulate
from mbrl_hdp.inference.scoring import align

if TYPE_CHECKING:
    from mbrl_hdp.experiments.studies.study import Results, Settings

NUM_STARTS = 5
NUM_ITERATIONS = 60
INSTALL = "install it beside this package, in an environment of its own: pip install dynamax hmmlearn"


def score(settings: Settings, label: Callable[[Trajectories, int], Int[np.ndarray, "N T"]]) -> Results:
    """Label one data set, given the true number of contexts; the true ones are only compared with afterwards."""
    rollouts = simulate(settings["system"], settings["variant"], settings["seed"], settings["num_episodes"])
    true = build_system(settings["system"], settings["variant"]).num_contexts
    started = time.process_time()
    labels = label(Trajectories(obs=rollouts.obs, act=rollouts.act), true)
    return {
        "found": true,
        "true": true,
        "accuracy": round(align(labels, rollouts.context).accuracy, 4),
        "cpu_s": round(time.process_time() - started, 1),
        "num_transitions": int(rollouts.context.size),
    }


def standard(values: Float[np.ndarray, "*rows d"]) -> Float[np.ndarray, "*rows d"]:
    """Return columns with mean 0 and spread 1; those that never vary are left out."""
    rows = values.reshape(-1, values.shape[-1]).astype(np.float64)
    spread = rows.std(0)
    varies = spread > 1e-9 * (np.abs(rows).max(0) + 1e-12)
    scaled = (rows - rows.mean(0))[:, varies] / spread[varies]
    return scaled.reshape(*values.shape[:-1], -1)
