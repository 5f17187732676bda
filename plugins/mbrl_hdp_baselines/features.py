"""What the baselines' models and policies see of an observation: angles as sine and cosine."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class AngleFeatures:
    """Replaces every angle of an observation by its cosine and sine, and back.

    Other columns come first, in their order, then all cosines, then all sines.

    Args:
        obs_dim: width of an observation.
        angle_columns: columns that are angles.

    Example:
        >>> features = AngleFeatures(4, [2])
        >>> features.encode(torch.tensor([0.1, 0.2, 0.0, 0.3]))
        tensor([0.1000, 0.2000, 0.3000, 1.0000, 0.0000])
    """

    def __init__(self, obs_dim: int, angle_columns: Sequence[int]) -> None:
        self.angles = sorted(angle_columns)
        self.others = [column for column in range(obs_dim) if column not in self.angles]
        self.obs_dim = obs_dim
        self.width = obs_dim + len(self.angles)

    def encode(self, obs: Tensor) -> Tensor:
        """Return the features `... F` of observations `... S`."""
        if not self.angles:
            return obs
        angles = obs[..., self.angles]
        return torch.cat([obs[..., self.others], angles.cos(), angles.sin()], -1)

    def encode_row(self, obs: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the features of one observation; numpy is faster for single ones."""
        if not self.angles:
            return obs
        angles = obs[self.angles]
        return np.concatenate([obs[self.others], np.cos(angles), np.sin(angles)])

    def decode(self, features: Tensor) -> Tensor:
        """Return observations `... S`, angles within [-pi, pi]; cosine and sine need not lie on the circle."""
        if not self.angles:
            return features
        others, cos, sin = features.split([len(self.others), len(self.angles), len(self.angles)], -1)
        obs = features.new_empty(*features.shape[:-1], self.obs_dim)
        obs[..., self.others] = others
        obs[..., self.angles] = torch.atan2(sin, cos)
        return obs
