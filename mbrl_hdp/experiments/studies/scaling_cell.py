"""One cell of `scaling`: find the contexts of a data set of a given size or number of contexts, and take the time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.envs.systems import SYSTEMS
from mbrl_hdp.envs.systems.linear import switching_linear
from mbrl_hdp.inference.scoring import align
from mbrl_hdp.inference.search import find_contexts

if TYPE_CHECKING:
    from mbrl_hdp.experiments.studies.study import Results, Settings


def run_cell(settings: Settings) -> Results:
    """Simulate a pendulum, or a linear system with `num_contexts` contexts, and search."""
    name = settings["system"]
    system = SYSTEMS[name]() if name in SYSTEMS else switching_linear(settings["dim"], settings["num_contexts"])()
    rollouts = system.simulate(settings["num_episodes"], seed=settings["seed"])
    found = find_contexts(Trajectories(obs=rollouts.obs, act=rollouts.act))
    return {
        "found": found.num_contexts,
        "true": system.num_contexts,
        "accuracy": round(align(found.labels, rollouts.context).accuracy, 4),
        "cpu_s": round(found.time_s, 1),
        "num_transitions": int(rollouts.context.size),
    }
