"""Find training runs on disk and group them by the settings in which they differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from mbrl_hdp.errors import DataError
from mbrl_hdp.experiments.run_folder import CONFIG, read_config
from mbrl_hdp.report.curves import RunHistory, read_run

# Settings in which seeds of one group may differ: they decide how a run is carried out, not what it is.
_NOT_COMPARED = ("seed", "runtime.", "device", "strict_plugins", "disable_plugins", "progress")
# These name a group first, in this order; any other setting only where they leave two groups with one name.
_NAMES_FIRST = (
    *("agent.name", "profile", "recipe", "max_contexts"),
    *("planner.name", "prior.name", "dynamics.name", "distillation.name"),
)
ABSENT = "-"
_Key = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class RunGroup:
    """Runs that differ in their seed only.

    Attributes:
        name: the agent, and as few other settings as tell it from the other groups of its environment.
        env: name of the environment.
        settings: every setting in which the groups of its environment differ, with its value; `-` where it has none.
        runs: the runs, by seed.
    """

    name: str
    env: str
    settings: Mapping[str, str]
    runs: tuple[RunHistory, ...]


def find_runs(paths: Iterable[str | Path]) -> tuple[list[Path], list[str]]:
    """Return the run directories of paths: runs, folders with runs anywhere below (sweeps), or patterns of either.

    Returns:
        The runs, each once, and a remark on every run that has nothing to show yet.

    Raises:
        DataError: naming a path that is not there or holds no run.
    """
    found: dict[Path, Path] = {}
    remarks = []
    for path in paths:
        for folder in _expanded(str(path)):
            for run in _runs_below(folder):
                if (run / "metrics.csv").is_file():
                    found.setdefault(run.resolve(), run)
                else:
                    remarks.append(f"{run} has not finished its first epoch and is left out")
    return list(found.values()), list(dict.fromkeys(remarks))


def _expanded(path: str) -> list[Path]:
    if not any(sign in path for sign in "*?["):
        if not Path(path).is_dir():
            raise DataError(f"{path}: there is no such folder; name runs or sweeps of `mbrl-hdp train`")
        return [Path(path)]
    anchor = Path(path).anchor
    matches = Path(anchor or ".").glob(str(Path(path).relative_to(anchor)) if anchor else path)
    folders = sorted(match for match in matches if match.is_dir())
    if not folders:
        raise DataError(f"{path}: no folder matches this pattern")
    return folders


def _runs_below(folder: Path) -> list[Path]:
    """Return the folder if it is a run, else the runs below it."""
    if (folder / CONFIG).is_file() and not (folder / "metrics.csv").is_file():
        read_config(folder)  # says what it is instead: a fit's folder has a config.yaml, too
        return [folder]
    if (folder / "metrics.csv").is_file():
        return [folder]
    below = sorted(path.parent for path in folder.rglob(CONFIG) if path.parent.name != ".hydra")
    runs = [path for path in below if (path / "metrics.csv").is_file() or _is_begun(path)]
    if not runs:
        raise DataError(f"{folder} is not a run of `mbrl-hdp train` and holds none (no metrics.csv in it or below)")
    return runs


def _is_begun(folder: Path) -> bool:
    return (folder / "app.log").is_file()


def group_runs(folders: Sequence[Path]) -> tuple[list[RunGroup], list[str]]:
    """Group runs by every setting but the seed, those of one environment beside each other.

    Returns:
        The groups in the order of their first run, and remarks on runs that were left out.

    Raises:
        DataError: if a folder is no run, or its files are damaged.
    """
    by_env: dict[str, dict[_Key, list[RunHistory]]] = {}
    for folder in folders:
        run = read_run(folder)
        by_env.setdefault(run.env, {}).setdefault(tuple(sorted(_settings(folder).items())), []).append(run)
    groups: list[RunGroup] = []
    remarks: list[str] = []
    for env, members in by_env.items():
        settings = [dict(key) for key in members]
        differing = _differing(settings)
        for own, name, runs in zip(settings, _names(settings, differing), members.values(), strict=True):
            shown = {key: own.get(key, ABSENT) for key in differing}
            groups.append(RunGroup(name, env, shown, _once_a_seed(runs, remarks)))
    return groups, remarks


def _settings(folder: Path) -> dict[str, str]:
    """Return the settings of a run that are compared, by dotted key."""
    flat = pd.json_normalize(read_config(folder), sep=".").iloc[0].to_dict()
    return {key: str(value) for key, value in flat.items() if not key.startswith(_NOT_COMPARED)}


def _once_a_seed(runs: Sequence[RunHistory], remarks: list[str]) -> tuple[RunHistory, ...]:
    """Sort runs by seed; of two with one seed keep the finished one, or the later: they are no independent draws."""
    kept: dict[int | Path, RunHistory] = {}
    for run in runs:
        seed = run.folder if run.seed is None else run.seed
        other = kept.get(seed)
        best = other if other is not None and other.summary and not run.summary else run
        if other is not None:
            left = run if best is other else other
            remarks.append(f"{left.folder} is left out: it has the settings and the seed of {best.folder}")
        kept[seed] = best
    return tuple(sorted(kept.values(), key=lambda run: (run.seed is None, run.seed or 0, str(run.folder))))


def _differing(settings: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the keys whose values differ, those that name a group first."""
    keys = dict.fromkeys(key for own in settings for key in own)
    ordered = [*(key for key in _NAMES_FIRST if key in keys), *(key for key in keys if key not in _NAMES_FIRST)]
    return [key for key in ordered if len({own.get(key, ABSENT) for own in settings}) > 1]


def _names(settings: Sequence[Mapping[str, str]], differing: Sequence[str]) -> list[str]:
    """Name every group by its agent and as few further settings as tell all groups apart."""
    parts = [[own.get("agent.name", "agent")] for own in settings]
    for key in differing:
        values = [own.get(key, ABSENT) for own in settings]
        told_apart = len({tuple(own) for own in parts})
        if len({(*own, value) for own, value in zip(parts, values, strict=True)}) > told_apart:
            for own, value in zip(parts, values, strict=True):
                own.append(f"{key.removesuffix('.name')}={value}")
    return [" ".join(own) for own in parts]
