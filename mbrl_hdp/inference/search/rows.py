"""Transitions as standardised rows, with the folds that cross-fitting uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mbrl_hdp.data.trajectories import Trajectories

NUM_FOLDS = 4
# With fewer episodes the folds are blocks of steps.
_FEWEST_EPISODES = 10
_BLOCK = 40
# Rows that belong to a context less than this are left out of its heads and their features: most rows belong to one
# context only, so the cost then hardly grows with the contexts.
LEAST_WEIGHT = 1e-3


@dataclass(frozen=True)
class Rows:
    """M observed transitions: inputs x = (obs, act) and targets y = next_obs - obs, both standardised.

    Attributes:
        inputs: standardised inputs, `M X`; columns that never vary are left out.
        targets: standardised targets, `M Y`; columns that never vary are left out.
        raw_inputs: the inputs in their own units, for sines and cosines.
        input_center: mean of every input.
        input_scale: spread of every input.
        target_center: mean of every target.
        target_scale: spread of every target.
        input_columns: which of (obs, act) the inputs are.
        target_columns: which of obs the targets are.
        fold: fold of every row, `M`.
        episode: episode of every row, `M`.
        step: step of every row within its episode, `M`.
        shape: number of episodes and of steps (padded).
        lengths: steps of every episode.
        angles: inputs that are known to be angles in radians.
    """

    inputs: Float[np.ndarray, "M X"]
    targets: Float[np.ndarray, "M Y"]
    raw_inputs: Float[np.ndarray, "M X"]
    input_center: Float[np.ndarray, " X"]
    input_scale: Float[np.ndarray, " X"]
    target_center: Float[np.ndarray, " Y"]
    target_scale: Float[np.ndarray, " Y"]
    input_columns: Int[np.ndarray, " X"]
    target_columns: Int[np.ndarray, " Y"]
    fold: Int[np.ndarray, " M"]
    episode: Int[np.ndarray, " M"]
    step: Int[np.ndarray, " M"]
    shape: tuple[int, int]
    lengths: Int[np.ndarray, " N"]
    angles: tuple[int, ...] = ()

    def __len__(self) -> int:
        """Return the number of transitions."""
        return len(self.targets)

    @cached_property
    def fold_rows(self) -> list[Int[np.ndarray, " n"]]:
        """Rows of every fold."""
        return [np.flatnonzero(self.fold == fold) for fold in range(NUM_FOLDS)]

    def sample(self, num_rows: int, seed: int = 0) -> tuple[Rows, Int[np.ndarray, " m"]]:
        """Return whole episodes with about `num_rows` rows, drawn at random, and which rows these are."""
        count = -(-num_rows * self.shape[0] // len(self))
        if count >= self.shape[0] or count < _FEWEST_EPISODES:
            return self, np.arange(len(self))
        chosen = np.sort(np.random.default_rng(seed).choice(self.shape[0], count, replace=False))
        index = np.flatnonzero(np.isin(self.episode, chosen))
        part = replace(
            self,
            inputs=self.inputs[index],
            targets=self.targets[index],
            raw_inputs=self.raw_inputs[index],
            fold=self.fold[index],
            episode=np.searchsorted(chosen, self.episode[index]),
            step=self.step[index],
            shape=(count, self.shape[1]),
            lengths=self.lengths[chosen],
        )
        return part, index

    @cached_property
    def coordinates(self) -> Float[np.ndarray, "M C"]:
        """Standardised inputs, every angle replaced by its cosine and sine."""
        if not self.angles:
            return self.inputs
        columns = []
        for column, values in enumerate(self.inputs.T):
            if column not in self.angles:
                columns.append(values)
                continue
            for wave in (np.cos(self.raw_inputs[:, column]), np.sin(self.raw_inputs[:, column])):
                columns.append((wave - wave.mean()) / max(float(wave.std()), 1e-9))
        return np.stack(columns, 1)

    @cached_property
    def previous(self) -> Int[np.ndarray, " M"]:
        """Row of the step before every row, -1 where there is none."""
        place = np.full(self.shape, -1)
        place[self.episode, self.step] = np.arange(len(self))
        before = np.concatenate([np.full((self.shape[0], 1), -1), place[:, :-1]], 1)
        return before[self.episode, self.step]

    def pad(self, values: Float[np.ndarray, M * k]) -> Float[np.ndarray, "N T *k"]:
        """Return row values by episode and step, zero where nothing was observed."""
        padded = np.zeros(self.shape + values.shape[1:])
        padded[self.episode, self.step] = values
        return padded

    def flatten(self, padded: Float[np.ndarray, "N T *k"]) -> Float[np.ndarray, M * k]:
        """Return what `pad` made, row by row."""
        return padded[self.episode, self.step]

    @cached_property
    def length_tensor(self) -> Int[Tensor, " N"]:
        """Lengths for the messages."""
        return torch.as_tensor(self.lengths)


def make_rows(data: Trajectories, like: Rows | None = None, angles: Sequence[int] = ()) -> Rows:
    """Standardise the observed transitions of `data` and cut them into folds.

    Args:
        data: episodes.
        like: rows whose columns, units and angles are used; None chooses them from the data.
        angles: observations that are known to be angles in radians.
    """
    is_observed = data.is_observed
    episode, step = np.nonzero(is_observed)
    raw = np.concatenate([data.obs[:, :-1], data.act], -1)[is_observed].astype(np.float64)
    change = (data.obs[:, 1:].astype(np.float64) - data.obs[:, :-1])[is_observed]
    inputs = np.flatnonzero(_varying(raw)) if like is None else like.input_columns
    targets = np.flatnonzero(_varying(change)) if like is None else like.target_columns
    raw, change = raw[:, inputs], change[:, targets]
    center, scale = (raw.mean(0), raw.std(0)) if like is None else (like.input_center, like.input_scale)
    target_center, target_scale = (
        (change.mean(0), change.std(0)) if like is None else (like.target_center, like.target_scale)
    )
    return Rows(
        inputs=(raw - center) / scale,
        targets=(change - target_center) / target_scale,
        raw_inputs=raw,
        input_center=center,
        input_scale=scale,
        target_center=target_center,
        target_scale=target_scale,
        input_columns=inputs,
        target_columns=targets,
        fold=_folds(episode, step, data.num_episodes),
        episode=episode,
        step=step,
        shape=(data.num_episodes, data.max_steps),
        lengths=data.lengths,
        angles=tuple(int(i) for i in np.flatnonzero(np.isin(inputs, list(angles)))) if like is None else like.angles,
    )


def _varying(values: Float[np.ndarray, "M d"]) -> Bool[np.ndarray, " d"]:
    return values.std(0) > 1e-9 * (np.abs(values).max(0) + 1e-12)


def _folds(episode: np.ndarray, step: np.ndarray, num_episodes: int) -> Int[np.ndarray, " M"]:
    group = episode if num_episodes >= _FEWEST_EPISODES else episode + step // _BLOCK
    return group % NUM_FOLDS
