"""The summary of a run: returns with their uncertainty, contexts, versions."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats

from mbrl_hdp.data.atomic import atomic_path
from mbrl_hdp.experiments.diagnostics import SwitchLoss
from mbrl_hdp.experiments.episodes import Record
from mbrl_hdp.inference.scoring import align, switch_delays

if TYPE_CHECKING:
    from mbrl_hdp.experiments.loop import Run
    from mbrl_hdp.experiments.metrics import RunLog

Numbers = np.ndarray[Any, Any]
EpisodeScores = Callable[[Numbers], Mapping[str, float]]
SCHEMA_VERSION = 2  # 2: `truth_fed` in place of `switch_loss`
_PACKAGES = ("mbrl-hdp", "mbrl", "torch", "pyro-ppl", "gymnasium", "numpy", "numba", "hydra-core")


@dataclass(frozen=True)
class Evaluation:
    """Returns of evaluation episodes and how well the contexts were identified.

    Attributes:
        returns: one number per episode.
        return_mean: their mean.
        return_std: their standard deviation.
        return_iqm: mean of their middle half.
        return_ci: 95 % bootstrap interval of the mean.
        context_accuracy: share of steps whose filtered context was right, None where the truth is unknown.
        switch_delay: mean steps from a switch until the filter is right, None likewise.
        scores: means of what the environment measures besides the return (`episode_scores`), by name.
    """

    returns: list[float]
    return_mean: float
    return_std: float
    return_iqm: float
    return_ci: tuple[float, float]
    context_accuracy: float | None
    switch_delay: float | None
    scores: dict[str, float] = field(default_factory=dict)


def evaluation_of(records: list[Record], episode_scores: EpisodeScores | None = None) -> Evaluation:
    """Score evaluation episodes; the truth is read here and nowhere else.

    Args:
        records: the episodes.
        episode_scores: what the environment measures in the observations of an episode; None where it has nothing.
    """
    returns = np.array([record.episode_return for record in records])
    accuracy = delay = None
    if all(r.labels is not None and r.episode.context is not None for r in records):
        length = max(len(record.episode.obs) - 1 for record in records)
        labels, truth = (np.full((len(records), length), -1) for _ in range(2))
        for row, record in enumerate(records):
            assert record.labels is not None
            assert record.episode.context is not None
            labels[row, : len(record.labels)] = record.labels
            truth[row, : len(record.episode.context)] = record.episode.context
        found = align(labels, truth)
        accuracy = found.accuracy
        matched = np.where(labels >= 0, found.to_true[labels.clip(0)], -1)
        delays = switch_delays(matched, truth)
        delay = float(delays.mean()) if delays.size else None
    return Evaluation(
        returns=returns.tolist(),
        return_mean=float(returns.mean()),
        return_std=float(returns.std(ddof=1)) if len(returns) > 1 else 0.0,
        return_iqm=float(stats.trim_mean(returns, 0.25)),
        return_ci=bootstrap_interval([returns]),
        context_accuracy=accuracy,
        switch_delay=delay,
        scores={} if episode_scores is None else _mean_scores([episode_scores(r.episode.obs) for r in records]),
    )


def _mean_scores(rows: list[Mapping[str, float]]) -> dict[str, float]:
    return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}


def bootstrap_interval(groups: Sequence[Numbers], num_draws: int = 2000) -> tuple[float, float]:
    """Return the 95 % interval of the mean of group means by a hierarchical bootstrap.

    Every draw takes as many groups (seeds) as there are, with replacement, and then as many numbers (episodes) of each
    as it has, with replacement: the interval has the spread between seeds and that within them. With one group it is
    the plain bootstrap. With few seeds it is still too narrow: the variance between G seeds counts as (G - 1) / G of
    what it is.

    Args:
        groups: one array of numbers per seed.
        num_draws: draws of the bootstrap, always with the same random numbers.
    """
    rng = np.random.default_rng(0)
    picks = rng.integers(len(groups), size=(num_draws, len(groups)))
    means = np.empty(picks.shape)
    for number, group in enumerate(groups):
        is_picked = picks == number
        means[is_picked] = rng.choice(group, (int(is_picked.sum()), len(group))).mean(-1)
    low, high = np.quantile(means.mean(-1), [0.025, 0.975])
    return float(low), float(high)


def write_summary(folder: Path, run: Run, result: Evaluation, loss: SwitchLoss | None, log: RunLog) -> None:
    """Write summary.json."""
    model = run.model
    times = time_breakdown(log.rows)
    words = {
        "schema_version": SCHEMA_VERSION,
        "env": run.config.env.name,
        "agent": run.config.agent.name,
        "profile": run.config.profile,
        **asdict(result),
        "evaluated_on": run.task.report_kwargs,
        "num_eval_episodes": len(result.returns),
        "num_real_episodes": run.num_episodes,
        "env_steps": run.env_steps,
        "wall_time_s": round(max(sum(times.values()), time.perf_counter() - log.started), 3),
        "time_breakdown_s": times,
        "num_contexts": None if model is None else model.num_contexts,
        "stationary": None if model is None else model.stationary.tolist(),
        "truth_fed": None if loss is None else asdict(loss),
        "seed": run.config.seed,
        "versions": versions(),
        "git_commit": git_commit(),
    }
    with atomic_path(folder / "summary.json") as path:
        path.write_text(json.dumps(words, indent=2))


def time_breakdown(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return the seconds of all epochs by use: environment, acting, model, agent's learning, evaluation."""
    places = ("env_s", "act_s", "model_s", "agent_s", "evaluate_s")
    return {name.removesuffix("_s"): round(sum(row.get(name) or 0.0 for row in rows), 3) for name in places}


def versions() -> dict[str, str]:
    """Return the versions that a number depends on."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def git_commit() -> str | None:
    """Return the commit of the checkout that runs, None for an installed wheel."""
    here = Path(__file__).resolve()
    try:
        # A wheel inside somebody else's checkout must not report that checkout's commit.
        tracked = _git(here.parent, "ls-files", "--error-unmatch", here.name)
        return _git(here.parent, "rev-parse", "HEAD") if tracked else None
    except OSError:
        return None


def _git(folder: Path, *words: str) -> str | None:
    done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=False, timeout=10)
    return done.stdout.strip() if done.returncode == 0 and done.stdout.strip() else None
