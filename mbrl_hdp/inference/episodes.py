"""Trajectories as tensors, ready for minibatches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.inference.elbo import EpisodeBatch


@dataclass(frozen=True)
class EpisodeTensors:
    """A data set as tensors, ready for minibatches."""

    obs: Float[Tensor, "N T1 S"]
    act: Float[Tensor, "N T A"]
    lengths: Int[Tensor, " N"]
    is_observed: Bool[Tensor, "N T"] | None

    @staticmethod
    def of(
        data: Trajectories, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
    ) -> EpisodeTensors:
        """Convert trajectories; the mask is dropped where every step is observed."""
        is_observed = data.is_observed
        return EpisodeTensors(
            torch.as_tensor(np.nan_to_num(data.obs), dtype=dtype, device=device),
            torch.as_tensor(np.nan_to_num(data.act), dtype=dtype, device=device),
            torch.as_tensor(data.lengths, device=device),
            None if bool((is_observed == data.is_step).all()) else torch.as_tensor(is_observed, device=device),
        )

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def device(self) -> torch.device:
        """Where the episodes live."""
        return self.obs.device

    @property
    def num_transitions(self) -> int:
        """Number of transitions that carry likelihood."""
        if self.is_observed is not None:
            return int(self.is_observed.sum())
        return int(self.lengths.sum())

    def batch(self, index: Int[Tensor, " B"] | None = None) -> EpisodeBatch:
        """Return some episodes, or all of them."""
        if index is None:
            return EpisodeBatch(self.obs, self.act, self.lengths, self.is_observed)
        mask = None if self.is_observed is None else self.is_observed[index]
        return EpisodeBatch(self.obs[index], self.act[index], self.lengths[index], mask)


def some_episodes(data: Trajectories, most_transitions: int) -> Trajectories:
    """Return all episodes, or, of more data, episodes spread over it with about `most_transitions` transitions."""
    count = max(2, round(most_transitions * data.num_episodes / max(int(data.is_observed.sum()), 1)))
    if count >= data.num_episodes:
        return data
    return data.select(np.linspace(0, data.num_episodes - 1, count).round().astype(int))
