"""The contract of agents: what the loop of Algorithm 1 asks of every agent, built in or from a plugin.

What an agent sees and needs is declared in its `AgentSpec` (`mbrl_hdp.hooks`); the loop keeps the belief, learns model
and reward, and calls the methods below.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from mbrl_hdp.control.planner_config import PlannerConfig
from mbrl_hdp.control.rewards import AnyRewardFn, RewardFn
from mbrl_hdp.control.state import save_state
from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.errors import ConfigError
from mbrl_hdp.inference.model import ContextModel
from mbrl_hdp.types import TaskSpec

Packed = Float[np.ndarray, " W"]
Act = Float[np.ndarray, " A"]


@dataclass(frozen=True, kw_only=True)
class AgentTask(TaskSpec):
    """What an agent is built for: a `TaskSpec`, and what control needs to know.

    Attributes:
        name: name of the environment's preset.
        action_space: a bounded Box.
        angle_columns: columns of an observation that are angles.
        appended_dim: width of what is appended to an observation: max_contexts for a belief, the number of true
            contexts for the truth, else 0. The packed vector has `obs_dim + appended_dim` entries.
        total_updates: updates of the agent in the whole run, for learning rates that fall.
        reward_fn: reward of imagined steps; not None if the agent declares `needs_reward`.
        termination_fn: termination of imagined steps.
        planner: settings of `planner=`, None without one.
        num_contexts: number of true contexts, for agents that are entitled to it; None where the environment does not
            report it.
    """

    name: str
    action_space: Any
    angle_columns: tuple[int, ...]
    appended_dim: int
    total_updates: int
    reward_fn: AnyRewardFn | None
    termination_fn: RewardFn
    planner: PlannerConfig | None
    num_contexts: int | None = None


@dataclass(frozen=True)
class Epoch:
    """What the loop hands to an agent after the episodes of an epoch.

    Attributes:
        new: the epoch's episodes.
        appended: what was appended to their observations, `N T+1 K`, NaN beyond an episode's end; None for random
            episodes of agents that see the belief.
        model: the model as it is now; None for agents without one.
        is_refit: whether the model was updated in this epoch, so that beliefs of earlier episodes are out of date.
        num_updates: updates to take (`budget.agent_updates`).
    """

    new: Trajectories
    appended: Float[np.ndarray, "N T1 K"] | None
    model: ContextModel | None
    is_refit: bool
    num_updates: int


class Agent(ABC):
    """An agent of Algorithm 1. Only `act`, `state_dict` and `load_state_dict` must be written.

    The loop calls, for every training episode: `begin_episode`, then `act` and `observe` by turns, then `end_episode`;
    after the epoch's episodes: `learn`. In evaluation episodes it calls `begin_episode`, then `act` and `watch` in
    turns. All global random generators are seeded anew at the beginning of every epoch: an agent that draws from them
    need not save them.
    """

    @property
    def is_ready(self) -> bool:
        """Whether it can act; until then actions are random and the episodes reach it through `learn` alone."""
        return True

    def begin_episode(self) -> None:  # noqa: B027 - having nothing to forget is fine
        """Forget what belongs to the last episode."""

    @abstractmethod
    def act(self, packed: Packed, explore: bool) -> Act:
        """Choose an action for one packed observation; `explore` is False in evaluations."""

    def observe(  # noqa: B027 - an agent may learn from whole episodes only
        self, packed: Packed, act: Act, reward: float, next_packed: Packed, terminated: bool
    ) -> None:
        """Record a step of a training episode."""

    def watch(self, packed: Packed, act: Act, next_packed: Packed) -> None:  # noqa: B027 - most keep no contexts
        """See a step of an evaluation episode: follow the context, learn nothing."""

    def end_episode(self) -> Mapping[str, float]:
        """Record the end of a training episode; return metrics, whose means over an epoch go to metrics.csv."""
        return {}

    def context_labels(self) -> Int[np.ndarray, " L"] | None:
        """Return the agent's own context of every step of the last episode, for scoring; None if it has none."""
        return None

    def learn(self, epoch: Epoch) -> Mapping[str, float]:  # noqa: ARG002
        """Learn from an epoch; return metrics for metrics.csv."""
        return {}

    def tune(self, data: Trajectories, model: ContextModel) -> float:  # noqa: ARG002
        """Choose its settings anew on the model alone (`mbrl-hdp tune RUN`); return the processor seconds.

        Raises:
            ConfigError: if there is nothing to choose.
        """
        raise ConfigError("this agent does not plan: there are no planner settings to tune")

    def run_files(self) -> Mapping[str, str]:
        """Return text files for the run directory, by name; they are written when an epoch has ended."""
        return {}

    @abstractmethod
    def state_dict(self) -> Mapping[str, Any]:
        """Return all that a resumed run needs besides model and episodes: tensors, arrays and plain (JSON) data."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any], data: Trajectories, model: ContextModel | None) -> None:
        """Restore the state.

        Args:
            state: what `state_dict` returned.
            data: all episodes of the run so far.
            model: the model as it was.
        """

    def export(self, folder: Path, kept: Bool[np.ndarray, " K"] | None) -> None:  # noqa: ARG002
        """Write what is needed to act elsewhere into `final/` of the run; by default the state.

        Args:
            folder: the folder, which exists.
            kept: contexts of the belief that the exported model keeps; None if it keeps all, or there is no model.
        """
        save_state(self.state_dict(), folder)
