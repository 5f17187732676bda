"""Compare training runs: one row a group of seeds, learning curves, and how likely one group is better than another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from mbrl_hdp.errors import DataError
from mbrl_hdp.experiments.statistics import improvement, return_statistics
from mbrl_hdp.experiments.summary import bootstrap_interval
from mbrl_hdp.report.curves import RunHistory
from mbrl_hdp.report.run_groups import RunGroup, find_runs, group_runs

Numbers = np.ndarray[Any, Any]
ALL_ENVS = "all environments"


@dataclass(frozen=True)
class Row:
    """What the finished runs of a group reached; None where there is nothing to say.

    Attributes:
        name: name of the group.
        env: name of the environment.
        settings: every setting in which the groups differ, with this group's value.
        seeds: seeds of the finished runs.
        unfinished: seeds of the runs without a final evaluation; they are in the curves only.
        num_episodes: evaluation episodes of all finished runs.
        mean: mean over seeds of the mean return.
        std: standard deviation of the return over all episodes.
        iqm: mean of the middle half of all episodes' returns.
        interval: 95 % interval of the mean, hierarchical bootstrap: seeds, then episodes.
        num_contexts: contexts found by each seed.
        accuracy: share of steps whose filtered context was right, mean over seeds.
        real_episodes: episodes played in the real environment, mean over seeds.
        minutes: time of a run, mean over seeds.
        runs: the runs, finished or not.
    """

    name: str
    env: str
    settings: Mapping[str, str]
    seeds: tuple[int | None, ...]
    unfinished: tuple[int | None, ...]
    num_episodes: int
    mean: float | None = None
    std: float | None = None
    iqm: float | None = None
    interval: tuple[float, float] | None = None
    num_contexts: tuple[int, ...] = ()
    accuracy: float | None = None
    real_episodes: float | None = None
    minutes: float | None = None
    runs: tuple[RunHistory, ...] = ()


@dataclass(frozen=True)
class Curve:
    """The learning curve of a group.

    Attributes:
        name: name of the group.
        env: name of the environment.
        episodes: real episodes seen so far, where every finished seed was evaluated; of all seeds if none is finished.
        mean: mean return over seeds.
        low: lower end of the 95 % bootstrap interval over seeds; empty with a single seed.
        high: upper end.
        seeds: episodes and mean returns of each seed, finished or not.
    """

    name: str
    env: str
    episodes: tuple[float, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    seeds: tuple[tuple[tuple[float, ...], tuple[float, ...]], ...]


@dataclass(frozen=True)
class Pair:
    """How likely a run of one group has a higher mean return than a run of another.

    Attributes:
        one: name of the group.
        other: name of the group it is compared with.
        env: name of the environment, or `ALL_ENVS`: the mean over the environments that both have.
        probability: share of pairs of runs in which the first is better; a tie counts half.
        interval: 95 % interval, bootstrap over seeds within group and environment; None with a single seed anywhere.
    """

    one: str
    other: str
    env: str
    probability: float
    interval: tuple[float, float] | None


@dataclass(frozen=True)
class Comparison:
    """Runs side by side.

    Attributes:
        rows: one a group.
        curves: one a group, in the same order.
        pairs: every two groups of one environment, then of all environments.
        remarks: what a reader should know of runs that are unfinished or left out.
    """

    rows: tuple[Row, ...]
    curves: tuple[Curve, ...]
    pairs: tuple[Pair, ...]
    remarks: tuple[str, ...]

    @property
    def envs(self) -> tuple[str, ...]:
        """Names of the environments."""
        return tuple(dict.fromkeys(row.env for row in self.rows))

    @property
    def versions(self) -> dict[str, str] | None:
        """Versions of Python and packages, where all finished runs have the same; else None."""
        found = [run.summary.get("versions") for row in self.rows for run in row.runs]
        return found[0] if found and all(each == found[0] for each in found) else None


def compare_runs(paths: Iterable[str | Path]) -> Comparison:
    """Compare runs, grouped by every setting in which they differ, except for the seed.

    Runs of different environments are different groups; returns are never averaged over environments.

    Args:
        paths: run directories, folders with runs below (sweeps), or patterns such as `multirun/*`.

    Raises:
        DataError: if a path holds no run, or no run has finished an epoch.

    Example:
        >>> compare_runs(["multirun/2022-01-01"]).rows[0].mean
    """
    folders, remarks = find_runs(paths)
    if not folders:
        raise DataError("; ".join(remarks) or "name at least one run directory of `mbrl-hdp train`")
    groups, more = group_runs(folders)
    for group in groups:
        waiting = [run.folder for run in group.runs if not run.summary]
        more += [f"{folder} is unfinished: its curve is shown, the table leaves it out" for folder in waiting]
    commits = {run.summary.get("git_commit") for group in groups for run in group.runs if run.summary}
    if len(commits) > 1:
        more.append(f"the runs were made by {len(commits)} versions of the code (git_commit in their summary.json)")
    return Comparison(
        tuple(_row(group) for group in groups),
        tuple(_curve(group) for group in groups),
        tuple(_pairs(groups)),
        (*remarks, *more),
    )


def _row(group: RunGroup) -> Row:
    done = _finished(group)
    seeds, waiting = tuple(run.seed for run in done), tuple(run.seed for run in group.runs if not run.summary)
    if not done:
        return Row(group.name, group.env, group.settings, seeds, waiting, 0, runs=group.runs)
    found = return_statistics([_returns(run) for run in done])
    return Row(
        group.name,
        group.env,
        group.settings,
        seeds,
        waiting,
        num_episodes=found.num_episodes,
        mean=found.mean,
        std=found.std,
        iqm=found.iqm,
        interval=found.interval,
        num_contexts=tuple(int(number) for number in _known(done, "num_contexts")),
        accuracy=_mean(_known(done, "context_accuracy")),
        real_episodes=_mean(_known(done, "num_real_episodes")),
        minutes=_mean([seconds / 60.0 for seconds in _known(done, "wall_time_s")]),
        runs=group.runs,
    )


def _finished(group: RunGroup) -> list[RunHistory]:
    return [run for run in group.runs if run.summary]


def _returns(run: RunHistory) -> Numbers:
    """Return the returns of a finished run's evaluation episodes.

    Raises:
        DataError: if its summary has none.
    """
    found = run.summary.get("returns")
    is_list = isinstance(found, list) and all(isinstance(value, int | float) for value in found)
    returns = np.array(found if is_list else [], dtype=float)
    if not len(returns) or not np.isfinite(returns).all():
        raise DataError(f"{run.folder / 'summary.json'} has no list `returns` of finite numbers; evaluate the run anew")
    return returns


def _known(runs: Sequence[RunHistory], key: str) -> list[float]:
    return [run.summary[key] for run in runs if isinstance(run.summary.get(key), int | float)]


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if len(values) else None


def _curve(group: RunGroup) -> Curve:
    seeds = [(x, y) for x, y, _ in (run.evaluations for run in group.runs) if len(x)]
    whole = [(x, y) for x, y, _ in (run.evaluations for run in _finished(group)) if len(x)] or seeds
    drawn = tuple((tuple(x.tolist()), tuple(y.tolist())) for x, y in seeds)
    if not whole:
        return Curve(group.name, group.env, (), (), (), (), drawn)
    first, last = max(x.min() for x, _ in whole), min(x.max() for x, _ in whole)
    places = np.unique(np.concatenate([x for x, _ in whole]))
    places = places[(places >= first) & (places <= last)]
    values = np.array([np.interp(places, x, y) for x, y in whole])
    ends = [] if len(whole) == 1 else [bootstrap_interval([own[None] for own in at]) for at in values.T]
    low, high = (tuple(end[side] for end in ends) for side in (0, 1))
    return Curve(group.name, group.env, tuple(places.tolist()), tuple(values.mean(0).tolist()), low, high, drawn)


def _pairs(groups: Sequence[RunGroup]) -> list[Pair]:
    """Compare every two groups with finished runs: within each environment, then over those that both have."""
    scores: dict[str, dict[str, Numbers]] = {}
    for group in groups:
        means = np.array([_returns(run).mean() for run in _finished(group)])
        if len(means):
            scores.setdefault(group.name, {})[group.env] = means
    pairs, pooled = [], []
    for one, other in combinations(scores, 2):
        shared = {env: (scores[one][env], scores[other][env]) for env in scores[one] if env in scores[other]}
        pairs += [_pair(one, other, env, [both]) for env, both in shared.items()]
        if len(shared) > 1:
            pooled.append(_pair(one, other, ALL_ENVS, list(shared.values())))
    envs = list(dict.fromkeys(group.env for group in groups))
    return [*sorted(pairs, key=lambda pair: envs.index(pair.env)), *pooled]


def _pair(one: str, other: str, env: str, scores: Sequence[tuple[Numbers, Numbers]]) -> Pair:
    found = improvement(scores)
    return Pair(one, other, env, found.probability, found.interval)
