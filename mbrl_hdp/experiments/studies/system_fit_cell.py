"""One cell of `systems_fit`: simulate a system of the suite, call `fit` with defaults only, score what it says."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.envs.systems import build_system, simulate
from mbrl_hdp.inference.fit import fit
from mbrl_hdp.inference.scoring import align
from mbrl_hdp.inference.verdict import facts, judge

if TYPE_CHECKING:
    from mbrl_hdp.experiments.studies.study import Results, Settings


def run_cell(settings: Settings) -> Results:
    """Fit one data set; the true contexts are only compared with afterwards."""
    rollouts = simulate(settings["system"], settings["variant"], settings["seed"], settings["num_episodes"])
    found = scored_fit(Trajectories(obs=rollouts.obs, act=rollouts.act, context=rollouts.context))
    true = build_system(settings["system"], settings["variant"]).num_contexts
    return found | {"true": true, "num_transitions": int(rollouts.context.size)}


def scored_fit(data: Trajectories) -> Results:
    """Fit with defaults only; return what came out beside the true contexts of the data, which `fit` never looks at.

    `verdict` is the level that the fit's report prints; `half_agreement` says how well the labels found anew in each
    half of the episodes agree with the model's (adjusted Rand index), empty where halves were not looked at.
    """
    assert data.context is not None
    started = time.process_time()
    model = fit(data, progress=False)
    seconds = time.process_time() - started
    analysis = model.analyse(data)
    verdict = judge(facts(model, analysis))
    return {
        "found": model.num_contexts,
        "accuracy": round(align(analysis.most_likely, data.context).accuracy, 4),
        "cpu_s": round(seconds, 1),
        "dynamics": model.parts.dynamics.name,
        "verdict": verdict.level,
        "doubts": [doubt for doubt, _ in verdict.doubts],
        "half_agreement": [round(value, 4) for value in model.report.search.get("half_agreement", [])],
        "searched": model.report.search.get("num_contexts"),
        "runs": [f"{run['dynamics']} {run['schedule']} {run['num_contexts']}" for run in model.report.runs],
        "start": next(run["schedule"] for run in model.report.runs if run["taken"]),
        "past": model.task.past,
    }
