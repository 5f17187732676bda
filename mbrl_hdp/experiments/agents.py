"""The agents of Algorithm 1 behind one small interface: what they see, how they act, how they learn."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mbrl_hdp.belief.codec import BeliefCodec
from mbrl_hdp.control.planner import CustomConfig, Planner, PlannerConfig, make_planner
from mbrl_hdp.control.policy import ContextSac, SacConfig
from mbrl_hdp.control.replay import BeliefReplay, model_beliefs
from mbrl_hdp.control.rewards import AnyRewardFn, LearnedReward
from mbrl_hdp.control.tracker import BeliefTracker, ContextTracker, NothingTracker, TruthTracker
from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.errors import CheckpointError, ConfigError
from mbrl_hdp.experiments.budget import Budget
from mbrl_hdp.experiments.episodes import Record
from mbrl_hdp.experiments.tasks import Task
from mbrl_hdp.experiments.user_code import search_here
from mbrl_hdp.inference.model import ContextModel
from mbrl_hdp.settings import setting

Vector = np.ndarray[Any, Any]
_REWARD = "reward."


@dataclass
class CemAgentConfig:
    """C-CEM: plans on the belief; the optimiser is `planner=`."""


@dataclass
class QuickSacConfig(SacConfig):
    """SAC with the two settings that need fewer episodes than the paper's (`python -m benchmarks.sac_reference`).

    The paper's own numbers are in conf/experiment/. Angles that the environment names are added to `angle_columns`.
    """

    temperature_lr: float = setting(3e-4, "learning rate of the temperature", above=0.0)
    target_update_interval: int = setting(1, "updates from one update of the targets to the next", at_least=1)


@dataclass
class BeliefSacConfig(QuickSacConfig):
    """C-SAC: a policy on the observation and the belief."""


@dataclass
class FullInformationSacConfig(QuickSacConfig):
    """FI-SAC: a policy that is told the true context."""


@dataclass
class NoInformationSacConfig(QuickSacConfig):
    """NI-SAC: a policy that sees the observation alone."""


AGENTS: dict[str, type[Any]] = {
    "c_cem": CemAgentConfig,
    "c_sac": BeliefSacConfig,
    "fi_sac": FullInformationSacConfig,
    "ni_sac": NoInformationSacConfig,
}


class Agent(ABC):
    """What the loop needs of an agent.

    Attributes:
        family: row of the budget table, `mpc` or `sac`.
        needs_model: whether a context model is learned for it.
    """

    family: str
    needs_model: bool

    @property
    @abstractmethod
    def is_ready(self) -> bool:
        """Whether it can act yet; until then episodes are random."""

    @abstractmethod
    def tracker(self) -> ContextTracker:
        """Return what fills its slot beside the observation."""

    @abstractmethod
    def act(self, packed: Vector, explore: bool) -> Vector:
        """Choose an action."""

    def begin_episode(self) -> None:  # noqa: B027 - policies have nothing to forget
        """Forget what belongs to the last episode."""

    def learn_reward(
        self,
        model: ContextModel,  # noqa: ARG002
        data: Trajectories,  # noqa: ARG002
        num_steps: int,  # noqa: ARG002
        seed: int,  # noqa: ARG002
    ) -> dict[str, float]:
        """Fit the reward of imagined steps to real ones where it is learned; policies need none. Return metrics."""
        return {}

    @abstractmethod
    def learn(
        self, model: ContextModel | None, new: list[Record], is_refit: bool, num_updates: int
    ) -> dict[str, float]:
        """Take in the epoch's episodes and the model as it is now; return metrics."""

    @abstractmethod
    def state_dict(self) -> dict[str, Tensor]:
        """Return everything that a resumed run needs."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Tensor], model: ContextModel | None) -> None:
        """Take back what `state_dict` gave."""


class PlanningAgent(Agent):
    """C-CEM and its relatives: nothing to learn but the model."""

    family, needs_model = "mpc", True

    def __init__(self, config: PlannerConfig, task: Task, seed: int) -> None:
        if task.reward_fn is None:
            raise ConfigError(
                f"{task.name} has no reward_fn(act, next_obs) for imagined steps: set env.reward=module:function, or "
                "env.reward=learned"
            )
        self.reward_fn: AnyRewardFn = task.reward_fn
        self.config, self.task, self.seed = config, task, seed
        self._planner: Planner | None = None
        self._tracker: BeliefTracker | None = None

    @property
    def is_ready(self) -> bool:
        """Whether there is a model to plan with."""
        return self._planner is not None

    def tracker(self) -> ContextTracker:
        """Return the belief."""
        assert self._tracker is not None
        return self._tracker

    def act(self, packed: Vector, explore: bool) -> Vector:  # noqa: ARG002 - plans are no noisier in training
        """Plan, and take the first action."""
        assert self._planner is not None
        return np.asarray(self._planner.act(packed))

    def begin_episode(self) -> None:
        """Forget the last plan."""
        if self._planner is not None:
            self._planner.reset()

    def learn_reward(self, model: ContextModel, data: Trajectories, num_steps: int, seed: int) -> dict[str, float]:
        """Fit a learned reward (env.reward=learned) to all data, in the contexts of the model."""
        if not isinstance(self.reward_fn, LearnedReward):
            return {}
        return {"reward_rmse": self.reward_fn.fit(model, data, num_steps, seed)}

    def learn(
        self,
        model: ContextModel | None,
        new: list[Record],  # noqa: ARG002 - the model has them
        is_refit: bool,  # noqa: ARG002
        num_updates: int,  # noqa: ARG002
    ) -> dict[str, float]:
        """Plan with the new model from now on."""
        assert model is not None
        self._use(model)
        return {}

    def _use(self, model: ContextModel) -> None:
        self._tracker = BeliefTracker(model)
        if self._planner is None:
            task = self.task
            self._planner = make_planner(
                self.config, model, self.reward_fn, task.termination_fn, task.act_low, task.act_high, self.seed
            )
        else:
            self._planner.set_model(model)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the planner's generators and plan, and the reward where it is learned."""
        state = {} if self._planner is None else dict(self._planner.state_dict())
        if isinstance(self.reward_fn, LearnedReward):
            state |= {f"{_REWARD}{name}": value for name, value in self.reward_fn.state_dict().items()}
        return state

    def load_state_dict(self, state: Mapping[str, Tensor], model: ContextModel | None) -> None:
        """Take the model, the reward and the planner's state."""
        reward = {name.removeprefix(_REWARD): value for name, value in state.items() if name.startswith(_REWARD)}
        if isinstance(self.reward_fn, LearnedReward):
            try:
                self.reward_fn.load_state_dict(reward)
            except RuntimeError as error:
                raise CheckpointError(
                    "the saved reward does not fit this run (env.reward, max_contexts or the environment changed); "
                    "resume with the settings it began with"
                ) from error
        if model is not None:
            self._use(model)
            assert self._planner is not None
            self._planner.load_state_dict({k: v for k, v in state.items() if not k.startswith(_REWARD)})


class SacPolicyAgent(Agent):
    """C-SAC, FI-SAC and NI-SAC: one policy, three fillings of the slot beside the observation."""

    family = "sac"

    def __init__(self, config: SacConfig, task: Task, max_contexts: int, seed: int, budget: Budget) -> None:
        self.task = task
        self.needs_model = isinstance(config, BeliefSacConfig)
        self.is_told = isinstance(config, FullInformationSacConfig)
        if self.is_told and task.num_contexts is None:
            raise ConfigError(f"agent=fi_sac needs an environment with known contexts; {task.name} reports none")
        width = max_contexts if self.needs_model else (task.num_contexts or 0) if self.is_told else 0
        codec = BeliefCodec(task.obs_dim, width)
        for field, budget_key in (
            ("updates_per_epoch", "agent_updates"),
            ("updates_at_warm_start", "warm_agent_updates"),
        ):
            if getattr(config, field) != getattr(SacConfig(), field):
                raise ConfigError(f"agent.{field} has no effect in `train`; set budget.{budget_key} instead")
        config = replace(config, angle_columns=sorted({*config.angle_columns, *task.angle_columns}))
        total = budget.warm_agent_updates + (budget.num_epochs - 1) * budget.agent_updates
        self.sac = ContextSac(codec, task.action_space, config, seed, total_updates=total)
        self.replay = BeliefReplay(codec, task.act_dim, seed=seed)
        self._tracker: ContextTracker | None = None
        if self.is_told:
            self._tracker = TruthTracker(task.obs_dim, width)
        elif not self.needs_model:
            self._tracker = NothingTracker(task.obs_dim)

    @property
    def is_ready(self) -> bool:
        """Whether it has learned anything yet."""
        return self.sac.num_updates > 0

    def tracker(self) -> ContextTracker:
        """Return the belief, the truth, or nothing."""
        assert self._tracker is not None
        return self._tracker

    def act(self, packed: Vector, explore: bool) -> Vector:
        """Draw from the policy while exploring, take its mean in evaluations."""
        return np.asarray(self.sac.select_action(packed, evaluate=not explore))

    def learn(
        self, model: ContextModel | None, new: list[Record], is_refit: bool, num_updates: int
    ) -> dict[str, float]:
        """Store the episodes, relabel the beliefs after a refit (Algorithm 1), update the policy."""
        if not self.needs_model:
            for record in new:
                self.replay.add(record.episode, record.beliefs)
        else:
            assert model is not None
            self._tracker = BeliefTracker(model)
            data = Trajectories.from_episodes([record.episode for record in new])
            self.replay.extend(data, model_beliefs(model, data))
            if is_refit:
                self.replay.relabel(lambda stored: model_beliefs(model, stored))
        return dict(self.sac.update(self.replay, num_updates)) if num_updates else {}

    def state_dict(self) -> dict[str, Tensor]:
        """Return policy and replay buffer."""
        parts = {"sac": self.sac.state_dict(), "replay": self.replay.state_dict()}
        return {f"{name}.{key}": value for name, state in parts.items() for key, value in state.items()}

    def load_state_dict(self, state: Mapping[str, Tensor], model: ContextModel | None) -> None:
        """Take back policy and replay buffer."""
        for name, part in (("sac", self.sac), ("replay", self.replay)):
            part.load_state_dict({k.removeprefix(f"{name}."): v for k, v in state.items() if k.startswith(f"{name}.")})
        if self.needs_model and model is not None:
            self._tracker = BeliefTracker(model)


def agent_family(config: Any) -> str:
    """Return the budget row of an agent's settings."""
    return "sac" if isinstance(config, SacConfig) else "mpc"


def make_agent(config: Any, planner: Any, task: Task, max_contexts: int, seed: int, budget: Budget) -> Agent:
    """Build the agent that `agent=` names."""
    if isinstance(config, SacConfig):
        return SacPolicyAgent(config, task, max_contexts, seed, budget)
    if isinstance(config, CemAgentConfig):
        if isinstance(planner, CustomConfig):
            search_here()
        return PlanningAgent(planner, task, seed)
    raise ConfigError(f"agent settings of type {type(config).__name__} belong to no agent; known: {', '.join(AGENTS)}")


def detach(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors for a file."""
    return {name: torch.as_tensor(value).detach().clone().contiguous() for name, value in state.items()}
