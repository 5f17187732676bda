"""Planners: mbrl-lib's `TrajectoryOptimizerAgent` on a belief model, with the optimiser that the settings name."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from hydra.errors import InstantiationException
from jaxtyping import Float
from mbrl.planning import TrajectoryOptimizer, TrajectoryOptimizerAgent
from omegaconf import OmegaConf
from torch import Tensor

from mbrl_hdp.control.model import BeliefModel
from mbrl_hdp.control.model_env import BeliefModelEnv
from mbrl_hdp.control.planner_config import PlannerConfig
from mbrl_hdp.control.rewards import AnyRewardFn, RewardFn
from mbrl_hdp.errors import CheckpointError, ConfigError
from mbrl_hdp.inference.model import ContextModel
from mbrl_hdp.seeding import torch_generator


@runtime_checkable
class PlanEvaluator(Protocol):
    """What a planner imagines with: `BeliefModelEnv`, or another agent's own model behind the same methods."""

    @property
    def action_space(self) -> Any:
        """A bounded Box."""

    @property
    def plan_width(self) -> int:
        """Numbers that a plan has for a step."""

    @property
    def generator(self) -> torch.Generator:
        """Source of what is drawn while plans are evaluated."""

    def action_of(self, planned: Float[np.ndarray, " N"], obs: Float[np.ndarray, " W"]) -> Float[np.ndarray, " A"]:
        """Return the action of a planned step."""

    def one_plan(self) -> AbstractContextManager[None]:
        """Return a block within which all evaluations share what is drawn."""

    def evaluate_action_sequences(
        self, plans: Float[Tensor, "C H N"], obs: Float[np.ndarray, " W"], num_particles: int
    ) -> Float[Tensor, " C"]:
        """Return every plan's expected return."""


class Planner(TrajectoryOptimizerAgent):
    """mbrl-lib's agent on a belief model or another `PlanEvaluator`, with the seams closed.

    - The optimiser draws from a stream of its own, not from the global generator that everything else shares.
    - `reset` also forgets queued actions and whatever the optimiser carried over (iCEM's elites, MPPI's mean).
    - The context paths of a plan are drawn once.
    - `state_dict` holds all that a resumed run needs to act bit for bit as if never stopped.

    Attributes:
        config: its settings.
        model_env: what it imagines with.
    """

    def __init__(self, config: PlannerConfig, model_env: PlanEvaluator, generator: torch.Generator) -> None:
        self.config, self.model_env = config, model_env
        space = model_env.action_space
        num_blocks = model_env.plan_width // len(space.low)
        # mbrl-lib writes the bounds into the config it is given: this one is made here and is nobody else's.
        super().__init__(
            OmegaConf.create(config.optimizer_settings()),
            space.low.tolist() * num_blocks,
            space.high.tolist() * num_blocks,
            planning_horizon=config.horizon,
            replan_freq=config.replan_freq,
            keep_last_solution=config.keep_last_solution,
        )
        self._fresh_optimizer = copy.deepcopy(self.optimizer.optimizer)
        self._stream = generator.get_state()
        self.set_trajectory_eval_fn(self._evaluate)

    def act(
        self, obs: Float[np.ndarray, " W"], optimizer_callback: Callable[..., None] | None = None, **_: Any
    ) -> Float[np.ndarray, " A"]:
        """Choose an action for a packed observation [obs, belief]."""
        with self._planning():
            planned: Float[np.ndarray, " N"] = super().act(obs, optimizer_callback)
        return self.model_env.action_of(planned, obs)

    def plan(self, obs: Float[np.ndarray, " W"], **_: Any) -> Float[np.ndarray, "H N"]:
        """Return a whole plan for a packed observation; with feedback a step has one action for every slot."""
        with self._planning():
            plan: Float[np.ndarray, "H N"] = super().plan(obs)
        return plan

    def reset(self, planning_horizon: int | None = None) -> None:
        """Begin an episode: forget the last one's plan."""
        super().reset(planning_horizon)
        if planning_horizon:
            self._fresh_optimizer = copy.deepcopy(self.optimizer.optimizer)
        self.optimizer.keep_last_solution = self.config.keep_last_solution  # mbrl-lib forgets it with a new horizon
        self.optimizer.optimizer = copy.deepcopy(self._fresh_optimizer)
        self.actions_to_use.clear()

    def set_model(self, model: ContextModel) -> None:
        """Plan with another model from now on (after a refit).

        Raises:
            ConfigError: if its number of slots is another one and plans have an action for each.
        """
        assert isinstance(self.model_env, BeliefModelEnv)
        old = self.model_env.dynamics_model.codec.max_contexts
        new = model.task.max_contexts
        if self.config.context_mode == "feedback" and new != old:
            raise ConfigError(f"this planner has actions for {old} slots, the model {new} slots: make a new planner")
        self.model_env.set_model(BeliefModel(model))

    def state_dict(self) -> dict[str, Tensor]:
        """Return generators, warm start, queued actions and what the optimiser carries over, as tensors."""
        queued = np.asarray(self.actions_to_use, np.float32).reshape(-1, self.model_env.plan_width)
        state = {
            "stream": self._stream.clone(),
            "model_generator": self.model_env.generator.get_state(),
            "previous_solution": self.optimizer.previous_solution.clone(),
            "queued_actions": torch.from_numpy(queued.copy()),
        }
        return {**state, **{f"optimizer.{name}": value.clone() for name, value in self._carried().items()}}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state_dict` returned.

        Raises:
            CheckpointError: if it belongs to another planner.
        """
        self._check_state(state)
        self.reset()
        self._stream = state["stream"].clone()
        self.model_env.generator.set_state(state["model_generator"])
        self.optimizer.previous_solution = state["previous_solution"].clone()
        self.actions_to_use.extend(state["queued_actions"].numpy().copy())
        for name, value in _optimizer_part(state).items():
            setattr(self.optimizer.optimizer, name, value.clone())

    def _check_state(self, state: Mapping[str, Tensor]) -> None:
        missing = {"stream", "model_generator", "previous_solution", "queued_actions"} - set(state)
        known = vars(self._fresh_optimizer)
        if (
            missing
            or state["previous_solution"].shape != self.optimizer.previous_solution.shape
            or any(name not in known for name in _optimizer_part(state))
        ):
            raise CheckpointError(
                "the saved planner has other settings (planner, horizon or actions); resume with those it began with"
            )

    @contextmanager
    def _planning(self) -> Iterator[None]:
        """Draw one plan's context paths once, and let the global generator be this planner's stream meanwhile."""
        with self.model_env.one_plan(), torch.random.fork_rng(devices=[]):
            torch.random.set_rng_state(self._stream)
            yield
            self._stream = torch.random.get_rng_state()

    def _carried(self) -> dict[str, Tensor]:
        """Return the optimiser's tensors; every optimiser of mbrl-lib keeps what it carries over in such."""
        attributes = vars(self.optimizer.optimizer).items()
        return {name: value for name, value in attributes if isinstance(value, Tensor)}

    def _evaluate(self, obs: Float[np.ndarray, " W"], plans: Float[Tensor, "C H A"]) -> Float[Tensor, " C"]:
        return self.model_env.evaluate_action_sequences(plans, obs, self.config.num_particles)


def _optimizer_part(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    prefix = "optimizer."
    return {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}


def make_planner(
    config: PlannerConfig,
    model: ContextModel,
    reward_fn: AnyRewardFn,
    termination_fn: RewardFn,
    act_low: Sequence[float] | Float[np.ndarray, " A"],
    act_high: Sequence[float] | Float[np.ndarray, " A"],
    seed: int = 0,
) -> Planner:
    """Build the planner that a config names.

    Args:
        config: settings of a planner, such as those in `mbrl_hdp_planners`.
        model: the learned model.
        reward_fn: rewards `B 1` from actions `B A` and next observations `B S`; one that declares `uses_context` also
            gets the slot `B` of the context that acted, as a `LearnedReward` does.
        termination_fn: terminations `B 1` from actions and next observations.
        act_low: lower action bounds.
        act_high: upper action bounds.
        seed: seed of the planner's own streams.

    Example:
        >>> agent = make_planner(CemConfig(), model, env.reward_fn, env.termination_fn, [-1.0], [1.0], seed=0)
        >>> tracker = BeliefTracker(model)
        >>> act = agent.act(tracker.reset(obs))

    Raises:
        ConfigError: on settings out of range, unbounded actions or an optimiser that cannot be imported or built.
    """
    check_planner(config, act_low, act_high)
    model_env = BeliefModelEnv(
        BeliefModel(model),
        reward_fn,
        termination_fn,
        act_low,
        act_high,
        torch_generator(seed, "planner", "model"),
        config.context_mode,
        config.has_noise,
    )
    return Planner(config, model_env, torch_generator(seed, "planner", "optimizer"))


def check_planner(
    config: PlannerConfig,
    act_low: Sequence[float] | Float[np.ndarray, " A"],
    act_high: Sequence[float] | Float[np.ndarray, " A"],
) -> None:
    """Build the optimiser and throw it away: what is wrong with its settings is found before there is a model.

    Raises:
        ConfigError: on settings out of range, unbounded actions or an optimiser that cannot be imported or built.
    """
    config.check()
    if not (np.isfinite(act_low).all() and np.isfinite(act_high).all()):
        raise ConfigError(f"planners need bounded actions, got [{act_low}, {act_high}]; rescale the action space")
    settings = config.optimizer_settings()
    low, high = (np.asarray(bound, dtype=np.float64).tolist() for bound in (act_low, act_high))
    try:
        optimizer = TrajectoryOptimizer(OmegaConf.create(settings), np.array(low), np.array(high), config.horizon)
    except InstantiationException as error:
        if isinstance(error.__cause__, ConfigError):
            raise error.__cause__ from error
        raise ConfigError(
            f"planner.optimizer: {settings['_target_']} cannot be built: {error.__cause__ or error}; its constructor "
            "gets the planner's own settings (planner.kwargs of planner=custom), lower_bound, upper_bound and device"
        ) from error
    if not callable(getattr(optimizer.optimizer, "optimize", None)):
        raise ConfigError(f"planner.optimizer: {settings['_target_']} has no method optimize; see mbrl-lib's Optimizer")
