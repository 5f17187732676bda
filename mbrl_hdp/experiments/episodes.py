"""Run episodes with an agent and note what it believed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from mbrl_hdp.control.tracker import BeliefTracker, ContextTracker
from mbrl_hdp.data.trajectories import Episode
from mbrl_hdp.errors import PluginError, StepError

MAX_STEPS = 100_000
"""Longest episode: an environment that never ends is cut here."""

Vector = np.ndarray[Any, Any]
Observer = Callable[[Vector, Vector, float, Vector, bool], None]


@dataclass(frozen=True)
class Record:
    """One episode and what the agent believed during it.

    Attributes:
        episode: observations, actions, rewards and, where they are known, true contexts (for scoring only).
        beliefs: what filled the slot beside every observation, `L+1 K`; None for random episodes of belief agents.
        labels: arg max of the filter after every step, among the kept contexts, or the agent's own contexts; None
            where there are none.
        seed: seed of the episode.
    """

    episode: Episode
    beliefs: Vector | None
    labels: Vector | None
    seed: int

    @property
    def episode_return(self) -> float:
        """Undiscounted sum of rewards."""
        return float(np.sum(self.episode.reward)) if self.episode.reward is not None else float("nan")


def run_episode(
    env: gymnasium.Env[Any, Any],
    act: Callable[[Vector], Vector],
    tracker: ContextTracker | None,
    seed: int,
    max_steps: int = MAX_STEPS,
    observe: Observer | None = None,
) -> Record:
    """Run one episode to its end; what cannot be used ends it in the step it appears.

    Args:
        env: the environment.
        act: maps the packed observation (the plain one without a tracker) to an action.
        tracker: what fills the slot beside the observation.
        seed: seed of the environment.
        max_steps: cut here if the environment never ends.
        observe: called after every step with the packed observation, action, reward, next packed observation and
            whether the episode terminated.

    Raises:
        StepError: naming the step.
    """
    acts: list[Vector] = []
    try:
        return _run_episode(env, act, tracker, seed, max_steps, observe, acts)
    except (StepError, PluginError) as error:
        raise StepError(f"step {len(acts)}: {error}") from error


def _run_episode(
    env: gymnasium.Env[Any, Any],
    act: Callable[[Vector], Vector],
    tracker: ContextTracker | None,
    seed: int,
    max_steps: int,
    observe: Observer | None,
    acts: list[Vector],
) -> Record:
    """Run one episode; `acts` fills with the actions of the steps that are done."""
    obs, info = env.reset(seed=seed)
    packed = obs if tracker is None else tracker.reset(obs, info)
    _check_packed(packed)
    observed = [np.array(obs)]
    rewards: list[float] = []
    contexts: list[int] = []
    beliefs = [] if tracker is None else [tracker.codec.unpack(packed)[1]]
    labels: list[int] = []
    terminated = truncated = False
    while not (terminated or truncated) and len(acts) < max_steps:
        action = act(packed)
        obs, reward, terminated, truncated, info = env.step(action)
        before, packed = packed, obs if tracker is None else tracker.update(action, obs, info)
        _check_packed(packed)
        if observe is not None:
            observe(before, action, float(reward), packed, bool(terminated))
        observed.append(np.array(obs))
        rewards.append(float(reward))
        contexts.append(int(info.get("context", -1)))
        if tracker is not None:
            beliefs.append(tracker.codec.unpack(packed)[1])
        if isinstance(tracker, BeliefTracker):
            labels.append(int(tracker.filtered.argmax()))
        acts.append(np.array(action))
    return Record(
        Episode(
            np.array(observed, dtype=np.float64),
            np.array(acts, dtype=np.float64),
            None if min(contexts, default=-1) < 0 else np.array(contexts),
            np.array(rewards),
            bool(terminated),
        ),
        np.array(beliefs) if beliefs else None,
        np.array(labels) if labels else None,
        seed,
    )


def _check_packed(packed: Vector) -> None:
    """Raise if the belief beside the observation (which the environment's wrapper checks) is not finite."""
    if not np.isfinite(packed).all():
        place = int(np.argmin(np.isfinite(packed)))
        raise StepError(
            f"observation and belief as the agent sees them hold {packed[place]} in column {place}: the filter of the "
            "contexts failed on this observation"
        )
