"""`mbrl-hdp label`: the context of every step of a data file, by a model on disk."""

from __future__ import annotations

import csv
import dataclasses
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from mbrl_hdp.belief.novelty import Course
from mbrl_hdp.data.atomic import atomic_path
from mbrl_hdp.data.files import read_log
from mbrl_hdp.data.logs import Log, count_of
from mbrl_hdp.data.roles import LogConfig
from mbrl_hdp.errors import ConfigError, DataError, did_you_mean
from mbrl_hdp.experiments.columns import ColumnNames
from mbrl_hdp.experiments.explain import parse_overrides
from mbrl_hdp.inference.alarm import DEFAULT_STEPS_PER_ALARM, NoveltyAlarm
from mbrl_hdp.inference.analysis import Analysis
from mbrl_hdp.inference.model import ContextModel
from mbrl_hdp.inference.saving import load
from mbrl_hdp.inference.scoring import align


def save_labels(found: Analysis, path: Path, log: Log | None = None, course: Course | None = None) -> None:
    """Write one row a step: episode, step, filtered_0.., smoothed_0.., most_likely.

    Where there is an alarm, `novelty` (from 0 to 1) and `alarm` (1 where it was raised) follow; where the data has
    them, `time` (the stamp at which the step begins) and `episode_name`, as they stand there.
    """
    log = log or Log(found.data, (), ())
    header = [f"{kind}_{k}" for kind in ("filtered", "smoothed") for k in range(found.filtered.shape[-1])]
    more = ["novelty", "alarm"] * (course is not None)
    more += ["time"] * bool(log.stamps) + ["episode_name"] * bool(log.episode_names)
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["episode", "step", *header, "most_likely", *more])
        for episode in range(found.data.num_episodes):
            writer.writerows(_rows(found, episode, log, course))


def _rows(found: Analysis, episode: int, log: Log, course: Course | None) -> Iterator[list[Any]]:
    length = int(found.data.lengths[episode])
    probs = np.concatenate([found.filtered[episode, :length], found.smoothed[episode, :length]], -1).tolist()
    path = found.most_likely[episode, :length].tolist()
    stamps = [[stamp] for stamp in log.stamps[episode][:length]] if log.stamps else [[]] * length
    alarms: list[list[Any]] = [[]] * length
    if course is not None:
        shares, raised = course.share[episode, :length], course.is_alarm[episode, :length]
        alarms = [[f"{share:.4g}", int(is_alarm)] for share, is_alarm in zip(shares, raised, strict=True)]
    name = [log.episode_names[episode]] if log.episode_names else []
    for step, (row, label, alarm, stamp) in enumerate(zip(probs, path, alarms, stamps, strict=True)):
        yield [episode, step, *(f"{value:.6g}" for value in row), label, *alarm, *stamp, *name]


def label_file(
    folder: str,
    source: str,
    out: str,
    words: Sequence[str] = (),
    false_alarms_per: float = DEFAULT_STEPS_PER_ALARM,
) -> str:
    """Label a data file by the model in a folder; write a CSV file and return a text that describes it.

    The file is read as the model's own data was; its columns may stand in any order, others are left out.

    Args:
        folder: what `mbrl-hdp fit` wrote.
        source: data file or `minari:ID`.
        out: CSV file to write.
        words: settings of the columns that differ for this file, as in `time=stamp`.
        false_alarms_per: steps between false novelty alarms, where the model has a calibrated alarm.

    Raises:
        CheckpointError: if there is no model in the folder.
        DataError: if the data is not what the model was learned on, or `out` cannot be written.
        ConfigError: naming the setting that is wrong.
    """
    changes = _changes(words)
    _check_out(Path(out), source)
    model = load(folder)
    known = ColumnNames.load(Path(folder))
    log = read_log(source, LogConfig(**changes)) if known is None else known.read_same(source, changes)
    for note in log.notes:
        print(note, file=sys.stderr)
    found = model.analyse(log.data)
    alarm = None if model.novelty is None else model.novelty_alarm(None, false_alarms_per)
    course = None if alarm is None else alarm.scan(found)
    save_labels(found, Path(out), log, course)
    text = describe(model, found, out)
    return text if alarm is None or course is None else f"{text}\n{describe_alarms(found, course, alarm)}"


def describe_alarms(found: Analysis, course: Course, alarm: NoveltyAlarm) -> str:
    """Return where the novelty alarm was raised, what its rate rests on, and how many steps it could not judge."""
    raised = np.argwhere(course.is_alarm)
    where = f"; first in episode {raised[0, 0]}, step {raised[0, 1]}" if len(raised) else ""
    outside = 1.0 - course.is_judged[found.data.is_step].mean()
    per, num_held_out = alarm.false_alarms_per, alarm.calibration.table.num_steps
    rests = "" if num_held_out >= per else f", extrapolated from {num_held_out:,} held-out steps"
    return (
        f"novelty alarms: {len(raised)}{where} (false ones: at most one in {per:,.0f} steps on average{rests}; "
        f"{outside:.1%} of the steps lie outside what it was calibrated on and are not judged)"
    )


def _changes(words: Sequence[str]) -> dict[str, Any]:
    """Return settings of `LogConfig` from a command line.

    Raises:
        ConfigError: naming the word that is wrong.
    """
    known = [field.name for field in dataclasses.fields(LogConfig)]
    changes: dict[str, Any] = {}
    for override in parse_overrides(words):
        key = override.key_or_group
        if key not in known or override.is_sweep_override():
            raise ConfigError(f"{override.input_line}: `label` has no setting {key!r}; {did_you_mean(key, known)}")
        changes[key] = override.value()
    try:
        OmegaConf.merge(OmegaConf.structured(LogConfig), changes)  # checks the types
        LogConfig(**changes).check()
    except OmegaConfBaseException as error:
        raise ConfigError(" ".join(str(error).split())) from error
    return changes


def _check_out(out: Path, source: str) -> None:
    """Raise, before any work, if the labels would go nowhere or in place of a model or the data."""
    if not out.name:
        raise DataError("-o names no file; write -o labels.csv")
    if out.is_dir():
        raise DataError(f"cannot write {out}: it is a folder; name a CSV file")
    if not out.absolute().parent.is_dir():
        raise DataError(f"cannot write {out}: there is no folder {out.parent}")
    if out.suffix.lower() != ".csv":
        raise DataError(f"-o {out}: labels are a table; name a file that ends in .csv")
    if out.exists() and Path(source).exists() and out.samefile(source):
        raise DataError(f"-o {out} would overwrite the data; name another file")


def describe(model: ContextModel, found: Analysis, out: str) -> str:
    """Return how often each context was active, how likely the data is and, with true contexts, the accuracy."""
    data = found.data
    counts = np.bincount(found.most_likely[data.is_step], minlength=model.num_contexts)
    shares = ", ".join(f"context {k} {count / counts.sum():.1%}" for k, count in enumerate(counts))
    lines = [
        f"{count_of(data.num_transitions, 'step')} of {count_of(data.num_episodes, 'episode')} -> {out}",
        f"share of steps: {shares}",
        f"log-likelihood per step: {found.log_likelihood_per_step:.4g}" + _compared(model, found),
    ]
    if data.context is not None:
        lines.append(f"accuracy against the file's contexts: {align(found.most_likely, data.context).accuracy:.4f}")
    return "\n".join(lines)


def _compared(model: ContextModel, found: Analysis) -> str:
    """Compare the likelihood with that of the fit's (held-out) episodes: much lower means data of another kind."""
    scores = [run["held_out_log_likelihood"] for run in model.report.runs if run.get("taken")]
    if not scores:
        return ""
    source = "held-out data of" if model.report.num_held_out else "the data of"
    words = f" ({source} the fit, before its last polish: {scores[0]:.4g}"
    is_strange = found.log_likelihood_per_step < scores[0] - max(3.0, abs(scores[0]))
    return words + ("; far lower here: is this the same machine in the same units?)" if is_strange else ")")
