"""The jobs of a command line: one for a run, several for a sweep; each with its configuration and its folder."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from hydra import compose
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from mbrl_hdp.errors import ConfigError
from mbrl_hdp.experiments.config import CONFIG_NAME, compose_job, composer, register_configs
from mbrl_hdp.experiments.explain import parse_overrides
from mbrl_hdp.hooks import Registry

_MAX_CHECKED_JOBS = 1000
_SWEEP_DIR = "hydra.sweep.dir"
_NOW = re.compile(r"\$\{now:([^}]*)\}")


class SweepJob(NamedTuple):
    """One run of a command line: its overrides (Hydra's own included) and its configuration."""

    overrides: list[str]
    config: DictConfig


def check_jobs(overrides: Sequence[str], registry: Registry, config_dirs: Sequence[Path] = ()) -> list[SweepJob]:
    """Compose and check every job of a (multi)run before the first one begins; return them in Hydra's order.

    Args:
        overrides: the command line's overrides.
        registry: plugins to choose from.
        config_dirs: folders with presets of the user's (`--config-dir`).
    """
    register_configs(registry)
    parsed = parse_overrides(overrides)
    hydras = [str(override.input_line) for override in parsed if override.key_or_group.startswith("hydra")]
    ours = [override for override in parsed if not override.key_or_group.startswith("hydra")]
    with composer(_search_path(parsed, config_dirs)):
        return [
            SweepJob([*hydras, *job], compose_job(job, CONFIG_NAME)) for job in islice(_jobs(ours), _MAX_CHECKED_JOBS)
        ]


def folder_of_job(
    overrides: Sequence[str], config_dirs: Sequence[Path] = (), number: int | None = None
) -> tuple[str, Path]:
    """Return the folder that Hydra will make for a job, and the key that decides it.

    Args:
        overrides: those of this job.
        config_dirs: folders with presets of the user's.
        number: the job's number within its sweep; None for a single run.

    Raises:
        ConfigError: if the folder's name is empty or cannot be composed.
    """
    key = "hydra.run.dir" if number is None else _SWEEP_DIR
    with composer(_search_path(parse_overrides(overrides), config_dirs)):
        try:
            config = compose(config_name=CONFIG_NAME, overrides=list(overrides), return_hydra_config=True)
            if number is None:
                parts = [config.hydra.run.dir]
            else:
                config.hydra.job.num = number
                parts = [config.hydra.sweep.dir, config.hydra.sweep.subdir]
        except (HydraException, OmegaConfBaseException) as error:
            raise ConfigError(" ".join(str(error).split())) from error
    if not parts[0]:
        raise ConfigError(f"{key}= names no folder; leave it out, or name one")
    return key, Path(*parts)


def _search_path(overrides: list[Override], config_dirs: Sequence[Path]) -> list[str]:
    """Return the places beside conf/ where Hydra will look for presets."""
    places = []
    for override in overrides:
        if override.key_or_group == "hydra.searchpath" and not override.is_sweep_override():
            value = override.value()
            places += [str(place) for place in value] if isinstance(value, list) else [str(value)]
    for folder in config_dirs:
        if not folder.is_dir():
            raise ConfigError(f"--config-dir {folder}: there is no such folder")
        places.append(f"file://{folder.absolute()}")
    return places


def _jobs(overrides: list[Override]) -> Iterator[list[str]]:
    """Expand sweeps (`seed=0,1`) into the jobs they stand for."""
    if not overrides:
        yield []
        return
    first, rest = overrides[0], overrides[1:]
    # Hydra's own sweep syntaxes that need a sweeper plugin's knowledge (glob) are left to it.
    values = (
        [f"{first.get_key_element()}={value}" for value in first.sweep_string_iterator()]
        if first.is_discrete_sweep()
        else [first.input_line or ""]
    )
    for value in values:
        for others in _jobs(rest):
            yield [value, *others]


class SweepPlan(NamedTuple):
    """The overrides of a sweep with its folder worked out, and the folders of its jobs."""

    overrides: list[str]
    folders: list[Path]


def plan_sweep(overrides: Sequence[str], jobs: Sequence[SweepJob], config_dirs: Sequence[Path] = ()) -> SweepPlan:
    """Return where the jobs of a sweep go: its folder made absolute, with the time in its name filled in.

    Workers on other machines may be in another directory, and whoever started the sweep reads its results there. The
    last override returned names the folder.

    Args:
        overrides: the command line's overrides.
        jobs: its jobs.
        config_dirs: folders with presets of the user's.

    Raises:
        ConfigError: if the folder's name is empty or cannot be composed.
    """
    folder, subfolder = _sweep_words(jobs[0], config_dirs)
    if not folder:
        raise ConfigError(f"{_SWEEP_DIR}= names no folder; leave it out, or name one")
    now = datetime.now()
    path = Path.cwd() / Path(_NOW.sub(lambda found: now.strftime(found[1]), folder)).expanduser()
    quoted = str(path).replace("\\", "\\\\").replace("'", "\\'")
    word = f"{_SWEEP_DIR}='{quoted}'"
    others = [each for each in overrides if each.lstrip("+").partition("=")[0] != _SWEEP_DIR]
    if "${" not in str(path) and subfolder == "${hydra.job.num}":  # composing takes long where there are many jobs
        folders = [path / str(number) for number in range(len(jobs))]
    else:
        folders = [folder_of_job([*job.overrides, word], config_dirs, number)[1] for number, job in enumerate(jobs)]
    return SweepPlan([*others, word], folders)


def _sweep_words(job: SweepJob, config_dirs: Sequence[Path]) -> tuple[str, str]:
    """Return `hydra.sweep.dir` and `hydra.sweep.subdir` as they are written, interpolations and all."""
    with composer(_search_path(parse_overrides(job.overrides), config_dirs)):
        try:
            config = compose(config_name=CONFIG_NAME, overrides=job.overrides, return_hydra_config=True)
        except (HydraException, OmegaConfBaseException) as error:
            raise ConfigError(" ".join(str(error).split())) from error
    plain = OmegaConf.to_container(config.hydra.sweep, resolve=False)
    assert isinstance(plain, dict)
    return str(plain["dir"] or ""), str(plain["subdir"])
