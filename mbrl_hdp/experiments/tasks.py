"""The environment of a run, with what planners and policies need to know about it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from torch import Tensor

import mbrl_hdp.envs  # noqa: F401 - registers the tasks
from mbrl_hdp.errors import ConfigError

RewardFn = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Task:
    """One environment and its facts.

    Attributes:
        name: name of the preset.
        env: the environment.
        reward_fn: batched reward of action and next observation.
        termination_fn: batched termination of action and next observation.
        num_contexts: number of true contexts, None where the environment has none to tell.
        dt: seconds per step, None where unknown.
        angle_columns: columns of an observation that are angles.
    """

    name: str
    env: gymnasium.Env[Any, Any]
    reward_fn: RewardFn
    termination_fn: RewardFn
    num_contexts: int | None
    dt: float | None
    angle_columns: tuple[int, ...] = ()

    @property
    def obs_dim(self) -> int:
        """Width of an observation."""
        return int(np.prod(self.env.observation_space.shape or (0,)))

    @property
    def act_dim(self) -> int:
        """Width of an action."""
        return int(np.prod(self.env.action_space.shape or (0,)))

    @property
    def action_space(self) -> Any:
        """The action space, a bounded Box."""
        return self.env.action_space

    @property
    def act_low(self) -> np.ndarray[Any, Any]:
        """Lower action bounds."""
        return np.asarray(self.action_space.low, dtype=np.float64)

    @property
    def act_high(self) -> np.ndarray[Any, Any]:
        """Upper action bounds."""
        return np.asarray(self.action_space.high, dtype=np.float64)


def make_task(name: str, env_id: str, kwargs: dict[str, Any], reward: str | None) -> Task:
    """Build the environment that `env=` names.

    Raises:
        ConfigError: if it does not exist, has other spaces than flat boxes, or no reward function is known.
    """
    try:
        env = gymnasium.make(env_id, **kwargs)
    except (gymnasium.error.Error, TypeError) as error:
        raise ConfigError(f"env.id={env_id!r} cannot be made: {' '.join(str(error).split())}") from error
    for what, space in (("observation", env.observation_space), ("action", env.action_space)):
        if not isinstance(space, gymnasium.spaces.Box) or len(space.shape) != 1:
            raise ConfigError(f"env.id={env_id!r} has an {what} space {space}; only flat Box spaces are supported")
    return Task(
        name=name,
        env=env,
        reward_fn=_reward_fn(env, env_id, reward),
        termination_fn=_attribute(env, "termination_fn") or _never,
        num_contexts=_num_contexts(env),
        dt=_attribute(env, "dt"),
        angle_columns=tuple(_attribute(env, "angle_columns") or ()),
    )


def _reward_fn(env: gymnasium.Env[Any, Any], env_id: str, reward: str | None) -> RewardFn:
    if reward is None:
        own = _attribute(env, "reward_fn")
        if own is None:
            raise ConfigError(
                f"{env_id} has no reward_fn(act, next_obs) for imagined steps: set env.reward=module:function"
            )
        return own
    module, _, name = reward.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"env.reward={reward!r} cannot be imported: {error}; write module:function") from error


def _attribute(env: gymnasium.Env[Any, Any], name: str) -> Any:
    try:
        return env.get_wrapper_attr(name)
    except AttributeError:
        return None


def _num_contexts(env: gymnasium.Env[Any, Any]) -> int | None:
    contexts = _attribute(env, "contexts")
    return None if contexts is None else len(contexts)


def _never(act: Tensor, next_obs: Tensor) -> Tensor:  # noqa: ARG001
    return next_obs.new_zeros(len(next_obs), 1).bool()
