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
    """A data set as tensors, ready for minibatches; the fields are those of `EpisodeBatch`."""

    obs: Float[Tensor, "N T1 S"]
    act: Float[Tensor, "N T A"]
    lengths: Int[Tensor, " N"]
    is_observed: Bool[Tensor, "N T"] | None
    is_seen: Bool[Tensor, "N T1 S"] | None = None
    is_partial: Bool[Tensor, "N T"] | None = None

    @staticmethod
    def of(
        data: Trajectories, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
    ) -> EpisodeTensors:
        """Convert trajectories; the mask is dropped where every step is observed."""
        is_observed = data.is_observed
        is_complete = bool((is_observed == data.is_step).all())
        filled = data.obs if is_complete else _fill_holes(data.obs)
        is_partial = np.zeros_like(is_observed) if is_complete else _partial(data, filled)
        return EpisodeTensors(
            torch.as_tensor(np.nan_to_num(filled), dtype=dtype, device=device),
            torch.as_tensor(np.nan_to_num(data.act), dtype=dtype, device=device),
            torch.as_tensor(data.lengths, device=device),
            None if is_complete else torch.as_tensor(is_observed, device=device),
            torch.as_tensor(np.isfinite(data.obs), device=device) if is_partial.any() else None,
            torch.as_tensor(is_partial, device=device) if is_partial.any() else None,
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
            return EpisodeBatch(self.obs, self.act, self.lengths, self.is_observed, self.is_seen, self.is_partial)
        masks = (None if mask is None else mask[index] for mask in (self.is_observed, self.is_seen, self.is_partial))
        return EpisodeBatch(self.obs[index], self.act[index], self.lengths[index], *masks)


def _fill_holes(obs: Float[np.ndarray, "N T1 S"]) -> Float[np.ndarray, "N T1 S"]:
    """Fill a missing value between two recorded ones by their mean; longer holes stay."""
    filled = obs.copy()
    is_hole = np.isnan(obs[:, 1:-1])
    filled[:, 1:-1][is_hole] = (0.5 * (obs[:, :-2] + obs[:, 2:]))[is_hole]
    return filled


def _partial(data: Trajectories, filled: Float[np.ndarray, "N T1 S"]) -> Bool[np.ndarray, "N T"]:
    """Mark transitions that are not complete, start from known or filled values and have a change that was recorded."""
    has_change = (np.isfinite(data.obs[:, :-1]) & np.isfinite(data.obs[:, 1:])).any(-1)
    has_start = np.isfinite(filled[:, :-1]).all(-1) & np.isfinite(data.act).all(-1)
    return data.is_step & ~data.is_observed & has_change & has_start


def some_episodes(data: Trajectories, most_transitions: int) -> Trajectories:
    """Return all episodes, or, of more data, episodes spread over it with about `most_transitions` transitions."""
    count = max(2, round(most_transitions * data.num_episodes / max(int(data.is_observed.sum()), 1)))
    if count >= data.num_episodes:
        return data
    return data.select(np.linspace(0, data.num_episodes - 1, count).round().astype(int))
