"""C-CEM and its relatives: they plan with the model on the belief."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool

from mbrl_hdp.control.agent import Act, Agent, AgentTask, Epoch, Packed
from mbrl_hdp.control.planner import Planner, check_planner, make_planner
from mbrl_hdp.control.tuning import MOST_STEPS, ImaginedTask, Tuning, tune_planner
from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.errors import ConfigError
from mbrl_hdp.inference.model import ContextModel


class PlanningAgent(Agent):
    """Plans at every step; there is nothing to learn but the model and, with `planner.tune=auto`, its own settings."""

    def __init__(self, task: AgentTask) -> None:
        if task.planner is None:
            raise ConfigError("this agent plans: choose a planner, as in planner=cem")
        self.task, self.config = task, task.planner
        check_planner(task.planner, task.action_space.low, task.action_space.high)
        self._planner: Planner | None = None
        self._tuning: Tuning | None = None

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
        """Plan with the new model from now on; with the first one, choose the settings."""
        assert epoch.model is not None
        if self._planner is not None or self.config.tune == "never":
            self._use(epoch.model)
            return {}
        return {"tune_s": self.tune(epoch.new, epoch.model)}

    def tune(self, data: Trajectories, model: ContextModel) -> float:
        """Choose the settings on the model alone and plan with them from now on; return the processor seconds."""
        space, asked = self.task.action_space, self.task.planner
        assert asked is not None
        assert self.task.reward_fn is not None
        imagined = ImaginedTask(
            model,
            self.task.reward_fn,
            self.task.termination_fn,
            np.asarray(space.low, dtype=np.float64),
            np.asarray(space.high, dtype=np.float64),
            starts=data.obs[:, 0],
            num_steps=min(MOST_STEPS, int(data.lengths.max())),
            seed=self.task.seed,
        )
        began = time.process_time()
        self._tuning = tune_planner(asked, imagined)
        self.config, self._planner = self._tuning.apply(asked), None
        self._use(model)
        return round(time.process_time() - began, 3)

    def run_files(self) -> Mapping[str, str]:
        """Return the choice of the settings with its table, once there is one."""
        if self._tuning is None:
            return {}
        words = json.dumps(dataclasses.asdict(self._tuning), indent=2) + "\n"
        return {"planner_tuning.json": words, "planner_tuning.md": self._tuning.markdown()}

    def _use(self, model: ContextModel) -> Planner:
        if self._planner is None:
            task, space = self.task, self.task.action_space
            assert task.reward_fn is not None
            low, high = (np.asarray(bound, dtype=np.float64) for bound in (space.low, space.high))
            self._planner = make_planner(self.config, model, task.reward_fn, task.termination_fn, low, high, task.seed)
        else:
            self._planner.set_model(model)
        return self._planner

    def state_dict(self) -> Mapping[str, Any]:
        """Return the planner's generators and plan, and the choice of its settings."""
        state: dict[str, Any] = {} if self._planner is None else dict(self._planner.state_dict())
        return state if self._tuning is None else state | {"tuning": dataclasses.asdict(self._tuning)}

    def load_state_dict(self, state: Mapping[str, Any], data: Trajectories, model: ContextModel | None) -> None:  # noqa: ARG002
        """Restore the planner for the model, with the settings that were chosen."""
        tensors = dict(state)
        tuning = tensors.pop("tuning", None)
        if tuning is not None:
            assert self.task.planner is not None
            self._tuning = Tuning(**tuning)
            self.config = self._tuning.apply(self.task.planner)
        if model is not None:
            self._use(model).load_state_dict(tensors)

    def export(self, folder: Path, kept: Bool[np.ndarray, " K"] | None) -> None:
        """Write nothing: the model is all that it needs."""
