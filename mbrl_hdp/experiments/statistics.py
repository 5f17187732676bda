"""What is said of the returns of agents: mean, spread, middle half, interval, and which of two is better; with n."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from mbrl_hdp.experiments.summary import bootstrap_interval

Numbers = np.ndarray[Any, Any]
NUM_DRAWS = 2000


@dataclass(frozen=True)
class ReturnStatistics:
    """The returns of an agent's evaluation episodes over several seeds.

    Attributes:
        mean: mean over seeds of their mean return.
        std: standard deviation of the return over all episodes.
        iqm: mean of the middle half of all episodes' returns.
        interval: 95 % interval of the mean, hierarchical bootstrap: seeds, then episodes.
        num_seeds: number of seeds.
        num_episodes: number of episodes of all seeds.
    """

    mean: float
    std: float
    iqm: float
    interval: tuple[float, float]
    num_seeds: int
    num_episodes: int


def return_statistics(groups: Sequence[Numbers]) -> ReturnStatistics:
    """Return the statistics of returns, one array a seed.

    Example:
        >>> return_statistics([np.array([1.0, 3.0]), np.array([4.0, 4.0])]).mean
        3.0
    """
    pooled = np.concatenate(groups)
    return ReturnStatistics(
        mean=float(np.mean([own.mean() for own in groups])),
        std=float(pooled.std(ddof=1)) if len(pooled) > 1 else 0.0,
        iqm=float(stats.trim_mean(pooled, 0.25)),
        interval=bootstrap_interval(groups),
        num_seeds=len(groups),
        num_episodes=len(pooled),
    )


@dataclass(frozen=True)
class Improvement:
    """How likely a run of one agent has a higher mean return than a run of another.

    Attributes:
        probability: share of pairs of runs in which the first is better; a tie counts half.
        interval: 95 % interval, bootstrap over seeds within agent and environment; None with a single seed anywhere.
        num_runs: smallest number of runs on either side.
    """

    probability: float
    interval: tuple[float, float] | None
    num_runs: int


def improvement(scores: Sequence[tuple[Numbers, Numbers]]) -> Improvement:
    """Return P(X > Y) + P(X = Y) / 2 over runs, averaged over environments, as rliable does.

    Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice", 2021.

    Args:
        scores: mean returns of the runs of both agents, one pair of arrays an environment.

    Example:
        >>> improvement([(np.array([2.0, 3.0]), np.array([1.0, 2.5]))]).probability
        0.75
    """
    rng = np.random.default_rng(0)
    means, draws = [], np.zeros(NUM_DRAWS)
    for ours, theirs in scores:
        better = (ours[:, None] > theirs) + 0.5 * (ours[:, None] == theirs)
        means.append(better.mean())
        rows = rng.integers(len(ours), size=(NUM_DRAWS, len(ours), 1))
        columns = rng.integers(len(theirs), size=(NUM_DRAWS, 1, len(theirs)))
        draws += better[rows, columns].mean((1, 2)) / len(scores)
    num_runs = min(min(len(ours), len(theirs)) for ours, theirs in scores)
    low, high = np.quantile(draws, [0.025, 0.975])
    return Improvement(float(np.mean(means)), (float(low), float(high)) if num_runs > 1 else None, num_runs)
