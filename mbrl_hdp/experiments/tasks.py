"""The environment of a run, with what planners and policies need to know about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from torch import Tensor

import mbrl_hdp.envs  # noqa: F401 - registers the tasks
from mbrl_hdp.control.rewards import AnyRewardFn, LearnedReward, RewardFn
from mbrl_hdp.errors import ConfigError, MbrlHdpError
from mbrl_hdp.experiments.checked_env import CheckedEnv
from mbrl_hdp.experiments.episodes import MAX_STEPS
from mbrl_hdp.experiments.summary import EpisodeScores
from mbrl_hdp.experiments.user_code import (
    Steps,
    check_reward,
    check_termination,
    few_steps,
    load_function,
    search_here,
    watched,
)

if TYPE_CHECKING:
    from mbrl_hdp.experiments.config import EnvConfig

LEARNED = "learned"


@dataclass(frozen=True)
class Task:
    """One environment and its facts.

    Attributes:
        name: name of the preset.
        env: the environment.
        reward_fn: batched reward of imagined steps: a formula of action and next observation, one that is learned with
            the model, or None where none is known (policies need none: they learn from the rewards they get).
        termination_fn: batched termination of action and next observation.
        num_contexts: number of true contexts, None where the environment reports none.
        dt: seconds per step, None where unknown.
        angle_columns: columns of an observation that are angles.
        report_env: the environment of reported evaluations; the same one unless `env.report_kwargs` says otherwise.
        report_kwargs: the keyword arguments in which it differs.
        episode_scores: what the environment measures in the observations of an episode besides the return.
    """

    name: str
    env: gymnasium.Env[Any, Any]
    reward_fn: AnyRewardFn | None
    termination_fn: RewardFn
    num_contexts: int | None
    dt: float | None
    angle_columns: tuple[int, ...] = ()
    report_env: gymnasium.Env[Any, Any] | None = None
    report_kwargs: dict[str, Any] = field(default_factory=dict)
    episode_scores: EpisodeScores | None = None

    def close(self) -> None:
        """Free the environments."""
        self.env.close()
        if self.report_env is not None:
            self.report_env.close()

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


def make_task(config: EnvConfig, max_contexts: int, seed: int) -> Task:
    """Build the environment that `env=` names and try its functions on a few steps.

    Args:
        config: the settings `env.*`.
        max_contexts: context slots of a learned reward.
        seed: seed of a learned reward's starting weights.

    Raises:
        ConfigError: if it does not exist, has other spaces than flat bounded boxes, or its functions do not work.
    """
    env = make_env(config.id, config.kwargs)
    steps = few_steps(env)
    angle_columns = tuple(_attribute(env, "angle_columns") or ())
    return Task(
        name=config.name,
        env=env,
        reward_fn=LearnedReward(steps.next_obs.shape[1], steps.act.shape[1], max_contexts, angle_columns, seed=seed)
        if config.reward == LEARNED
        else _reward_fn(env, config.reward, steps),
        termination_fn=_termination_fn(env, config.termination, steps),
        num_contexts=_num_contexts(env),
        dt=_attribute(env, "dt"),
        angle_columns=angle_columns,
        episode_scores=_attribute(env, "episode_scores"),
        **_report_env(config),
    )


def _report_env(config: EnvConfig) -> dict[str, Any]:
    """Make the environment of reported evaluations, if it is another one and its package is installed."""
    if not config.report_kwargs:
        return {}
    try:
        env = make_env(config.id, {**config.kwargs, **config.report_kwargs})
    except ConfigError as error:
        if isinstance(error.__cause__, ImportError):
            return {}
        raise
    return {"report_env": env, "report_kwargs": dict(config.report_kwargs)}


def make_env(env_id: str, kwargs: Mapping[str, Any]) -> gymnasium.Env[Any, Any]:
    """Make an environment by its gymnasium id; `module:Name-v0` imports the module first.

    Raises:
        ConfigError: if it does not exist, does not take these arguments or has other spaces than flat bounded boxes.
    """
    for key in ("horizon", "max_episode_steps"):
        steps = kwargs.get(key)
        if isinstance(steps, int | float) and not 1 <= steps <= MAX_STEPS:
            raise ConfigError(f"env.kwargs.{key} must be 1 to {MAX_STEPS} (longer episodes are cut), got {steps:g}")
    if ":" in env_id:
        search_here()
    try:
        env = gymnasium.make(env_id, disable_env_checker=True, **kwargs)  # `CheckedEnv` checks more, and all the time
    except MbrlHdpError:
        raise
    except Exception as error:  # a user's constructor may fail in any way
        words = " ".join(str(error).split())
        raise ConfigError(f"env.id={env_id!r} cannot be made: {type(error).__name__}: {words}") from error
    _check_spaces(env, env_id)
    return CheckedEnv(env, env_id)


def _check_spaces(env: gymnasium.Env[Any, Any], env_id: str) -> None:
    for what, space in (("observation", env.observation_space), ("action", env.action_space)):
        if not isinstance(space, gymnasium.spaces.Box) or len(space.shape) != 1:
            raise ConfigError(f"env.id={env_id!r} has an {what} space {space}; only flat Box spaces are supported")
    if not env.action_space.is_bounded():  # type: ignore[attr-defined]
        raise ConfigError(f"env.id={env_id!r} has unbounded actions {env.action_space}; rescale them to a bounded Box")


def _reward_fn(env: gymnasium.Env[Any, Any], reward: str | None, steps: Steps) -> RewardFn | None:
    if reward is None:
        key, function = "the environment's reward_fn", _attribute(env, "reward_fn")
    else:
        key, function = f"env.reward={reward}", load_function("env.reward", reward)
    if function is None:
        return None
    check_reward(key, function, steps)
    is_ours = getattr(function, "__module__", "").partition(".")[0] == "mbrl_hdp"
    return function if is_ours else watched(key, function)


def _termination_fn(env: gymnasium.Env[Any, Any], termination: str | None, steps: Steps) -> RewardFn:
    if termination is None:
        key, function = "the environment's termination_fn", _attribute(env, "termination_fn") or _never
    else:
        key, function = f"env.termination={termination}", load_function("env.termination", termination)
    check_termination(key, function, steps)
    return function


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
