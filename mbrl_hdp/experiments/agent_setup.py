"""Build the agent that `agent=` names and stand between it and the loop: whatever it raises names its plugin."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from mbrl_hdp.control.agent import Agent, AgentTask, Epoch
from mbrl_hdp.control.baseline import Baseline, BaselineAgent
from mbrl_hdp.control.planner_config import PlannerConfig
from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.errors import ConfigError, DivergenceError, PluginError, StepError
from mbrl_hdp.experiments.budget import Budget
from mbrl_hdp.experiments.config import MainConfig
from mbrl_hdp.experiments.tasks import Task
from mbrl_hdp.hooks import AgentSpec, RegisteredPlugin, Registry
from mbrl_hdp.inference.model import ContextModel
from mbrl_hdp.seeding import sub_seed

Vector = np.ndarray[Any, Any]
_SMOKE_TUNE_SECONDS = 1.0


def make_agent(config: MainConfig, registry: Registry, task: Task, budget: Budget) -> GuardedAgent:
    """Build the agent; nothing is learned yet.

    Raises:
        ConfigError: if the environment lacks what the agent declares to need, or a setting is wrong.
        PluginError: if its plugin fails, naming it.
    """
    plugin = registry.get_agent(config.agent.name)
    made = plugin.build(config.agent, _agent_task(config, registry, task, budget))
    wanted = Baseline if plugin.kind == "baseline" else Agent
    if not isinstance(made, wanted):
        raise PluginError(f"{plugin}: build() must return a {wanted.__name__}, got {type(made).__name__}")
    return GuardedAgent(BaselineAgent(made) if isinstance(made, Baseline) else made, plugin, task.act_dim)


def _agent_task(config: MainConfig, registry: Registry, task: Task, budget: Budget) -> AgentTask:
    spec = registry.agent_spec(config.agent.name)
    if spec.needs_reward and task.reward_fn is None:
        raise ConfigError(
            f"{task.name} has no reward_fn(act, next_obs) for imagined steps: set env.reward=module:function, or "
            "env.reward=learned"
        )
    if spec.sees == "truth" and task.num_contexts is None:
        raise ConfigError(f"agent={spec.name} needs an environment with known contexts; {task.name} reports none")
    made = AgentTask(
        max_contexts=config.max_contexts,
        obs_dim=task.obs_dim,
        act_dim=task.act_dim,
        dt=task.dt,
        seed=sub_seed(config.seed, "agent"),
        name=task.name,
        action_space=task.action_space,
        angle_columns=task.angle_columns,
        appended_dim={"belief": config.max_contexts, "truth": task.num_contexts or 0, "nothing": 0}[spec.sees],
        total_updates=budget.warm_agent_updates + (budget.num_epochs - 1) * budget.agent_updates,
        reward_fn=task.reward_fn,
        termination_fn=task.termination_fn,
        planner=None,
        num_contexts=task.num_contexts,
    )
    return made if config.planner is None else replace(made, planner=_planner(config, registry, made))


def _planner(config: MainConfig, registry: Registry, task: AgentTask) -> PlannerConfig:
    planner = registry.build_planner(config.planner.name, task, config.planner)
    if not isinstance(planner, PlannerConfig):
        owner = registry.get("planner", config.planner.name)
        raise PluginError(f"{owner}: build() must return a PlannerConfig, got {type(planner).__name__}")
    if config.profile == "smoke":
        return replace(planner, tune_seconds=min(planner.tune_seconds, _SMOKE_TUNE_SECONDS))
    return planner


class GuardedAgent(Agent):
    """An agent as the loop sees it: errors name the plugin, and what it returns is checked.

    Attributes:
        agent: the agent itself.
        spec: what it declares.
    """

    def __init__(self, agent: Agent, plugin: RegisteredPlugin, act_dim: int) -> None:
        self.agent, self.spec = agent, cast(AgentSpec[Any], plugin.spec)
        self._plugin, self._act_shape = plugin, (act_dim,)

    @property
    def is_ready(self) -> bool:
        """Whether it can act."""
        with self._plugin.reporting("failed in is_ready"):
            return self.agent.is_ready

    def begin_episode(self) -> None:
        """Begin an episode."""
        with self._plugin.reporting("failed at the beginning of an episode"):
            self.agent.begin_episode()

    def act(self, packed: Vector, explore: bool) -> Vector:
        """Choose an action."""
        with self._plugin.reporting("failed in act()"):
            act = np.asarray(self.agent.act(packed, explore))
        if act.shape != self._act_shape or not np.isfinite(act).all():
            raise StepError(f"{self._plugin}: act() must return {self._act_shape[0]} finite numbers, got {act}")
        return act

    def observe(self, packed: Vector, act: Vector, reward: float, next_packed: Vector, terminated: bool) -> None:
        """Record a step."""
        with self._plugin.reporting("failed in observe()"):
            self.agent.observe(packed, act, reward, next_packed, terminated)

    def watch(self, packed: Vector, act: Vector, next_packed: Vector) -> None:
        """See a step of an evaluation episode."""
        with self._plugin.reporting("failed in watch()"):
            self.agent.watch(packed, act, next_packed)

    def end_episode(self) -> Mapping[str, float]:
        """Record the end of an episode."""
        with self._plugin.reporting("failed in end_episode()"):
            return _metrics(self.agent.end_episode())

    def labels_of(self, num_steps: int) -> Vector | None:
        """Return the agent's own contexts of an episode that has just ended."""
        with self._plugin.reporting("failed in context_labels()"):
            found = self.agent.context_labels()
            labels = None if found is None else np.asarray(found, dtype=np.int64)
        if labels is not None and (labels.shape != (num_steps,) or bool((labels < 0).any())):
            raise PluginError(f"{self._plugin}: context_labels() must return {num_steps} numbers from 0, got {labels}")
        return labels

    def learn(self, epoch: Epoch) -> Mapping[str, float]:
        """Learn from an epoch."""
        with self._plugin.reporting("failed in learn()"):
            metrics = _metrics(self.agent.learn(epoch))
        for name, value in metrics.items():
            if "loss" in name and not math.isfinite(value):
                raise DivergenceError(f"{self._plugin}: {name} is {value} after learn(); lower its learning rate")
        return metrics

    def tune(self, data: Trajectories, model: ContextModel) -> float:
        """Choose its settings anew."""
        with self._plugin.reporting("failed in tune()"):
            return self.agent.tune(data, model)

    def run_files(self) -> dict[str, str]:
        """Return text files for the run directory.

        Raises:
            PluginError: if a name is a path.
        """
        with self._plugin.reporting("failed in run_files()"):
            found = {str(name): str(text) for name, text in self.agent.run_files().items()}
        for name in found:
            if Path(name).name != name:
                raise PluginError(f"{self._plugin}: run_files() must return names without folders, got {name!r}")
        return found

    def state_dict(self) -> Mapping[str, Any]:
        """Return the state."""
        with self._plugin.reporting("failed in state_dict()"):
            return dict(self.agent.state_dict())

    def load_state_dict(self, state: Mapping[str, Any], data: Trajectories, model: ContextModel | None) -> None:
        """Restore the state."""
        with self._plugin.reporting("failed in load_state_dict()"):
            self.agent.load_state_dict(state, data, model)

    def export(self, folder: Path, kept: Vector | None) -> None:
        """Write what is needed to act elsewhere."""
        with self._plugin.reporting("failed in export()"):
            self.agent.export(folder, kept)


def _metrics(found: Mapping[str, float]) -> dict[str, float]:
    """Return metrics as plain numbers."""
    return {str(name): float(value) for name, value in found.items()}
