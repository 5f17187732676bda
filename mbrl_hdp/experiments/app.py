"""`mbrl-hdp train` as a Hydra application: the command line is checked first, then run by Hydra."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from mbrl_hdp.data.atomic import atomic_path
from mbrl_hdp.errors import CheckpointError, ConfigError, did_you_mean
from mbrl_hdp.experiments.config import CONFIG_NAME, check_config, config_dir, register_configs, registry_for
from mbrl_hdp.experiments.jobs import SweepJob, check_jobs, folder_of_job, plan_sweep
from mbrl_hdp.experiments.run_folder import CONFIG, check_can_hold, first_difference, needs_trust, read_config
from mbrl_hdp.experiments.sweep import (
    DONE,
    JobOutcome,
    Sweep,
    finished_return,
    mark_failed,
    mark_finished,
    prepare_launcher,
    wait_until_free,
)
from mbrl_hdp.hooks import Registry, load_registry
from mbrl_hdp.runtime import configure

if TYPE_CHECKING:
    from mbrl_hdp.experiments.summary import Evaluation

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
_PLAIN_FLAGS = {"--multirun", "-m", "--run", "-r", "--resolve"}
_SWEEPS = {"--multirun", "-m", "hydra.mode"}
_SHOWS = {"--cfg", "-c", "--info", "-i"}  # with these, nothing is run
_TRUST = "--trust"
_ONLY_LOOK = {"--help", "-h", "--hydra-help", "--version", "-sc", "--shell_completion"}

Finish = Callable[[Path], object]
"""Called with the directory of a finished run, for example to draw its learning curve."""
Show = Callable[[Sequence[JobOutcome]], object]
"""Called with what became of the jobs of a sweep, for example to print a table."""


def run_app(words: Sequence[str], finish: Finish | None = None, show: Show | None = None) -> int:
    """Check every job of the command line, then let Hydra run it.

    Args:
        words: the command line.
        finish: called with the directory of every finished run.
        show: called at the end of a sweep with what became of its jobs.

    Returns:
        Exit code: 1 if a job of a sweep is not finished.

    Raises:
        ConfigError: before any work begins and before anything is written.
    """
    is_trusted = _TRUST in words
    words = [word for word in words if word != _TRUST]
    _check_flags(words)
    flags, overrides = _split(words)
    going_on = [word.removeprefix("resume=") for word in overrides if word.startswith("resume=")]
    if going_on:
        return _resume(going_on[-1], len(words) > 1, is_trusted, finish)
    registry = registry_for(overrides)
    for problem in registry.problems:
        print(f"warning: {problem}", file=sys.stderr)
    sweep = None
    if not _ONLY_LOOK & set(words):
        jobs = check_jobs(overrides, registry, _config_dirs(words))
        names = {word.lstrip("+").partition("=")[0] for word in words}
        if not _SHOWS & names:
            if _SWEEPS & names:
                overrides, sweep = _plan_sweep(overrides, jobs, _config_dirs(words))
            else:
                _check_folder(*folder_of_job(jobs[0].overrides, _config_dirs(words)), jobs[0].config)
            _try_out(jobs, registry)
    register_configs(registry)
    return _run_sweep(overrides, flags, finish, sweep, show) if sweep else _run_one(overrides, flags, finish)


def _plan_sweep(
    overrides: Sequence[str], jobs: Sequence[SweepJob], config_dirs: Sequence[Path]
) -> tuple[list[str], Sweep]:
    """Return the overrides with the sweep's folder worked out, and the jobs as they are found there."""
    prepare_launcher(overrides)
    plan = plan_sweep(overrides, jobs, config_dirs)
    for job, folder in zip(jobs, plan.folders, strict=True):
        _check_folder("hydra.sweep.dir", folder, job.config)
    return plan.overrides, Sweep(plan.overrides[-1], jobs, plan.folders)


def _run_sweep(
    overrides: Sequence[str], flags: Sequence[str], finish: Finish | None, sweep: Sweep, show: Show | None
) -> int:
    """Run the jobs that are not finished; whatever ends the launcher, say what became of every job."""
    try:
        _run_hydra(overrides, flags, _sweep_job(finish))
    except Exception as error:  # noqa: BLE001 - the launchers have exceptions of their own for dead workers
        print(f"the sweep was ended by {type(error).__name__}: {_first_line(error)}", file=sys.stderr)
    except BaseException as error:
        error.add_note(f"go on by running the same sweep again with {sweep.word}")
        raise
    outcomes = sweep.outcomes()
    if show is not None:
        show(outcomes)
    if all(outcome.state in DONE for outcome in outcomes):
        return 0
    print(f"go on by running the same sweep again with {sweep.word}", file=sys.stderr)
    return 1


def _run_one(overrides: Sequence[str], flags: Sequence[str], finish: Finish | None) -> int:
    failures: list[Exception] = []
    _run_hydra(overrides, flags, _job(finish, failures))
    if failures:
        raise failures[0]
    return 0


def _run_hydra(overrides: Sequence[str], flags: Sequence[str], job: Callable[[DictConfig], float]) -> None:
    # Hydra then raises errors instead of printing them and exiting; ours become one line (`mbrl_hdp.cli`).
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    saved = sys.argv
    sys.argv = ["mbrl-hdp", *overrides, *flags]  # Hydra refuses overrides on both sides of a flag
    try:
        hydra.main(version_base="1.3", config_path=str(config_dir()), config_name=CONFIG_NAME)(job)()
    finally:
        sys.argv = saved


def _check_flags(words: Sequence[str]) -> None:
    """Raise on a flag that Hydra does not know, which it would answer with its whole usage."""
    for place, word in enumerate(words):
        flag, is_joined, value = word.partition("=")
        if not word.startswith("-") or (place and words[place - 1] in _VALUE_FLAGS):
            continue
        if flag not in _VALUE_FLAGS | _ONLY_LOOK | _PLAIN_FLAGS:
            raise ConfigError(f"unknown flag {flag}; {did_you_mean(flag, _VALUE_FLAGS | _ONLY_LOOK | _PLAIN_FLAGS)}")
        following = value if is_joined else "".join(words[place + 1 : place + 2])
        if flag in {"--cfg", "-c"} and following not in {"job", "hydra", "all"}:
            raise ConfigError(f"{flag} takes job, hydra or all, as in --cfg job, got {following!r}")
        if flag in {"--config-name", "-cn"} and following != CONFIG_NAME:
            raise ConfigError(f"{flag}={following}: `train` has one configuration, {CONFIG_NAME}")


def _try_out(jobs: Sequence[SweepJob], registry: Registry) -> None:
    """Build environment and agent of every run that is asked for, before the first folder is made.

    Raises:
        MbrlHdpError: if anything cannot be built.
    """
    tried = set()
    for job in jobs:
        typed = check_config(job.config)
        alike = OmegaConf.to_yaml(OmegaConf.merge(job.config, {"seed": 0}), resolve=True)
        if alike not in tried:  # seeds decide nothing that can be refused
            tried.add(alike)
            configure(typed.runtime)
            from mbrl_hdp.experiments.loop import start_run

            start_run(typed, registry).task.env.close()


def _check_folder(key: str, folder: Path, config: DictConfig) -> None:
    """Raise if a folder, which `key` names, cannot be the home of this run: a directory is one run.

    Raises:
        ConfigError: naming the first setting that differs from the run that is there.
    """
    check_can_hold(key, folder)
    if not (folder / CONFIG).is_file():
        return
    there = read_config(folder)
    wanted = OmegaConf.to_container(config, resolve=True)
    assert isinstance(wanted, dict)
    difference = first_difference({str(key): value for key, value in wanted.items()}, there)
    if difference is not None:
        raise ConfigError(
            f"{folder} is another run ({difference}); go on with it by `mbrl-hdp train resume={folder}`, or choose "
            "another folder for this one"
        )


def _resume(name: str, has_more: bool, is_trusted: bool, finish: Finish | None) -> int:
    """Continue a run with the settings that it began with."""
    from mbrl_hdp.experiments.runs import resume

    if not name:
        raise ConfigError("resume= names no run; write resume=RUN, the folder of a run")
    if has_more:
        raise ConfigError("resume=RUN stands alone: the settings are those of the run's own config.yaml")
    folder = Path(name)
    with _go_on_note(folder, is_trusted):
        result = resume(folder, is_trusted)
        if finish is not None:
            finish(folder)
        mark_finished(folder, result.return_mean)
    print(_closing_line(result, folder))
    return 0


@contextmanager
def _go_on_note(folder: Path, is_trusted: bool) -> Iterator[None]:
    """Add to any error that ends a started run how to resume it."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, ConfigError | CheckpointError):
            error.add_note(f"go on with `mbrl-hdp train resume={folder}{' --trust' if is_trusted else ''}`")
        raise


def _closing_line(result: Evaluation, folder: Path) -> str:
    count = "1 episode" if len(result.returns) == 1 else f"{len(result.returns)} episodes"
    return f"return {result.return_mean:.2f} +- {result.return_std:.2f} over {count}; {folder}"


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


def _job(finish: Finish | None, failures: list[Exception]) -> Callable[[DictConfig], float]:
    """Return the function that runs one job; a sweeper that optimises uses the mean return, its result.

    An exception goes to `failures`: Hydra would print lines of its own about it.
    """

    def job(config: DictConfig) -> float:
        """Run a job; return its mean return, NaN if it failed."""
        try:
            return _run(config, finish)
        except Exception as error:  # noqa: BLE001 - whatever it is, `run_app` raises it again
            failures.append(error)
            return float("nan")

    return job


def _sweep_job(finish: Finish | None) -> Callable[[DictConfig], float]:
    """Return the function that runs one job of a sweep, in whichever process; a finished job is not run again."""

    def job(config: DictConfig) -> float:
        """Run a job, going on from its checkpoint; return its mean return, NaN if it failed."""
        folder, home = Path(HydraConfig.get().runtime.output_dir), Path(HydraConfig.get().runtime.cwd)
        known = finished_return(folder)
        if known is not None:
            return known
        if home.is_dir():  # a worker on another machine starts elsewhere; modules of the user's are looked for here
            os.chdir(home)
        try:
            wait_until_free(folder)
            return _run(config, finish)
        except Exception as error:  # noqa: BLE001 - whatever it is, the other jobs go on and the table shows it
            mark_failed(folder, error)
            return float("nan")

    return job


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), "")


def _run(config: DictConfig, finish: Finish | None) -> float:
    typed = check_config(config)
    configure(typed.runtime)
    folder = Path(HydraConfig.get().runtime.output_dir)
    _check_folder("hydra.run.dir", folder, config)
    # Written whole, and before the slow imports: from here on the run can be ended and resumed.
    with atomic_path(folder / CONFIG) as path:
        OmegaConf.save(config, path, resolve=True)
    with _go_on_note(folder, is_trusted=needs_trust(read_config(folder))):
        from mbrl_hdp.experiments.history import note_start
        from mbrl_hdp.experiments.loop import train

        note_start(folder)
        registry = load_registry(disable=typed.disable_plugins, strict=typed.strict_plugins)
        result = train(typed, registry, folder)
        if finish is not None:
            finish(folder)
        mark_finished(folder, result.return_mean)
    print(_closing_line(result, folder))
    return result.return_mean
