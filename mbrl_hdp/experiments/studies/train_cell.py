"""A cell that is a whole run of Algorithm 1, as `mbrl-hdp train experiment=PRESET seed=SEED` runs it.

`overrides` among a cell's settings are further words of that command.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mbrl_hdp.experiments.checkpoint import latest_snapshot
from mbrl_hdp.experiments.config import MainConfig, check_config, load_config
from mbrl_hdp.experiments.fingerprint import fingerprint_of, installed_plugins, learns_no_model
from mbrl_hdp.experiments.fit_settings import fit_config
from mbrl_hdp.experiments.loop import Run, play_evaluation, reported, run_budget, start_run, train
from mbrl_hdp.experiments.metrics import SilentLog, read_metrics
from mbrl_hdp.hooks import load_registry
from mbrl_hdp.runtime import configure

if TYPE_CHECKING:
    from mbrl_hdp.experiments.studies.study import Results, Settings

FAILURES = {"hard": "cartpole_hard", "soft .1": "cartpole_soft01", "soft .3": "cartpole_soft03",
            "soft .5": "cartpole_soft05"}  # fmt: skip
TASKS = {"drone": "drone", "intersection": "intersection"}
AGENTS = {"C-CEM": "c_cem", "C-SAC": "c_sac", "FI-SAC": "fi_sac", "NI-SAC": "ni_sac"}
BASELINES = {"GPMM": "gpmm", "RNN-PPO": "rnn_ppo", "DNNMM": "dnnmm", "ANPMM": "anpmm", "PETS": "pets",
             "PETS, history": "pets_history", "MBPO": "mbpo", "SAC, stack": "sac_stack",
             "RecurrentPPO": "rnn_ppo_plain"}  # fmt: skip
# Further settings of smoke runs of our own agents: seconds instead of minutes.
SMOKE_OVERRIDES = ("env.kwargs.horizon=12", "max_contexts=3", "fit.start=random", "planner.population_size=12",
                   "planner.num_elites=4")  # fmt: skip
# Where unfinished runs wait to be continued.
_RUNS = Path("outputs") / "reproduce" / "runs"
# What decides nothing, or is in the resolved configuration under another name.
_NOT_PART = ("runtime", "disable_plugins", "strict_plugins", "profile", "fit", "tracker")
# Parts of a context model: they decide nothing for agents that none is learned for.
_MODEL_PARTS = ("prior", "distillation", "dynamics", "duration")


def preset_of(settings: Settings) -> str:
    """Return the preset of a cell: `experiment=NAME`, or `experiment=paper/NAME` with the paper's budget."""
    env = TASKS[settings["task"]] if "task" in settings else FAILURES[settings["failure"]]
    name = f"{env}_{(AGENTS | BASELINES)[settings['agent']]}"
    return f"paper/{name}" if settings["profile"] == "paper" else name


def resolve(settings: Settings) -> Settings:
    """Return everything that decides a cell's run: the configuration, its budget and the settings of its fits."""
    return resolved_run(_config(settings)) | {"seed": settings["seed"]}


def resolved_run(config: MainConfig) -> Settings:
    """Return the configuration of a run with its budget and the settings of its fits worked out."""
    found = {key: value for key, value in asdict(config).items() if key not in _NOT_PART}
    del found["env"]["budgets"]
    if found["duration"] == {"name": "geometric"}:
        del found["duration"]  # the identity of runs from before there were durations
    for name, before in (("magnify_obs", False), ("averaged_updates", None)):
        if found["agent"].get(name, "") is before:
            del found["agent"][name]  # likewise
    budget = run_budget(config, installed_plugins())
    if learns_no_model(found):
        return {key: value for key, value in found.items() if key not in _MODEL_PARTS} | {"budget": asdict(budget)}
    fits = {name: asdict(fit_config(config, budget, is_first)) for name, is_first in (("fit", True), ("refit", False))}
    return found | {"budget": asdict(budget)} | fits


def run(settings: Settings) -> Results:
    """Train, continuing an unfinished run of the same cell.

    Returns:
        `summary`: summary.json; `curve`: `learning_curve`; `train_curve`: `training_curve`; `course`: `course_of`.
    """
    config = replace(_config(settings), seed=settings["seed"])
    with trained(config, preset_of(settings), __name__, resolve(settings)) as (finished, folder):
        rows = read_metrics(folder)
        return {
            "summary": json.loads((folder / "summary.json").read_text()),
            "curve": learning_curve(rows),
            "train_curve": training_curve(rows),
            "course": course_of(finished),
        }


@contextmanager
def trained(config: MainConfig, name: str, module: str, resolved: Settings) -> Iterator[tuple[Run, Path]]:
    """Train to the end, or go on where the same run was stopped; hand over the finished run and its folder.

    Args:
        config: what to do.
        name: name of the run, for its folder.
        module: module that runs the cell.
        resolved: everything that decides the run; with the code it says which run is the same.
    """
    same = hashlib.sha256(
        (json.dumps(resolved, sort_keys=True) + fingerprint_of(module, resolved)).encode()
    ).hexdigest()[:12]
    folder = _RUNS / f"{name.replace('/', '_')}_{config.seed}_{same}"
    configure(config.runtime)
    registry = load_registry()
    train(config, registry, folder, progress=False)
    finished, read = start_run(config, registry), latest_snapshot(folder)
    assert read is not None
    read(finished)
    try:
        yield finished, folder
    finally:
        finished.task.close()
    shutil.rmtree(folder)


def learning_curve(rows: Sequence[Mapping[str, str]]) -> list[list[float]]:
    """Return real episodes, return and seconds so far (without the evaluations) of every evaluation."""
    seconds, found = 0.0, []
    for row in rows:
        seconds += sum(float(row.get(name) or 0.0) for name in ("env_s", "act_s", "model_s", "agent_s"))
        if row.get("return_mean"):
            found.append([int(row["num_real_episodes"]), round(float(row["return_mean"]), 3), round(seconds, 1)])
    return found


def training_curve(rows: Sequence[Mapping[str, str]]) -> list[list[float]]:
    """Return real episodes and the mean return of the training episodes of every epoch."""
    return [[int(row["num_real_episodes"]), round(float(row["train_return"]), 3)] for row in rows]


def course_of(run: Run) -> Results | None:
    """Play the first reported evaluation episode again; return its true contexts beside the agent's own.

    Returns:
        `truth` and `labels` of every step, and `belief`, the distribution at every step of agents that keep one beside
        their labels (`beliefs` of their state); None where the truth is unknown or the agent has no contexts.
    """
    with SilentLog(1, is_wanted=False) as log, reported(run):
        (record,) = play_evaluation(run, 1, "course", log)
    truth, labels = record.episode.context, record.labels
    beliefs = run.agent.state_dict().get("beliefs")
    if truth is None or labels is None:
        return None
    belief = None if beliefs is None else np.round(beliefs, 4).tolist()
    return {"truth": truth.tolist(), "labels": labels.tolist(), "belief": belief}


def _config(settings: Settings) -> MainConfig:
    return _config_of(preset_of(settings), settings["profile"], tuple(settings.get("overrides", ())))


@lru_cache
def _config_of(preset: str, profile: str, overrides: tuple[str, ...]) -> MainConfig:
    return check_config(load_config([f"experiment={preset}", f"profile={profile}", *overrides]))
