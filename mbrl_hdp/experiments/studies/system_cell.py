"""One cell of `systems`: simulate a system of the suite, find its contexts with defaults only, score them."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.envs.systems import build_system, simulate
from mbrl_hdp.inference.scoring import align
from mbrl_hdp.inference.search import find_contexts

if TYPE_CHECKING:
    from mbrl_hdp.experiments.studies.study import Results, Settings


def run_cell(settings: Settings) -> Results:
    """Find the contexts of one data set; the true ones are only compared with afterwards."""
    rollouts = simulate(settings["system"], settings["variant"], settings["seed"], settings["num_episodes"])
    found = find_contexts(Trajectories(obs=rollouts.obs, act=rollouts.act))
    return {
        "found": found.num_contexts,
        "true": build_system(settings["system"], settings["variant"]).num_contexts,
        "accuracy": round(align(found.labels, rollouts.context).accuracy, 4),
        "cpu_s": round(found.time_s, 1),
        "num_transitions": int(rollouts.context.size),
        "evidence": round(found.evidence, 4),
        "regions": [round(float(share), 3) for share in found.regions],
        "history": [asdict(verdict) for verdict in found.history],
    }
