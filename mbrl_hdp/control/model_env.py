"""mbrl-lib's `ModelEnv` on packed observations, with a fast evaluation of plans behind the stock signature."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import mbrl.models
import numpy as np
import torch
from gymnasium.spaces import Box
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mbrl_hdp.control.model import BeliefModel, FilteringBeliefModel
from mbrl_hdp.control.paths import draw_paths, draw_uniform
from mbrl_hdp.control.planner_config import CONTEXT_MODES
from mbrl_hdp.control.rewards import AnyRewardFn, RewardFn, expected_reward, uses_context
from mbrl_hdp.errors import ConfigError, DataError
from mbrl_hdp.inference.dynamics import ContextDynamics
from mbrl_hdp.probability.phases import by_context, context_of, dense

# Stock optimisers put NaN at -1e-10, above every negative return; a plan that leaves the numbers must lose instead.
WORST_VALUE = -1e30


@dataclass(frozen=True)
class _PlanStart:
    """Where a plan begins.

    Attributes:
        packed: the packed observation.
        belief: distribution of the context that acts first, over the kept contexts.
        shape: number of particles and horizon.
        evaluate: values of plans, all on the same draw of contexts.
    """

    packed: Float[np.ndarray, " W"]
    belief: Float[Tensor, " k"]
    shape: tuple[int, int]
    evaluate: Callable[[Tensor], Float[Tensor, " C"]]


class BeliefModelEnv(mbrl.models.ModelEnv):
    """Imagines on packed [obs, belief]; reward and termination functions see observations only.

    `reset` and `step` are mbrl-lib's. `evaluate_action_sequences` has its signature and is fast: paths of contexts are
    drawn once per plan (`one_plan`; outside of it, once per call) and shared by all candidates, and rewards and
    terminations are computed for the whole horizon at once.

    Args:
        model: the learned model on packed observations.
        reward_fn: rewards `B 1` from actions `B A` and next observations `B S`; one that declares `uses_context` also
            gets the slot `B` of the context that acted (`mbrl_hdp.control.rewards`).
        termination_fn: terminations `B 1` from actions and next observations.
        act_low: lower action bounds.
        act_high: upper action bounds.
        generator: source of contexts and transition noise.
        context_mode: `paths` draws them from belief and chain; `held` holds the most likely context. With `feedback`
            they are drawn, too, and a plan has one action for every slot (`H K*A`): at each step it takes that of the
            context most likely to act, given the one before. A plan without feedback must do for all contexts at once,
            although the agent will know better by then; one with feedback can leave the choice to that moment. With
            `belief` every particle carries the belief, which each imagined step updates by Bayes' rule, and draws the
            acting context from it (`FilteringBeliefModel`): the same expected return as with `paths`, since an action
            sequence that is fixed beforehand cannot use what the belief learns on the way.
        has_noise: draw transitions with their noise; otherwise take expectations.
    """

    def __init__(
        self,
        model: BeliefModel,
        reward_fn: AnyRewardFn,
        termination_fn: RewardFn,
        act_low: Sequence[float] | Float[np.ndarray, " A"],
        act_high: Sequence[float] | Float[np.ndarray, " A"],
        generator: torch.Generator | None = None,
        context_mode: str = "paths",
        has_noise: bool = True,
    ) -> None:
        if context_mode not in CONTEXT_MODES:
            raise ConfigError(f"planner.context_mode must be one of {', '.join(CONTEXT_MODES)}, got {context_mode!r}")
        self.plain_reward_fn, self.plain_termination_fn = reward_fn, termination_fn
        self.context_mode, self.has_noise = context_mode, has_noise
        self._start: _PlanStart | None = None
        self._planned_from: tuple[Float[np.ndarray, " W"], Float[Tensor, " k"]] | None = None
        self._is_in_plan = False
        spaces = SimpleNamespace(
            observation_space=Box(-np.inf, np.inf, (model.codec.width,), np.float32),
            action_space=Box(np.asarray(act_low, np.float32), np.asarray(act_high, np.float32)),
        )
        # Without a reward function mbrl-lib takes the rewards that the model predicts, and the model knows the context.
        by_obs = None if uses_context(reward_fn) else self._on_obs(reward_fn)
        super().__init__(spaces, model, self._on_obs(termination_fn), by_obs, generator)
        self.set_model(model)

    @property
    def generator(self) -> torch.Generator:
        """Source of contexts and transition noise."""
        return self._rng

    @property
    def plan_width(self) -> int:
        """Numbers that a plan has for a step: an action, or with feedback one for every slot."""
        width = len(self.action_space.low)
        return width * self.dynamics_model.codec.max_contexts if self.context_mode == "feedback" else width

    def action_of(self, planned: Float[np.ndarray, " N"], packed: Float[np.ndarray, " W"]) -> Float[np.ndarray, " A"]:
        """Return the action of a planned step at a packed observation: with feedback, that of the likeliest context."""
        if self.context_mode != "feedback":
            return planned
        # The plan just made has unpacked the belief already; a queued action is taken at another observation.
        start, self._planned_from = self._planned_from, None
        is_known = start is not None and start[0] is packed
        belief = start[1] if start and is_known else self.dynamics_model.split(packed[None])[1][0]
        slot = int(self.dynamics_model.model.slots[belief.argmax()])
        by_slot: Float[np.ndarray, "K A"] = planned.reshape(self.dynamics_model.codec.max_contexts, -1)
        return by_slot[slot]

    def set_model(self, model: BeliefModel) -> None:
        """Imagine with another model from now on; with `context_mode=belief` its rollouts carry beliefs."""
        if self.context_mode == "belief":
            model = FilteringBeliefModel(model.model)
        reward_fn = self.plain_reward_fn
        model.context_reward = reward_fn if uses_context(reward_fn) else None
        self.dynamics_model = model
        self._start = self._planned_from = None

    @contextmanager
    def one_plan(self) -> Iterator[None]:
        """Within this block all evaluations from the same packed observation share one draw of context paths."""
        self._start, self._is_in_plan = None, True
        try:
            yield
        finally:
            start, self._start, self._is_in_plan = self._start, None, False
            self._planned_from = None if start is None else (start.packed, start.belief)

    def evaluate_action_sequences(
        self, action_sequences: Float[Tensor, "C H N"], initial_state: Float[np.ndarray, " W"], num_particles: int
    ) -> Float[Tensor, " C"]:
        """Return every plan's return from the packed observation, averaged over context paths.

        Args:
            action_sequences: the plans, `plan_width` numbers a step.
            initial_state: packed [obs, belief].
            num_particles: number of context paths P.

        Raises:
            DataError: if the start is not one packed vector, or plans have another width.
        """
        if action_sequences.shape[-1] != self.plan_width:
            raise DataError(
                f"with context_mode={self.context_mode} a step of a plan has {self.plan_width} numbers, got "
                f"{action_sequences.shape[-1]}"
            )
        if initial_state.shape != (self.dynamics_model.codec.width,):
            raise DataError(
                f"plans start from one packed vector [obs, belief] of width {self.dynamics_model.codec.width}, "
                f"got shape {initial_state.shape}"
            )
        shape = (num_particles, action_sequences.shape[1])
        with torch.no_grad():
            start = self._start
            if start is None or start.packed is not initial_state or start.shape != shape:
                start = self._draw_start(initial_state, shape)
                self._start = start if self._is_in_plan else None
            return start.evaluate(action_sequences)

    def evaluate_on_paths(
        self, acts: Float[Tensor, "C H A"], obs: Float[Tensor, " S"], paths: Int[Tensor, "P H"]
    ) -> Float[Tensor, " C"]:
        """Return every plan's return from an observation, averaged over given paths of context slots."""
        with torch.no_grad():
            return self._on_paths(obs, paths)(acts)

    def _draw_start(self, packed: Float[np.ndarray, " W"], shape: tuple[int, int]) -> _PlanStart:
        """Unpack where a plan begins and draw its contexts, or the numbers that select them."""
        model = self.dynamics_model.model
        (obs,), (belief,) = self.dynamics_model.split(packed[None])
        if self.context_mode == "belief":
            uniform = draw_uniform(*shape, self._rng).to(obs.device)
            carried = self.dynamics_model.carried(packed, belief)
            return _PlanStart(packed, belief, shape, partial(self._carry_beliefs, obs, carried, uniform))
        expected = None
        if self.context_mode == "held":
            # Without noise all particles would be the same one.
            contexts = belief.argmax().expand(shape if self.has_noise else (1, shape[1]))
        else:
            contexts, following = self._draw_contexts(packed, belief, shape)
        if self.context_mode == "feedback":
            expected = model.slots[torch.cat([belief.argmax().expand(len(contexts), 1), following], 1)]
        return _PlanStart(packed, belief, shape, self._on_paths(obs, model.slots[contexts], expected))

    def _draw_contexts(
        self, packed: Float[np.ndarray, " W"], belief: Float[Tensor, " k"], shape: tuple[int, int]
    ) -> tuple[Int[Tensor, "P H"], Int[Tensor, "P H-1"]]:
        """Draw paths of contexts; return them and the context most likely to follow each step but the last."""
        model = self.dynamics_model.model
        if model.states is None:
            contexts = draw_paths(belief, model.chain.transition, *shape, self._rng)
            return contexts, model.chain.transition.argmax(-1)[contexts[:, :-1]]
        transition, context = dense(model.states).transition, context_of(model.states.sizes)
        states = draw_paths(self.dynamics_model.carried(packed, belief), transition, *shape, self._rng)
        following = by_context(transition, model.states.sizes).argmax(-1)[states[:, :-1]]
        return context[states], following

    def _on_paths(
        self, obs: Float[Tensor, " S"], paths: Int[Tensor, "P H"], expected: Int[Tensor, "P H"] | None = None
    ) -> Callable[[Tensor], Float[Tensor, " C"]]:
        """Return a function that evaluates plans on paths of slots.

        Args:
            obs: where they begin.
            paths: slots that act.
            expected: slots most likely to act, given the ones before; what a plan with feedback reacts to.
        """
        dynamics: ContextDynamics = self.dynamics_model.model.dynamics
        rollout = dynamics.begin_rollout(obs, paths, self._rng if self.has_noise else None)

        def by_context(acts: Tensor, rows: Tensor) -> Tensor:
            slots = paths.T[..., None].expand(*paths.T.shape, len(rows) // paths.numel())
            return self.plain_reward_fn(acts, rows, slots.reshape(-1))

        def evaluate(plans: Tensor) -> Float[Tensor, " C"]:
            acts = plans if expected is None else _react(plans, expected, len(self.action_space.low))
            return self._values(acts, rollout(acts), by_context)

        return evaluate

    def _carry_beliefs(
        self, obs: Tensor, belief: Float[Tensor, " _"], uniform: Float[Tensor, "P H"], plans: Float[Tensor, "C H A"]
    ) -> Float[Tensor, " C"]:
        """Evaluate plans by particles that draw contexts from their beliefs and learn from what they imagine."""
        model: FilteringBeliefModel = self.dynamics_model
        shape = (len(uniform), len(plans))
        state, carried = obs.expand(shape[0] * shape[1], -1), belief.double().expand(shape[0] * shape[1], -1)
        states, acted = [], []
        for act, numbers in zip(plans.unbind(1), uniform.unbind(1), strict=True):
            selecting = numbers.repeat_interleave(shape[1])
            state, filtered, carried = model.advance(
                state, act.repeat(shape[0], 1), carried, selecting, self.has_noise, self._rng
            )
            states.append(state.view(*shape, -1))
            acted.append(filtered)

        def by_context(acts: Tensor, rows: Tensor) -> Tensor:
            return expected_reward(self.plain_reward_fn, acts, rows, torch.cat(acted).to(rows), model.model.slots)

        return self._values(plans, torch.stack(states), by_context)

    def _values(
        self,
        acts: Float[Tensor, "C H A"] | Float[Tensor, "P C H A"],
        states: Float[Tensor, "H P C S"],
        by_context: Callable[[Tensor, Tensor], Tensor],
    ) -> Float[Tensor, " C"]:
        """Return the plans' returns; the rewards after a step that terminated are zero.

        Args:
            acts: the plans.
            states: where they lead.
            by_context: the reward of all steps, flattened, where it depends on the context.
        """
        shape = states.shape[:3]
        by_step = acts.movedim(-2, 0)
        by_step = (by_step[:, None] if acts.dim() == 3 else by_step).expand(*shape, -1).reshape(-1, acts.shape[-1])
        rows = states.flatten(0, 2)
        reward_fn = by_context if uses_context(self.plain_reward_fn) else self.plain_reward_fn
        rewards = reward_fn(by_step, rows).view(shape)
        is_done: Bool[Tensor, "H P C"] = self.plain_termination_fn(by_step, rows).view(shape)
        if bool(is_done.any()):
            was_done = is_done.long().cumsum(0) - is_done.long() > 0
            rewards = rewards.masked_fill(was_done, 0.0)
        return rewards.sum(0).mean(0).nan_to_num_(WORST_VALUE, torch.inf, -torch.inf)

    def _on_obs(self, function: RewardFn) -> RewardFn:
        """Wrap a function of (act, next_obs) so that it accepts packed observations."""

        def strip(act: Tensor, packed: Tensor) -> Any:
            return function(act, self.dynamics_model.codec.unpack(packed)[0])

        return strip


def _react(plans: Float[Tensor, "C H N"], expected: Int[Tensor, "P H"], act_dim: int) -> Float[Tensor, "P C H A"]:
    """Return what plans with feedback do on every path: at each step the action of the expected slot."""
    by_slot = plans.unflatten(-1, (-1, act_dim))
    index = expected[:, None, :, None, None].expand(-1, len(plans), -1, 1, act_dim)
    return by_slot.expand(len(expected), -1, -1, -1, -1).gather(3, index).squeeze(3)
