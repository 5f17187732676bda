"""`mbrl-hdp fit`: learn a model from a data file and overrides, and save it."""

from __future__ import annotations

import fnmatch
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from mbrl_hdp.data.atomic import atomic_path, clear_leftovers
from mbrl_hdp.data.files import read_log
from mbrl_hdp.data.logs import Log, count_of
from mbrl_hdp.data.manifest import write_manifest
from mbrl_hdp.data.names import Names
from mbrl_hdp.data.reduction import Reduction, remarks
from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.data.turns import TURNS, jumping_angles, turn_remarks
from mbrl_hdp.errors import ConfigError, did_you_mean, short
from mbrl_hdp.experiments.columns import ColumnNames
from mbrl_hdp.experiments.config import FIT_CONFIG_NAME, FitMainConfig, check_fit_config, load_config, registry_for
from mbrl_hdp.experiments.explain import parse_overrides
from mbrl_hdp.experiments.run_folder import check_can_hold
from mbrl_hdp.hooks import Registry
from mbrl_hdp.runtime import configure
from mbrl_hdp.workers import open_workers

if TYPE_CHECKING:
    from mbrl_hdp.experiments.update import Previous
    from mbrl_hdp.inference.model import ContextModel


@dataclass(frozen=True)
class FitJob:
    """A checked request for one fit; nothing has been read or written yet.

    Attributes:
        source: data file or `minari:ID`.
        config: its settings, as composed.
        typed: the same as checked objects.
        registry: plugins to choose from.
    """

    source: str
    config: DictConfig
    typed: FitMainConfig
    registry: Registry

    @property
    def out(self) -> Path:
        """Folder of the results."""
        return Path(self.typed.out)

    def yaml(self) -> str:
        """Return the settings as the text of config.yaml."""
        return OmegaConf.to_yaml({"data": self.source}) + OmegaConf.to_yaml(self.config)


@dataclass(frozen=True)
class FitOutcome:
    """A finished fit, with what the model says about its data, and remarks on new contexts and the alarm."""

    job: FitJob
    log: Log
    columns: ColumnNames
    model: Any
    analysis: Any
    remarks: Sequence[str] = ()


def prepare(words: Sequence[str], is_data_needed: bool = True) -> FitJob:
    """Check a command line: one data file, then overrides.

    Raises:
        ConfigError: naming the word that is wrong, before anything is read or written.
    """
    sources = [word for word in words if _is_source(word)]
    overrides = [word for word in words if not _is_source(word)]
    if len(sources) > 1:
        raise ConfigError(
            f"one source of data, got {', '.join(map(short, sources[:3]))}{', ...' if len(sources) > 3 else ''}; of "
            "several files name the folder, or a pattern in quotes ('runs/*.csv'); write settings as key=value"
        )
    for override in parse_overrides(overrides):
        if override.is_sweep_override():
            raise ConfigError(f"{override.input_line}: one value at a time; run `mbrl-hdp fit` once for each")
    registry = registry_for(overrides)
    config = load_config(overrides, registry, FIT_CONFIG_NAME)
    if not sources and is_data_needed:
        raise ConfigError(
            "which data? name a .csv, .npz or parquet file or minari:ID, as in `mbrl-hdp fit logs.csv max_contexts=10 "
            "out=DIR`"
        )
    typed = check_fit_config(config)
    if not typed.out:
        raise ConfigError("out= names no folder; leave it out, or name one, as in out=DIR")
    check_can_hold("out", Path(typed.out))
    if typed.update is not None and typed.pca is not None:
        raise ConfigError("pca= and update=: an update reads its data as the model's own was read; leave pca= out")
    if typed.angles and typed.pca is not None:
        raise ConfigError("pca= and angles=: principal components are no angles; leave one of them out")
    if (Path(typed.out) / "model.safetensors").exists() and not typed.overwrite and is_data_needed:
        raise ConfigError(f"out={typed.out} holds a model; choose another folder, or overwrite=true replaces it")
    return FitJob(sources[0] if sources else "", config, typed, registry)


def _is_source(word: str) -> bool:
    return "=" not in word or Path(word).is_file() or word.startswith("minari:")


def run_job(job: FitJob, progress: bool = True) -> FitOutcome:
    """Read the data, fit, and write model, labels and configuration to the job's folder.

    Raises:
        DataError: if the data cannot be used; nothing is written then.
        FitError: if it cannot be learned from; nothing is written then.
    """
    for problem in job.registry.problems:
        print(f"warning: {problem}", file=sys.stderr)
    configure(job.typed.runtime)
    from mbrl_hdp.experiments.label_command import save_labels  # torch is imported after its threads are set
    from mbrl_hdp.experiments.update import Previous
    from mbrl_hdp.experiments.update import remarks as update_remarks

    typed = job.typed
    before = None if typed.update is None else Previous.load(Path(typed.update), job.registry)
    log, columns = _read(job, before, progress)
    for note in columns.notes if before is None else (*log.notes, *remarks(log), *turn_remarks(log)):
        print(note, file=sys.stderr)
    model = _learn(job, log, before, progress)
    clear_leftovers(job.out)
    model.save(job.out)
    columns.save(job.out)
    found = model.analyse(log.data)
    save_labels(found, job.out / "labels.csv", log)
    with atomic_path(job.out / "config.yaml") as path:
        path.write_text(job.yaml())
    write_manifest(job.out, names=("model.safetensors", "model.json", "columns.json", "config.yaml"))
    return FitOutcome(job, log, columns, model, found, update_remarks(model, before is not None))


def _read(job: FitJob, before: Previous | None, progress: bool) -> tuple[Log, ColumnNames]:
    """Read the data, as that of the model to update was read if there is one."""
    log = read_log(job.source, job.typed) if before is None else before.read_new(job.source, job.typed)
    _check_angles(job.typed.angles, log)
    if before is not None:
        return log, before.columns
    reduction = None if job.typed.pca is None else Reduction.of(log, job.typed.pca)
    if reduction is not None:
        log = reduction.apply(log)
    elif job.typed.external == "auto" and job.typed.dynamics.name == "auto":
        log = _with_external_inputs(log, job.typed.max_contexts, progress)
    return log, ColumnNames.of(log, job.typed, reduction)


def _with_external_inputs(log: Log, max_contexts: int, progress: bool) -> Log:
    """Make observed columns that nothing recorded influences further inputs, and say so."""
    from mbrl_hdp.inference.progress import search_progress
    from mbrl_hdp.inference.search.external import external_columns

    with search_progress("columns that nothing influences", progress):
        columns = external_columns(log.data, max_contexts)
    if not columns:
        return log
    names = Names.of(log).with_inputs(columns)
    moved = names.act[len(log.act_names) :]
    is_one = len(moved) == 1
    note = (
        f"{', '.join(moved)}: nothing recorded influences {'it' if is_one else 'them'} (weather, load, ...), so "
        f"{'it is an input' if is_one else 'they are inputs'} here, and the contexts are those of the other columns; "
        "external=keep leaves it as it was"
    )
    data = log.data.with_inputs(columns)
    return replace(log, data=data, obs_names=tuple(names.obs), act_names=tuple(names.act), notes=(*log.notes, note))


def _learn(job: FitJob, log: Log, before: Previous | None, progress: bool) -> ContextModel:
    """Learn the model; calibrate its alarm on data that was kept aside."""
    from mbrl_hdp.experiments.update import hold_out
    from mbrl_hdp.inference.fit import check_learnable, fit
    from mbrl_hdp.inference.progress import PlainLines

    typed, aside = job.typed, None
    data = log.data if before is None else Trajectories.concatenate([before.data, log.data])
    if typed.alarm_holdout:
        data, aside = hold_out(data, typed.alarm_holdout, typed.seed)
    check_learnable(data, None if before is None else before.model, None, typed.max_contexts)
    size = f"{count_of(data.num_transitions, 'step')} of {count_of(data.num_episodes, 'episode')}"
    begun = f"searching for contexts in {size}; the runs below start from what is found"
    PlainLines(progress, Console(stderr=True)).says(begun, is_due=True)
    model = fit(
        data,
        _part(typed.prior),
        _part(typed.distillation),
        _part(typed.dynamics),
        typed.max_contexts,
        typed.seed,
        duration=_part(typed.duration),
        config=typed.fit if before is None else replace(typed.fit, search_again="always"),
        warm_start=None if before is None else before.model,
        dt=log.dt if typed.dt is None else typed.dt,
        past=typed.past,
        angles=_angle_columns(typed.angles, log) or None,
        progress=progress,
        registry=job.registry,
        device=typed.device,
        workers=partial(open_workers, typed.workers, typed.jobs),
    )
    model.names = Names.of(log).of_episodes()
    if aside is not None:
        model.novelty_alarm(aside)
    return model


def _check_angles(patterns: Sequence[str], log: Log) -> None:
    """Refuse angles that are no observations, or no radians that go on beyond a turn.

    Raises:
        ConfigError: naming the column and what to do.
    """
    for pattern in patterns:
        if not fnmatch.filter(log.obs_names, pattern):
            known = did_you_mean(pattern, list(log.obs_names))
            raise ConfigError(f"angles=[{', '.join(patterns)}]: {pattern!r} is no observation; {known}")
    named = _angle_columns(patterns, log)
    for column, turn, count in jumping_angles(log.data):
        if column in named:
            raise ConfigError(
                f"angles=[{', '.join(patterns)}]: {log.obs_names[column]} jumps by a whole turn of {turn:.4g} "
                f"({count_of(count, 'time')}); an angle is in radians here and goes on beyond a turn, as "
                f"{TURNS[turn]} makes it; without angles= the column is read as it is"
            )


def _angle_columns(patterns: Sequence[str], log: Log) -> list[int]:
    """Return the numbers of the observations that were named as angles; a column that became an input is none."""
    return [
        column for column, name in enumerate(log.obs_names) if any(fnmatch.fnmatchcase(name, each) for each in patterns)
    ]


def _part(config: Any) -> Any:
    from mbrl_hdp.inference.model import Part

    return Part(config.name, config)
