"""One cell of `twelve_fit` and `twelve_auto`: fit random flights or drives, score the contexts on other episodes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from mbrl_hdp.data.collect import collect
from mbrl_hdp.envs import BatchSwitchingEnv, Context, MarkovChain
from mbrl_hdp.envs.drone_physics import DronePhysics
from mbrl_hdp.envs.intersection_physics import IntersectionPhysics
from mbrl_hdp.experiments.studies.cartpole_fit import HELD_OUT_EPISODES, fitted, score

if TYPE_CHECKING:
    from mbrl_hdp.data.trajectories import Trajectories
    from mbrl_hdp.envs.batch import BatchPhysics
    from mbrl_hdp.experiments.studies.study import Results, Settings

# Held-out episodes come from a seed that no training set uses.
_HELD_OUT_SEED = 10_000


def physics_of(task: str) -> BatchPhysics:
    """Return the physics of a task with the paper's numbers: a batched twin of its simulator."""
    return DronePhysics() if task == "drone" else IntersectionPhysics()


def episodes(settings: Settings, num_episodes: int, seed: int) -> Trajectories:
    """Simulate episodes with random actions; actuation 1 and -1, cool-off 5, then switch probability .2."""
    contexts = [Context(attributes={"actuation": value}) for value in settings["actuation"]]
    chain = MarkovChain.symmetric(len(contexts), switch=0.2, cool_off=5)
    env = BatchSwitchingEnv(physics_of(settings["task"]), contexts, chain, num_envs=min(100, num_episodes))
    return collect(env, num_episodes=num_episodes, seed=seed, progress=False)


def run_cell(settings: Settings) -> Results:
    """Fit once with the defaults of `fit`; the true contexts are only compared with afterwards."""
    data = episodes(settings, settings["num_trajectories"], settings["seed"])
    held_out = episodes(settings, HELD_OUT_EPISODES, _HELD_OUT_SEED + settings["seed"])
    started = time.process_time()
    model = fitted(settings, data, physics_of(settings["task"]).dt if settings["is_dt_known"] else None)
    seconds = time.process_time() - started
    return score(model, data, held_out) | {
        "cpu_s": round(seconds, 1),
        "dynamics": model.parts.dynamics.name,
        "searched": model.report.search.get("num_contexts"),
        "runs": [f"{run['dynamics']} {run['schedule']} {run['num_contexts']}" for run in model.report.runs],
    }
