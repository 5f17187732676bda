"""Simulate many episodes of one C-MDP at once in numpy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mbrl_hdp.envs.chains import Chain, MarkovChain, check_chain
from mbrl_hdp.envs.switching import Context, chain_generator
from mbrl_hdp.envs.walk import ChainWalk
from mbrl_hdp.errors import ConfigError, did_you_mean

FloatArray = NDArray[np.float64]


class BatchPhysics(ABC):
    """The physics of a task, `B` independent copies at a time, in float64.

    Attributes:
        obs_dim: width S of an observation.
        act_dim: width A of an action.
        dt: seconds per control step.
        horizon: steps per episode; episodes are truncated there and never terminate.

    Example:
        >>> from mbrl_hdp.envs.drone_physics import DronePhysics
        >>> physics = DronePhysics()
        >>> state = physics.start(100, np.random.default_rng(0))
        >>> state = physics.step(state, np.ones((100, 4)), {"actuation": np.full(100, -1.0)})
        >>> physics.observe(state).shape
        (100, 12)
    """

    obs_dim: ClassVar[int]
    act_dim: ClassVar[int]
    dt: float
    horizon: int

    @property
    def act_low(self) -> FloatArray:
        """Lower action bounds, `A`."""
        return np.full(self.act_dim, -1.0)

    @property
    def act_high(self) -> FloatArray:
        """Upper action bounds, `A`."""
        return np.full(self.act_dim, 1.0)

    @property
    def defaults(self) -> Mapping[str, float | Sequence[float]]:
        """Every parameter that a context may set, with its value where no context does (a number, or A of them)."""
        return {"actuation": 1.0}

    @abstractmethod
    def start(self, num: int, rng: np.random.Generator) -> Any:
        """Draw `num` start states (any pytree of arrays whose first axis is `num`).

        With `num=1` the draws equal those of the gymnasium environment reset with the generator's seed.
        """

    @abstractmethod
    def observe(self, state: Any) -> FloatArray:
        """Return the observations `B S`, raw units, angles unwrapped."""

    @abstractmethod
    def step(self, state: Any, act: FloatArray, params: Mapping[str, FloatArray]) -> Any:
        """Return the states after one control step, without changing `state`.

        Args:
            state: states of `B` copies.
            act: actions `B A`, already inside the bounds.
            params: parameters that the acting contexts set, `B` (or `B A`); the rest have their defaults.
        """

    @abstractmethod
    def reward(self, act: FloatArray, next_obs: FloatArray) -> FloatArray:
        """Return the rewards `B` of the states that the actions led to."""

    def info(self, state: Any) -> dict[str, NDArray[Any]]:  # noqa: ARG002
        """Return what is reported besides the observation (collisions, distances), arrays whose first axis is `B`."""
        return {}


class BatchSwitchingEnv:
    """`num_envs` independent episodes of one C-MDP, stepped together.

    All start and end together (nothing terminates before the horizon). Time conventions and info keys are those of
    `SwitchingContext`; with `num_envs=1` and the same seed and actions the episode is the same, too.

    Args:
        physics: the batched physics.
        contexts: what each context sets: a mapping of parameter names to values, or a `Context` whose `attributes` are
            parameter names (its `action_scale` counts as well).
        chain: distribution of the context; None is the symmetric chain with switch probability 0.2 and cool-off 5.
        num_envs: number of episodes at a time.

    Example:
        >>> env = BatchSwitchingEnv(CartPolePhysics(), [{"actuation": 1.0}, {"actuation": -1.0}], None, num_envs=100)
        >>> obs, info = env.reset(seed=0)
        >>> obs, reward, terminated, truncated, info = env.step(np.zeros((100, 1)))
    """

    def __init__(
        self,
        physics: BatchPhysics,
        contexts: Sequence[Context | Mapping[str, Any]],
        chain: Chain | None = None,
        num_envs: int = 1,
    ) -> None:
        if num_envs < 1:
            raise ConfigError(f"num_envs must be at least 1, got {num_envs}")
        if not contexts:
            raise ConfigError("BatchSwitchingEnv needs at least one context, got an empty list")
        self.physics = physics
        self.num_envs = num_envs
        self.contexts = tuple(item if isinstance(item, Context) else Context(attributes=item) for item in contexts)
        self.chain = check_chain(chain or MarkovChain.symmetric(len(contexts)), len(contexts))
        self._table = _parameter_table(self.contexts, physics)
        self._scales = _scale_table(self.contexts, physics.act_dim)
        self._bounds = (np.asarray(physics.act_low, np.float64), np.asarray(physics.act_high, np.float64))
        self._walk = ChainWalk(self.chain, num_envs)
        self._rng = np.random.default_rng()
        self._chain_rng = np.random.default_rng()
        self._state: Any = None
        self._num_steps = 0

    @property
    def num_contexts(self) -> int:
        """Number of contexts."""
        return len(self.contexts)

    @property
    def horizon(self) -> int:
        """Steps per episode."""
        return self.physics.horizon

    def reset(self, seed: int | None = None) -> tuple[FloatArray, dict[str, Any]]:
        """Start all episodes; without a seed the generators go on.

        Returns:
            observations `B S`; info with `next_context`, `B`.
        """
        if seed is not None:
            self._rng = np.random.default_rng(seed)
            self._chain_rng = chain_generator(seed)
        self._state = self.physics.start(self.num_envs, self._rng)
        self._num_steps = 0
        obs = self.physics.observe(self._state)
        return obs, {**self.physics.info(self._state), "next_context": self._walk.reset(self._chain_rng, obs)}

    def step(
        self, act: FloatArray
    ) -> tuple[FloatArray, FloatArray, NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Step all episodes.

        Args:
            act: actions `B A`; clipped to the bounds.

        Returns:
            observations `B S`, rewards `B`, terminated `B` (never), truncated `B`, info with `context` (acted on this
            step) and `next_context`, `B` each.
        """
        if self._state is None:
            raise ConfigError("call reset() before step()")
        if np.shape(act) != (self.num_envs, self.physics.act_dim):
            raise ConfigError(f"actions must have shape {(self.num_envs, self.physics.act_dim)}, got {np.shape(act)}")
        acted = self._walk.current
        act = np.minimum(np.maximum(np.asarray(act, dtype=np.float64), self._bounds[0]), self._bounds[1])
        params = {name: values[acted] for name, values in self._table.items()}
        applied = act if self._scales is None else act * self._scales[acted]
        self._state = self.physics.step(self._state, applied, params)
        self._num_steps += 1
        obs = self.physics.observe(self._state)
        info = {
            **self.physics.info(self._state),
            "context": acted,
            "next_context": self._walk.step(self._chain_rng, obs),
        }
        terminated = np.zeros(self.num_envs, dtype=np.bool_)
        truncated = np.full(self.num_envs, self._num_steps >= self.physics.horizon)
        return obs, self.physics.reward(act, obs), terminated, truncated, info

    def sample_actions(self, rng: np.random.Generator) -> FloatArray:
        """Draw uniform random actions, `B A`."""
        return rng.uniform(*self._bounds, (self.num_envs, self.physics.act_dim))


def _parameter_table(contexts: Sequence[Context], physics: BatchPhysics) -> dict[str, FloatArray]:
    """One array per parameter that any context sets; its first axis is the context."""
    defaults = dict(physics.defaults)
    names = sorted({name for context in contexts for name in context.attributes})
    for name in names:
        if name not in defaults:
            raise ConfigError(f"{type(physics).__name__} has no parameter {name!r}; {did_you_mean(name, defaults)}")
    return {
        name: _stacked(name, [context.attributes.get(name, defaults[name]) for context in contexts], physics.act_dim)
        for name in names
    }


def _stacked(name: str, values: Sequence[Any], act_dim: int) -> FloatArray:
    arrays = [np.asarray(value, dtype=np.float64) for value in values]
    for array in arrays:
        if array.shape not in ((), (act_dim,)):
            raise ConfigError(f"parameter {name!r} must be one number or {act_dim} of them, got shape {array.shape}")
    if any(array.ndim for array in arrays):
        arrays = [np.broadcast_to(array, (act_dim,)) for array in arrays]
    return np.stack(arrays)


def _scale_table(contexts: Sequence[Context], act_dim: int) -> FloatArray | None:
    for index, context in enumerate(contexts):
        if context.apply is not None:
            raise ConfigError(f"context {index} has a callable (apply); a batched environment takes parameters only")
        if np.shape(context.action_scale) not in ((), (1,), (act_dim,)):
            raise ConfigError(f"action_scale of context {index} must be one number or {act_dim} of them")
    table = np.stack([np.broadcast_to(np.asarray(item.action_scale, np.float64), (act_dim,)) for item in contexts])
    return None if (table == 1.0).all() else table
