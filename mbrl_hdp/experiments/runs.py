"""Finished and unfinished runs: go on with one, evaluate one, tune one's planner."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from mbrl_hdp.data.atomic import atomic_path
from mbrl_hdp.errors import CheckpointError, ConfigError
from mbrl_hdp.experiments.checkpoint import Snapshot, latest_snapshot, write_snapshot
from mbrl_hdp.experiments.config import MainConfig, load_config_file
from mbrl_hdp.experiments.history import note_start
from mbrl_hdp.experiments.loop import Run, evaluate, reported, start_run, train, write_agent_files
from mbrl_hdp.experiments.metrics import SilentLog
from mbrl_hdp.experiments.run_folder import check_trust, read_config
from mbrl_hdp.experiments.run_lock import run_lock
from mbrl_hdp.experiments.summary import Evaluation
from mbrl_hdp.experiments.tasks import make_env
from mbrl_hdp.hooks import Registry, load_registry
from mbrl_hdp.runtime import configure


def resume(folder: Path, is_trusted: bool = False) -> Evaluation:
    """Go on with a run as if it had never stopped; its own config.yaml says what to do.

    Args:
        folder: run directory.
        is_trusted: let it import the modules that its settings name.
    """
    config, registry = _open(folder, is_trusted)
    note_start(folder)
    return train(config, registry, folder)


def evaluate_run(
    folder: Path, num_episodes: int, is_trusted: bool = False, seed: int | None = None, is_shown: bool = False
) -> Evaluation:
    """Evaluate the last checkpoint of a run on fresh seeded episodes and write evaluation.json into its folder.

    Args:
        folder: run directory.
        num_episodes: episodes to play.
        is_trusted: let it import the modules that its settings name.
        seed: seed of the episodes; the run's own by default.
        is_shown: show the episodes in a window.

    Raises:
        CheckpointError: if there is no run or no checkpoint.
        ConfigError: if a window is wanted and the environment has none.
    """
    run = load_run(folder, is_trusted)
    with SilentLog(num_episodes) as log, reported(run):
        if is_shown:
            run.task = replace(run.task, env=_shown_env(run))
        result = evaluate(run, num_episodes, "evaluation", log, seed)
        if is_shown:
            run.task.env.close()
    run.task.close()
    with atomic_path(folder / "evaluation.json") as path:
        path.write_text(json.dumps(asdict(result), indent=2))
    return result


def _shown_env(run: Run) -> Any:
    if "human" not in run.task.env.metadata.get("render_modes", []):
        raise ConfigError(f"--render: {run.config.env.id} cannot draw in a window; --video FILE.gif writes an episode")
    try:
        return make_env(run.config.env.id, {**run.config.env.kwargs, "render_mode": "human"})
    except ConfigError as error:
        raise ConfigError(
            f"--render: {run.config.env.id} opens no window (let it take render_mode, or use --video FILE.gif): {error}"
        ) from error


def tune_run(folder: Path, is_trusted: bool = False) -> str:
    """Choose the planner's settings of a run anew on its last model; its last checkpoint holds them from then on.

    Args:
        folder: run directory.
        is_trusted: let it import the modules that its settings name.

    Returns:
        The table of the candidates.

    Raises:
        ConfigError: if its agent does not plan.
        CheckpointError: if there is no run or no checkpoint.
    """
    read_config(folder)
    with run_lock(folder):
        run, snapshot = _load(folder, is_trusted)
        if run.model is None or run.data is None:
            raise ConfigError(f"agent={run.config.agent.name} learns no model: there is nothing to tune on")
        run.agent.tune(run.data, run.model)
        write_agent_files(folder, run)
        write_snapshot(folder, snapshot, run)
    run.task.close()
    return run.agent.run_files()["planner_tuning.md"]


def load_run(folder: Path, is_trusted: bool = False) -> Run:
    """Build a run as its last checkpoint left it: model, agent, data and every random state.

    Args:
        folder: run directory.
        is_trusted: let it import the modules that its settings name.

    Raises:
        CheckpointError: if there is no run or no checkpoint.
        ConfigError: if it would import a user's modules and is not trusted.
    """
    return _load(folder, is_trusted)[0]


def _load(folder: Path, is_trusted: bool) -> tuple[Run, Snapshot]:
    config, registry = _open(folder, is_trusted)
    read = latest_snapshot(folder)
    if read is None:
        raise CheckpointError(f"{folder} has no checkpoint yet; go on with `mbrl-hdp train resume={folder}`")
    run = start_run(config, registry)
    snapshot = read(run)
    return run, snapshot


def _open(folder: Path, is_trusted: bool) -> tuple[MainConfig, Registry]:
    words = read_config(folder)
    disable = words.get("disable_plugins") or []
    if not isinstance(disable, list):
        raise CheckpointError(f"{folder / 'config.yaml'}: disable_plugins must be a list of names")
    registry = load_registry(disable=[str(name) for name in disable], strict=bool(words.get("strict_plugins")))
    check_trust(words, folder, is_trusted)
    try:
        config = load_config_file(words, registry)
    except (KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{folder / 'config.yaml'} is damaged: {type(error).__name__} {error}") from error
    configure(config.runtime)
    return config, registry
