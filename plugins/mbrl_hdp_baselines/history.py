"""Windows of history: an observation with the observations and actions before it, newest first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mbrl_hdp.data.trajectories import Trajectories

Vector = NDArray[np.float64]


class History:
    """Remembers an episode's last observations and actions.

    A window is [obs_t, obs_{t-1}, act_{t-1}, obs_{t-2}, act_{t-2}, ...]; zeros stand for what was before the episode.

    Args:
        obs_dim: width of an observation.
        act_dim: width of an action.
        length: number of earlier observations and actions.
    """

    def __init__(self, obs_dim: int, act_dim: int, length: int) -> None:
        self.obs_dim, self.length = obs_dim, length
        self.width = obs_dim + length * (obs_dim + act_dim)
        self.reset()

    def angles(self, angle_columns: Sequence[int]) -> list[int]:
        """Return the columns of a window that are angles, given those of an observation."""
        step = (self.width - self.obs_dim) // self.length if self.length else 0
        past = [self.obs_dim + place * step + column for place in range(self.length) for column in angle_columns]
        return [*angle_columns, *past]

    def reset(self) -> None:
        """Begin an episode."""
        self._past = np.zeros(self.width - self.obs_dim)

    def window(self, obs: Vector) -> Vector:
        """Return the window at an observation."""
        return np.concatenate([obs, self._past])

    def add(self, obs: Vector, act: Vector) -> None:
        """Remember an observation and the action taken there."""
        self._past = np.concatenate([obs, act, self._past])[: len(self._past)]

    def windows(self, obs: Vector, act: Vector) -> Vector:
        """Return the windows `T+1 W` of an episode with observations `T+1 S` and actions `T A`."""
        self.reset()
        found = []
        for now, taken in zip(obs[:-1], act, strict=True):
            found.append(self.window(now))
            self.add(now, taken)
        found.append(self.window(obs[-1]))
        self.reset()
        return np.array(found)


def transitions(data: Trajectories, history: History) -> tuple[Vector, Vector, Vector, Vector, Vector]:
    """Return windows, actions, rewards, next windows and terminations of all steps of all episodes, in their order."""
    parts: list[tuple[Vector, ...]] = []
    for number, length in enumerate(data.lengths):
        windows = history.windows(data.obs[number, : length + 1], data.act[number, :length])
        ends = np.zeros(length) if data.terminated is None else data.terminated[number, :length].astype(np.float64)
        rewards = np.zeros(length) if data.reward is None else data.reward[number, :length]
        parts.append((windows[:-1], data.act[number, :length], rewards, windows[1:], ends))
    obs, act, reward, next_obs, ended = (np.concatenate(part) for part in zip(*parts, strict=True))
    return obs, act, reward, next_obs, ended
