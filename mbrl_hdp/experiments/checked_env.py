"""An environment whose every answer is checked in the step it is given.

Policy: a value that cannot be used ends the run in that step with exit code 1. Nothing of the step is learned from or
saved; the last checkpoint stays as it is, and `train resume=RUN` goes on from it once the cause is mended.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from mbrl_hdp.errors import MbrlHdpError, StepError

Vector = np.ndarray[Any, Any]
_NUMBERS = "fiub"


class CheckedEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Check observations, rewards, flags and actions, and show exceptions of the environment as its own.

    Attributes:
        name: what the environment is called in errors; whoever plays the episode adds its number and the step.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], name: str) -> None:
        super().__init__(env)
        self.name = name

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode.

        Raises:
            StepError: if the environment fails or its first observation cannot be used.
        """
        try:
            found = self.env.reset(seed=seed, options=options)
        except MbrlHdpError:
            raise
        except Exception as error:  # a user's environment may fail in any way
            raise self._failed("reset", error) from error
        if not isinstance(found, tuple) or len(found) != 2:
            raise StepError(f"reset() of the environment returned {_kind(found)}, not (observation, info)")
        return self._observation(found[0]), found[1]

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take a step.

        Raises:
            StepError: if the action cannot be used, the environment fails, or what it returns cannot be used.
        """
        self._check_vector("the agent's action", action, self.env.action_space.shape)
        try:
            found = self.env.step(action)
        except MbrlHdpError:
            raise
        except Exception as error:  # a user's environment may fail in any way
            raise self._failed("step", error) from error
        if not isinstance(found, tuple) or len(found) != 5:
            raise StepError(
                f"step() of the environment returned {_kind(found)}, not (obs, reward, terminated, truncated, info)"
            )
        obs, reward, terminated, truncated, info = found
        self._check_flags(terminated, truncated, info)
        return self._observation(obs), self._reward(reward), bool(terminated), bool(truncated), info

    def _observation(self, obs: Any) -> Vector:
        self._check_vector("the environment's observation", obs, self.env.observation_space.shape)
        return np.asarray(obs)

    def _reward(self, reward: Any) -> float:
        number = np.asarray(reward) if not isinstance(reward, str) else np.asarray("")
        if number.dtype.kind not in _NUMBERS or number.size != 1:
            raise StepError(f"the environment's reward is {_kind(reward)}; one number is needed")
        if not np.isfinite(number).all():
            raise StepError(f"the environment's reward is {number.item()}; it must be finite")
        return float(number.reshape(()))

    def _check_flags(self, terminated: Any, truncated: Any, info: Any) -> None:
        for what, flag in (("terminated", terminated), ("truncated", truncated)):
            if not isinstance(flag, bool | np.bool_ | int | np.integer):
                raise StepError(f"the environment's {what} is {_kind(flag)}; True or False is needed")
        if not isinstance(info, dict):
            raise StepError(f"the environment's info is {_kind(info)}; a dict is needed")

    def _check_vector(self, what: str, values: Any, shape: tuple[int, ...] | None) -> None:
        try:
            array = np.asarray(values)
        except ValueError as error:
            raise StepError(f"{what} is ragged; shape {list(shape or ())} is needed") from error
        if array.dtype.kind not in _NUMBERS:
            raise StepError(f"{what} is {_kind(values)}; an array of numbers is needed")
        if array.shape != shape:
            raise StepError(f"{what} has shape {list(array.shape)}; {list(shape or ())} is needed")
        if not np.isfinite(array).all():
            place = int(np.argmin(np.isfinite(array)))
            raise StepError(f"{what} is {array.ravel()[place]} in column {place}; it must be finite")

    def _failed(self, method: str, error: Exception) -> StepError:
        return StepError(
            f"{method}() of the environment {self.name} failed: {type(error).__name__}: {error} "
            "(its own code; --debug shows where)"
        )


def _kind(value: Any) -> str:
    """Describe a value that is of the wrong kind."""
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} of shape {list(value.shape)}"
    return f"{type(value).__name__} {str(value)[:40]!r}"
