"""Stable-Baselines3 behind our loop: its algorithms get spaces instead of an environment, and a silent logger."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.logger import Logger


class SpacesOnly(gymnasium.Env[Any, Any]):
    """What Stable-Baselines3 wants to know of an environment; our loop takes the steps."""

    def __init__(self, width: int, action_space: gymnasium.spaces.Box) -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (width,), np.float32)
        self.action_space = gymnasium.spaces.Box(
            np.asarray(action_space.low, np.float32), np.asarray(action_space.high, np.float32)
        )


def silence(algorithm: BaseAlgorithm) -> None:
    """Let an algorithm log into memory alone; `logged` reads it."""
    algorithm.set_logger(Logger(None, []))


def logged(algorithm: BaseAlgorithm) -> Mapping[str, float]:
    """Return what the last update logged, by the last part of its name."""
    found = algorithm.logger.name_to_value
    return {name.rpartition("/")[2]: float(value) for name, value in found.items()}
