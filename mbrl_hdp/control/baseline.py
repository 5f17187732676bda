"""What a baseline is: an agent of its own kind that learns from the same episodes and is scored the same way."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Baseline(ABC):
    """An agent that brings its own model and learning rule (GPMM, RNN-PPO, ...).

    `act` and `reset` have the shape of mbrl-lib's `Agent`, so a baseline can stand wherever an mbrl-lib agent does.
    """

    @abstractmethod
    def act(self, obs: NDArray[np.floating[Any]], explore: bool = False) -> NDArray[np.floating[Any]]:
        """Choose an action for one observation (never told the context)."""

    @abstractmethod
    def observe(
        self,
        obs: NDArray[np.floating[Any]],
        act: NDArray[np.floating[Any]],
        reward: float,
        next_obs: NDArray[np.floating[Any]],
        terminated: bool,
    ) -> None:
        """Learn from one transition, or keep it for `end_episode`."""

    def reset(self) -> None:  # noqa: B027 - having nothing to forget is fine
        """Begin an episode: forget what belongs to the last one (plans, recurrent state)."""

    def end_episode(self) -> Mapping[str, float]:
        """Learn from the finished episode; return metrics for `metrics.csv`."""
        return {}

    def context_labels(self) -> NDArray[np.integer[Any]] | None:
        """Return the context that the agent believed in at every step of the last episode, None if it has none."""
        return None

    @abstractmethod
    def state_dict(self) -> Mapping[str, Any]:
        """Return everything that a resumed run needs, as tensors, arrays and plain numbers."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` gave."""
