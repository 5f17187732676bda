"""One cell of `systems_fit`: simulate a system of the suite, call `fit` with defaults only, score what it says."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.envs.systems import build_system, simulate
from mbrl_hdp.inference.fit import fit
from mbrl_hdp.inference.scoring import align

if TYPE_CHECKING:
    from mbrl_hdp.experiments.studies.study import Results, Settings


def run_cell(settings: Settings) -> Results:
    """Fit one data set; the true contexts are only compared with afterwards.

    `half_agreement` decides whether a fit may call itself sure: how well searches on each half of the episodes agree
    with the model's labels (adjusted Rand index); empty where they were not made.
    """
    rollouts = simulate(settings["system"], settings["variant"], settings["seed"], settings["num_episodes"])
    data = Trajectories(obs=rollouts.obs, act=rollouts.act)
    started = time.process_time()
    model = fit(data, progress=False)
    seconds = time.process_time() - started
    labels = model.analyse(data).most_likely
    return {
        "found": model.num_contexts,
        "true": build_system(settings["system"], settings["variant"]).num_contexts,
        "accuracy": round(align(labels, rollouts.context).accuracy, 4),
        "cpu_s": round(seconds, 1),
        "num_transitions": int(rollouts.context.size),
        "dynamics": model.parts.dynamics.name,
        "half_agreement": [round(value, 4) for value in model.report.search.get("half_agreement", [])],
        "searched": model.report.search.get("num_contexts"),
        "runs": [f"{run['dynamics']} {run['schedule']} {run['num_contexts']}" for run in model.report.runs],
    }
