"""One cell of `logs`: simulate a recording, call `fit` with defaults only, score what it says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.envs.recordings import record
from mbrl_hdp.experiments.studies.system_fit_cell import scored_fit

if TYPE_CHECKING:
    from mbrl_hdp.experiments.studies.study import Results, Settings


def run_cell(settings: Settings) -> Results:
    """Fit one log; the true contexts are only compared with afterwards."""
    log = record(settings["system"], settings["seed"])
    found = scored_fit(Trajectories(obs=log.obs, act=log.act, context=log.context))
    return found | {"true": len(np.unique(log.context))}
