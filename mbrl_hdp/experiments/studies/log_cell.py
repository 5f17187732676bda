"""One cell of `logs`: simulate a recording, call `fit` with defaults only, score what it says."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.envs.recordings import record
from mbrl_hdp.inference.fit import fit
from mbrl_hdp.inference.scoring import align
from mbrl_hdp.inference.verdict import facts, judge

if TYPE_CHECKING:
    from mbrl_hdp.experiments.studies.study import Results, Settings


def run_cell(settings: Settings) -> Results:
    """Fit one log; the true contexts are only compared with afterwards."""
    log = record(settings["log"], settings["seed"])
    data = Trajectories(obs=log.obs, act=log.act)
    started = time.process_time()
    model = fit(data, progress=False)
    seconds = time.process_time() - started
    analysis = model.analyse(data)
    verdict = judge(facts(model, analysis))
    return {
        "found": model.num_contexts,
        "true": len(np.unique(log.context)),
        "accuracy": round(align(analysis.most_likely, log.context).accuracy, 4),
        "verdict": verdict.level,
        "doubts": [doubt for doubt, _ in verdict.doubts],
        "past": model.task.past,
        "start": next(run["schedule"] for run in model.report.runs if run["taken"]),
        "dynamics": model.parts.dynamics.name,
        "searched": model.report.search.get("num_contexts"),
        "cpu_s": round(seconds, 1),
    }
