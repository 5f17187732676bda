"""Running mean and variance of observations, as Stable-Baselines3's `VecNormalize` keeps them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.floating[Any]]


class Normaliser:
    """Standardises vectors by all vectors seen so far (Welford), cut off at `clip`."""

    def __init__(self, width: int, clip: float) -> None:
        self.clip, self.num = clip, 0
        self.mean, self.squares = np.zeros(width), np.zeros(width)

    def add(self, vector: Vector) -> None:
        """Update with one vector."""
        self.num += 1
        change = vector - self.mean
        self.mean = self.mean + change / self.num
        self.squares = self.squares + change * (vector - self.mean)

    def __call__(self, vector: Vector) -> Vector:
        """Return a standardised vector; as it is before two were seen."""
        if self.num < 2:
            return vector
        scale = np.sqrt(self.squares / self.num + 1e-8)
        return np.clip((vector - self.mean) / scale, -self.clip, self.clip)

    def state_dict(self) -> dict[str, Any]:
        """Return number, mean and sum of squares."""
        return {"num": self.num, "mean": self.mean, "squares": self.squares}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.num, self.mean, self.squares = state["num"], state["mean"].copy(), state["squares"].copy()
