"""One cell of `systems_control`: C-CEM with defaults on a system, then the same planner with the true equations."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from mbrl_hdp.control.agent import Epoch
from mbrl_hdp.control.tracker import BeliefTracker, ContextTracker, TruthTracker
from mbrl_hdp.envs.systems import build_system
from mbrl_hdp.envs.systems.control import ENV_ID
from mbrl_hdp.experiments.config import MainConfig, check_config, load_config
from mbrl_hdp.experiments.loop import Run, play_evaluation, reported
from mbrl_hdp.experiments.metrics import SilentLog, read_metrics
from mbrl_hdp.experiments.studies.told_model import told_model
from mbrl_hdp.experiments.studies.train_cell import learning_curve, resolved_run, trained, training_curve

if TYPE_CHECKING:
    from mbrl_hdp.experiments.studies.study import Results, Settings


# True equations are slow to plan with: so many of the reported episodes are played again.
MOST_TOLD = 20


def resolve(settings: Settings) -> Settings:
    """Return everything that decides a cell's run."""
    return resolved_run(_config(settings)) | {"seed": settings["seed"]}


def run(settings: Settings) -> Results:
    """Train with nothing but defaults; play the reported episodes again with the truth.

    Returns:
        `summary`: summary.json; `curve`, `train_curve`: as in `train_cell`; `filtered`: returns of the first of these
        episodes when the planner, with the same settings, has the true equations and chain and filters the context
        with them; `told`: the same when it knows the acting context.
    """
    config = replace(_config(settings), seed=settings["seed"])
    name = f"systems_control_{settings['system']}"
    with trained(config, name, __name__, resolve(settings)) as (finished, folder):
        rows = read_metrics(folder)
        return {
            "summary": json.loads((folder / "summary.json").read_text()),
            "curve": learning_curve(rows),
            "train_curve": training_curve(rows),
            **play_told(finished, settings["system"]),
        }


def play_told(run: Run, system: str) -> dict[str, list[float]]:
    """Play the first reported episodes with the run's planner on the true equations.

    Returns:
        `filtered`: returns where the context is filtered; `told`: where it is known.
    """
    assert run.model is not None
    assert run.data is not None
    known = told_model(build_system(system), run.model.task.max_contexts)
    run.agent.learn(Epoch(run.data, None, known, is_refit=True, num_updates=0))
    trackers = {
        "filtered": BeliefTracker(known),
        "told": TruthTracker(run.task.obs_dim, known.task.max_contexts),
    }
    return {name: _returns(run, name, tracker) for name, tracker in trackers.items()}


def _returns(run: Run, name: str, tracker: ContextTracker) -> list[float]:
    num = min(run.budget.final_eval_episodes, MOST_TOLD)
    with SilentLog(num, is_wanted=False) as log, reported(run):
        records = play_evaluation(run, num, name, log, tracker)
    return [round(record.episode_return, 4) for record in records]


def _config(settings: Settings) -> MainConfig:
    return _config_of(settings["system"], settings["profile"], tuple(settings.get("overrides", ())))


@lru_cache
def _config_of(system: str, profile: str, overrides: tuple[str, ...]) -> MainConfig:
    words = ["env=gymnasium", f"env.id={ENV_ID}", f"+env.kwargs.system={system}", "agent=c_cem", f"profile={profile}"]
    return check_config(load_config([*words, *overrides]))
