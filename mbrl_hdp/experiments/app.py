"""`mbrl-hdp train` as a Hydra application: the command line is checked first, then run by Hydra."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from mbrl_hdp.data.atomic import atomic_path
from mbrl_hdp.errors import ConfigError
from mbrl_hdp.experiments.config import (
    CONFIG_NAME,
    check_config,
    check_jobs,
    config_dir,
    register_configs,
    registry_for,
)
from mbrl_hdp.experiments.summary import Evaluation
from mbrl_hdp.hooks import load_registry
from mbrl_hdp.runtime import configure

# Hydra's flags that take a value of their own; everything else that starts with a dash takes none.
_VALUE_FLAGS = {
    "--cfg",
    "-c",
    "--package",
    "-p",
    "--info",
    "-i",
    "--config-path",
    "-cp",
    "--config-name",
    "-cn",
    "--config-dir",
    "-cd",
    "--experimental-rerun",
    "-sc",
    "--shell_completion",
}
_CONFIG_DIR_FLAGS = {"--config-dir", "-cd"}
_ONLY_LOOK = {"--help", "-h", "--hydra-help", "--version", "-sc", "--shell_completion"}

Finish = Callable[[Path], object]
"""Called with the directory of a finished run, for example to draw its learning curve."""


def run_app(words: Sequence[str], finish: Finish | None = None) -> int:
    """Check every job of the command line, then let Hydra run it.

    Args:
        words: the command line.
        finish: called with the directory of every finished run.

    Raises:
        ConfigError: before any work begins and before anything is written.
    """
    flags, overrides = _split(words)
    going_on = [word.removeprefix("resume=") for word in overrides if word.startswith("resume=")]
    if going_on:
        return _resume(Path(going_on[-1]), len(words) > 1, finish)
    registry = registry_for(overrides)
    for problem in registry.problems:
        print(f"warning: {problem}", file=sys.stderr)
    if not _ONLY_LOOK & set(words):
        check_jobs(overrides, registry, _config_dirs(words))
    register_configs(registry)
    # Hydra then raises errors instead of printing them and exiting; ours become one line (`mbrl_hdp.cli`).
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    saved = sys.argv
    sys.argv = ["mbrl-hdp", *overrides, *flags]  # Hydra refuses overrides on both sides of a flag
    try:
        hydra.main(version_base="1.3", config_path=str(config_dir()), config_name=CONFIG_NAME)(_job(finish))()
    finally:
        sys.argv = saved
    return 0


def _resume(folder: Path, has_more: bool, finish: Finish | None) -> int:
    """Continue a run with the settings that it began with."""
    from mbrl_hdp.experiments.runs import resume

    if has_more:
        raise ConfigError("resume=RUN stands alone: the settings are those of the run's own config.yaml")
    result = resume(folder)
    if finish is not None:
        finish(folder)
    print(_closing_line(result, folder))
    return 0


def _closing_line(result: Evaluation, folder: Path) -> str:
    return f"return {result.return_mean:.2f} +- {result.return_std:.2f} over {len(result.returns)} episodes; {folder}"


def _split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return Hydra's own flags with their values, and the overrides."""
    flags: list[str] = []
    overrides: list[str] = []
    is_value = False
    for word in words:
        is_flag = word.startswith("-")
        (flags if is_flag or is_value else overrides).append(word)
        is_value = is_flag and word in _VALUE_FLAGS
    return flags, overrides


def _config_dirs(words: Sequence[str]) -> list[Path]:
    """Return the folders that the command line adds to Hydra's search path."""
    found = []
    for place, word in enumerate(words):
        flag, is_joined, value = word.partition("=")
        if flag in _CONFIG_DIR_FLAGS:
            found += [Path(value)] if is_joined else [Path(following) for following in words[place + 1 : place + 2]]
    return found


def _job(finish: Finish | None) -> Callable[[DictConfig], float]:
    """Return the function that runs one job; a sweeper that optimises uses the mean return, its result."""

    def job(config: DictConfig) -> float:
        typed = check_config(config)
        configure(typed.runtime)
        folder = Path(HydraConfig.get().runtime.output_dir)
        # Written whole, and before the slow imports: from here on the run can be ended and resumed.
        with atomic_path(folder / "config.yaml") as path:
            OmegaConf.save(config, path, resolve=True)
        from mbrl_hdp.experiments.loop import train

        registry = load_registry(disable=typed.disable_plugins, strict=typed.strict_plugins)
        result = train(typed, registry, folder)
        if finish is not None:
            finish(folder)
        print(_closing_line(result, folder))
        return result.return_mean

    return job
