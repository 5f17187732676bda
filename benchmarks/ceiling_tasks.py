"""The three tasks as the ceilings see them: true physics to act in, true physics to plan with, the chain, the episodes.

Episode `i` is the one that `env.reset(seed=i)` starts: the same start, the same contexts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mbrl_hdp.envs.batch import BatchPhysics
from mbrl_hdp.envs.cartpole import CartPolePhysics
from mbrl_hdp.envs.chains import FloatArray, IntArray, MarkovChain
from mbrl_hdp.envs.drone_physics import DronePhysics
from mbrl_hdp.envs.intersection_physics import IntersectionPhysics, IntersectionState, ego_controls
from mbrl_hdp.envs.intersection_vehicle import IntersectionConfig, advance, observation
from mbrl_hdp.envs.switching import chain_generator
from mbrl_hdp.envs.walk import ChainWalk
from mbrl_hdp.experiments.studies.task_variants import COLLISION_COST


class PlanningModel(Protocol):
    """As much of the true physics as a planner needs; see `BatchPhysics`."""

    def step(self, state: Any, act: FloatArray, params: Mapping[str, FloatArray]) -> Any:
        """Return the states after one control step."""
        ...

    def observe(self, state: Any) -> FloatArray:
        """Return the observations `B S`."""
        ...

    def reward(self, act: FloatArray, next_obs: FloatArray) -> FloatArray:
        """Return the rewards `B`."""
        ...


@dataclass(frozen=True)
class EgoModel:
    """The intersection without its social car, which neither moves the ego nor enters the reward: ten times quicker.

    The state is the ego's pose `B 4`; the social half of the observation repeats the ego's.
    """

    config: IntersectionConfig = field(default_factory=IntersectionConfig)

    def step(self, state: FloatArray, act: FloatArray, params: Mapping[str, FloatArray]) -> FloatArray:
        """See `BatchPhysics`."""
        acceleration, steering = ego_controls(self.config, act, params["actuation"])
        return advance(self.config, state, steering, acceleration, self.config.dt)

    def observe(self, state: FloatArray) -> FloatArray:
        """See `BatchPhysics`."""
        return observation(state, state)

    def reward(self, act: FloatArray, next_obs: FloatArray) -> FloatArray:
        """See `BatchPhysics`."""
        return IntersectionPhysics(self.config).reward(act, next_obs)


@dataclass(frozen=True)
class Task:
    """A task whose contexts differ in the factor on an actuator.

    Attributes:
        name: as in the table.
        physics: what the episodes run on.
        model: the same physics for planning.
        planning_state: from a state of `physics` to one of `model`.
        chain: distribution of the context.
        is_actuated: entries of the action on which the contexts act, `A`; where all are zero, a step reveals nothing.
        actuation: factor of each context on the actuator.
    """

    name: str
    physics: BatchPhysics
    model: PlanningModel
    planning_state: Callable[[Any], Any] = lambda state: state
    chain: MarkovChain = field(default_factory=lambda: MarkovChain.symmetric(2))
    is_actuated: Sequence[bool] = (True,)
    actuation: tuple[float, ...] = (1.0, -1.0)

    @property
    def factors(self) -> FloatArray:
        """`actuation` as an array."""
        return np.array(self.actuation)

    def sent(self, controls: FloatArray, guess: FloatArray) -> FloatArray:
        """Return the actions `E A` that carry out `controls` the right way where the sign is as guessed, `E`."""
        return np.where(self.is_actuated, guess[:, None] * controls, controls)


@dataclass(frozen=True)
class Episodes:
    """Everything that is drawn before an agent acts: start states and contexts `E T`."""

    start: Any
    contexts: IntArray

    @property
    def num(self) -> int:
        """Number of episodes."""
        return len(self.contexts)

    def with_mirror(self) -> Episodes:
        """Return every episode, then every episode again with its two contexts exchanged."""
        return Episodes(stack_states([self.start, self.start]), np.concatenate((self.contexts, 1 - self.contexts)))


def _ego(state: IntersectionState) -> FloatArray:
    return state.ego


def _cartpole() -> Task:
    physics = CartPolePhysics()
    return Task("cartpole", physics, physics)


def _drone() -> Task:
    physics = DronePhysics()
    return Task("drone", physics, physics, is_actuated=(True,) * 4)


def _intersection() -> Task:
    physics = IntersectionPhysics()
    return Task("intersection", physics, EgoModel(physics.config), _ego, is_actuated=(False, True))


def _costly() -> Task:
    """The intersection where collisions cost: plans need the social car."""
    physics = IntersectionPhysics(IntersectionConfig(collision_cost=COLLISION_COST))
    return Task("collision_cost", physics, physics, is_actuated=(False, True))


TASKS: Mapping[str, Callable[[], Task]] = {
    "cartpole": _cartpole,
    "drone": _drone,
    "intersection": _intersection,
    "collision_cost": _costly,
}


def draw_episodes(task: Task, seeds: Sequence[int]) -> Episodes:
    """Draw start and contexts of one episode per seed, as `env.reset(seed=)` and its steps would."""
    starts = [task.physics.start(1, np.random.default_rng(seed)) for seed in seeds]
    return Episodes(stack_states(starts), np.stack([_contexts(task, seed) for seed in seeds]))


def _contexts(task: Task, seed: int) -> IntArray:
    rng, walk = chain_generator(seed), ChainWalk(task.chain)
    drawn = [walk.reset(rng)]
    drawn += [walk.step(rng) for _ in range(task.physics.horizon - 1)]
    return np.concatenate(drawn)


def stack_states(states: Sequence[Any]) -> Any:
    """Join states (arrays, or tuples of states) along the batch."""
    if isinstance(states[0], tuple):
        return type(states[0])(*(stack_states(parts) for parts in zip(*states, strict=True)))
    return np.concatenate(states)


def repeat_state(state: Any, num: int) -> Any:
    """Repeat every row of a state `num` times."""
    if isinstance(state, tuple):
        return type(state)(*(repeat_state(part, num) for part in state))
    array: NDArray[Any] = np.repeat(state, num, axis=0)
    return array
