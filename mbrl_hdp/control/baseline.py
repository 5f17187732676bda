"""Baselines: simple agents that see observations, actions, rewards and episode ends, and the adapter to `Agent`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mbrl_hdp.control.agent import Agent
from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.inference.model import ContextModel

Vector = NDArray[np.floating[Any]]


class Baseline(ABC):
    """An agent that brings its own model and learning rule (GPMM, RNN-PPO, a PID controller).

    `act` and `reset` have the shape of mbrl-lib's `Agent`, so a baseline can stand wherever an mbrl-lib agent does.
    In training episodes the loop calls `reset`, then `act` and `observe` by turns, then `end_episode`; in evaluation
    episodes `reset`, then `act` and `watch` by turns.
    """

    @abstractmethod
    def act(self, obs: Vector, explore: bool = False) -> Vector:
        """Choose an action `A` for one observation `S`; `explore` is False in evaluations."""

    @abstractmethod
    def observe(self, obs: Vector, act: Vector, reward: float, next_obs: Vector, terminated: bool) -> None:
        """Learn from one transition, or keep it for `end_episode`."""

    def watch(self, obs: Vector, act: Vector, next_obs: Vector) -> None:  # noqa: B027 - most keep no contexts
        """See a transition of an evaluation episode: follow the context, learn nothing."""

    def reset(self) -> None:  # noqa: B027 - having nothing to forget is fine
        """Begin an episode: forget what belongs to the last one (plans, recurrent state)."""

    def end_episode(self) -> Mapping[str, float]:
        """Learn from the finished episode; return metrics, whose means over an epoch go to `metrics.csv`."""
        return {}

    def context_labels(self) -> NDArray[np.integer[Any]] | None:
        """Return the context that the agent believed in at every step of the last episode, None if it has none."""
        return None

    @abstractmethod
    def state_dict(self) -> Mapping[str, Any]:
        """Return everything that a resumed run needs: tensors, arrays and plain (JSON) data."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""


class BaselineAgent(Agent):
    """A `Baseline` as the loop's `Agent`: nothing is appended to its observations and no model is learned for it."""

    def __init__(self, baseline: Baseline) -> None:
        self.baseline = baseline

    def begin_episode(self) -> None:
        """Begin an episode."""
        self.baseline.reset()

    def act(self, packed: Vector, explore: bool) -> Vector:
        """Choose an action."""
        return self.baseline.act(packed, explore)

    def observe(self, packed: Vector, act: Vector, reward: float, next_packed: Vector, terminated: bool) -> None:
        """Pass a transition on."""
        self.baseline.observe(packed, act, reward, next_packed, terminated)

    def watch(self, packed: Vector, act: Vector, next_packed: Vector) -> None:
        """Pass a transition of an evaluation episode on."""
        self.baseline.watch(packed, act, next_packed)

    def end_episode(self) -> Mapping[str, float]:
        """Pass the end of an episode on."""
        return self.baseline.end_episode()

    def context_labels(self) -> NDArray[np.integer[Any]] | None:
        """Return the baseline's own contexts."""
        return self.baseline.context_labels()

    def state_dict(self) -> Mapping[str, Any]:
        """Return the baseline's state."""
        return self.baseline.state_dict()

    def load_state_dict(self, state: Mapping[str, Any], data: Trajectories, model: ContextModel | None) -> None:  # noqa: ARG002
        """Restore the baseline's state."""
        self.baseline.load_state_dict(state)
