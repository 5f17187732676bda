"""C-CEM and its relatives: they plan with the model on the belief."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool
from torch import Tensor

from mbrl_hdp.control.agent import Act, Agent, AgentTask, Epoch, Packed
from mbrl_hdp.control.planner import Planner, check_planner, make_planner
from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.errors import ConfigError
from mbrl_hdp.inference.model import ContextModel


class PlanningAgent(Agent):
    """Plans at every step; there is nothing to learn but the model."""

    def __init__(self, task: AgentTask) -> None:
        if task.planner is None:
            raise ConfigError("this agent plans: choose a planner, as in planner=cem")
        self.task, self.config = task, task.planner
        check_planner(task.planner, task.action_space.low, task.action_space.high)
        self._planner: Planner | None = None

    @property
    def is_ready(self) -> bool:
        """Whether there is a model to plan with."""
        return self._planner is not None

    def begin_episode(self) -> None:
        """Forget the last plan."""
        if self._planner is not None:
            self._planner.reset()

    def act(self, packed: Packed, explore: bool) -> Act:  # noqa: ARG002 - plans are no noisier in training
        """Plan, and take the first action."""
        assert self._planner is not None
        return np.asarray(self._planner.act(packed))

    def learn(self, epoch: Epoch) -> Mapping[str, float]:
        """Plan with the new model from now on."""
        assert epoch.model is not None
        self._use(epoch.model)
        return {}

    def _use(self, model: ContextModel) -> Planner:
        if self._planner is None:
            task, space = self.task, self.task.action_space
            assert task.reward_fn is not None
            low, high = (np.asarray(bound, dtype=np.float64) for bound in (space.low, space.high))
            self._planner = make_planner(self.config, model, task.reward_fn, task.termination_fn, low, high, task.seed)
        else:
            self._planner.set_model(model)
        return self._planner

    def state_dict(self) -> Mapping[str, Tensor]:
        """Return the planner's generators and plan."""
        return {} if self._planner is None else self._planner.state_dict()

    def load_state_dict(self, state: Mapping[str, Any], data: Trajectories, model: ContextModel | None) -> None:  # noqa: ARG002
        """Restore the planner for the model."""
        if model is not None:
            self._use(model).load_state_dict(state)

    def export(self, folder: Path, kept: Bool[np.ndarray, " K"] | None) -> None:
        """Write nothing: the model is all that it needs."""
