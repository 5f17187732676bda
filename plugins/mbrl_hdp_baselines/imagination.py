"""Plans on a baseline's own model: the model's mean prediction, rolled out on features of the observation."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mbrl_hdp.control.agent import AgentTask
from mbrl_hdp.control.model_env import WORST_VALUE
from mbrl_hdp.control.planner import Planner, check_planner
from mbrl_hdp.control.planner_config import PlannerConfig
from mbrl_hdp.control.rewards import RewardFn, uses_context
from mbrl_hdp.errors import ConfigError
from mbrl_hdp.seeding import torch_generator
from mbrl_hdp_baselines.features import AngleFeatures

MeanFn = Callable[[Tensor], Tensor]


class MeanRollouts:
    """Evaluates plans by a function that predicts the mean change of the features from features and action.

    It stands where `BeliefModelEnv` does in C-CEM's planner (`mbrl_hdp.control.planner.PlanEvaluator`).

    Attributes:
        predict: mean change `B F` of the features from [features, action] `B F+A`; set before a plan is made.
    """

    def __init__(self, task: AgentTask, features: AngleFeatures, dtype: torch.dtype) -> None:
        self.action_space = task.action_space
        self.features, self.dtype = features, dtype
        self.reward_fn, self.termination_fn = plain_reward(task), task.termination_fn
        self.generator = torch.Generator()  # mean predictions draw nothing
        self.predict: MeanFn | None = None

    @property
    def plan_width(self) -> int:
        """Numbers that a plan has for a step: an action."""
        return len(self.action_space.low)

    def action_of(self, planned: Float[np.ndarray, " A"], obs: Float[np.ndarray, " S"]) -> Float[np.ndarray, " A"]:  # noqa: ARG002
        """Return the planned action."""
        return planned

    def one_plan(self) -> AbstractContextManager[None]:
        """Do nothing: there is nothing to share."""
        return nullcontext()

    @torch.no_grad()
    def evaluate_action_sequences(
        self,
        plans: Float[Tensor, "C H A"],
        obs: Float[np.ndarray, " S"],
        num_particles: int = 1,  # noqa: ARG002
    ) -> Float[Tensor, " C"]:
        """Return every plan's return; mean predictions need a single particle."""
        assert self.predict is not None
        acts = plans.to(self.dtype)
        state = self.features.encode(torch.as_tensor(obs, dtype=self.dtype)).expand(len(plans), -1)
        states = []
        for act in acts.unbind(1):
            state = state + self.predict(torch.cat([state, act], -1))
            states.append(self.features.decode(state))
        rows, by_step = torch.stack(states).flatten(0, 1), acts.transpose(0, 1).flatten(0, 1)
        shape = (plans.shape[1], plans.shape[0])
        rewards = self.reward_fn(by_step, rows).view(shape)
        is_done = self.termination_fn(by_step, rows).view(shape).long()
        was_done = is_done.cumsum(0) - is_done > 0
        values = rewards.masked_fill(was_done, 0.0).sum(0).float()
        return torch.where(values.isfinite(), values, WORST_VALUE)


def make_mean_planner(task: AgentTask, rollouts: Any) -> Planner:
    """Build the planner that `planner=` names on a baseline's own model."""
    return Planner(checked_planner_of(task), rollouts, torch_generator(task.seed, "planner", "optimizer"))


def checked_planner_of(task: AgentTask) -> PlannerConfig:
    """Return the settings of `planner=`.

    Raises:
        ConfigError: if there are none, or they are wrong.
    """
    if task.planner is None:
        raise ConfigError("this agent plans: choose a planner, as in planner=cem")
    if task.planner.context_mode == "feedback":
        raise ConfigError("planner.context_mode=feedback needs the context model of agent=c_cem; leave it at paths")
    check_planner(task.planner, task.action_space.low, task.action_space.high)
    return task.planner


def plain_reward(task: AgentTask) -> RewardFn:
    """Return the reward of imagined steps.

    Raises:
        ConfigError: if it is learned or depends on the context: only agents with the context model can use it.
    """
    if task.reward_fn is None or uses_context(task.reward_fn):
        raise ConfigError(
            "this agent plans with a reward f(act, next_obs): set env.reward=module:function; env.reward=learned and "
            "rewards that depend on the context need the context model (agent=c_cem)"
        )
    return task.reward_fn
