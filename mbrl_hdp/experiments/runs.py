"""Finished and unfinished runs: go on with one, evaluate one."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from mbrl_hdp.data.atomic import atomic_path
from mbrl_hdp.errors import CheckpointError
from mbrl_hdp.experiments.checkpoint import latest_snapshot
from mbrl_hdp.experiments.config import MainConfig, load_config_file
from mbrl_hdp.experiments.loop import Run, evaluate, start_run, train
from mbrl_hdp.experiments.metrics import SilentLog
from mbrl_hdp.experiments.summary import Evaluation
from mbrl_hdp.hooks import Registry, load_registry
from mbrl_hdp.runtime import configure


def resume(folder: Path) -> Evaluation:
    """Go on with a run as if it had never stopped; its own config.yaml says what to do."""
    config, registry = _open(folder)
    return train(config, registry, folder)


def evaluate_run(folder: Path, num_episodes: int) -> Evaluation:
    """Evaluate the last checkpoint of a run on fresh seeded episodes and write evaluation.json into its folder.

    Raises:
        CheckpointError: if there is no run or no checkpoint.
    """
    run = load_run(folder)
    with SilentLog(num_episodes) as log:
        result = evaluate(run, num_episodes, "evaluation", log)
    run.task.env.close()
    with atomic_path(folder / "evaluation.json") as path:
        path.write_text(json.dumps(asdict(result), indent=2))
    return result


def load_run(folder: Path) -> Run:
    """Build a run as its last checkpoint left it: model, agent, data and every random state.

    Raises:
        CheckpointError: if there is no run or no checkpoint.
    """
    config, registry = _open(folder)
    snapshot = latest_snapshot(folder)
    if snapshot is None:
        raise CheckpointError(f"{folder} has no checkpoint yet; go on with `mbrl-hdp train resume={folder}`")
    run = start_run(config, registry)
    snapshot(run)
    return run


def _open(folder: Path) -> tuple[MainConfig, Registry]:
    path = folder / "config.yaml"
    if not path.is_file():
        raise CheckpointError(
            f"{folder} is no run directory: there is no config.yaml in it (a run that was ended before it wrote one "
            "has done nothing yet: start it again with its own command)"
        )
    try:
        words = OmegaConf.load(path)
        assert isinstance(words, DictConfig)
        registry = load_registry(
            disable=list(words.get("disable_plugins", [])), strict=bool(words.get("strict_plugins"))
        )
    except (OSError, OmegaConfBaseException) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    config = load_config_file(words, registry)
    configure(config.runtime)
    return config, registry
