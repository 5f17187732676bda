"""Trajectories: episodes of observations and actions, with or without the true contexts."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from mbrl_hdp.data.checks import (
    check_finite,
    check_shape,
    context_array,
    float_array,
    length_array,
    number_array,
    terminated_array,
)
from mbrl_hdp.data.names import Names, joined
from mbrl_hdp.data.padding import episode_length, stack
from mbrl_hdp.errors import DataError

if TYPE_CHECKING:
    from mbrl.util import ReplayBuffer


class Episode(NamedTuple):
    """One episode without padding: `L` transitions.

    Attributes:
        obs: observations, `L+1 S`.
        act: actions, `L A`; None stands for `A = 0`.
        context: the context that acted on each transition, `L`; None where unknown.
        reward: reward of each transition, `L`; None where unknown.
        terminated: True when the last observation is terminal, None where unknown.
    """

    obs: Float[np.ndarray, "L+1 S"]
    act: Float[np.ndarray, "L A"] | None = None
    context: Int[np.ndarray, " L"] | None = None
    reward: Float[np.ndarray, " L"] | None = None
    terminated: bool | None = None


class Transitions(NamedTuple):
    """Observed transitions of all episodes in one row each: `obs` `M S`, `act` `M A`, `next_obs` `M S`."""

    obs: Float[np.ndarray, "M S"]
    act: Float[np.ndarray, "M A"]
    next_obs: Float[np.ndarray, "M S"]


@dataclass(frozen=True, init=False, eq=False, repr=False)
class Trajectories:
    """N episodes of up to T transitions, checked and padded; `context[t]` acted on `obs[t] -> obs[t+1]`.

    A single episode may be given without the first axis. Arrays are copied; float32 stays float32 and every other kind
    of number becomes float64. Padding beyond an episode's length is ignored on the way in and holds 0 (context -1,
    terminated False) afterwards. Missing samples are NaN, only with `allow_missing=True`, and make their transitions
    unobserved (see `is_observed`); a missing context is -1.

    Attributes:
        obs: observations, `N T+1 S`.
        act: actions, `N T A`; A = 0 where the log has none.
        lengths: number of transitions of every episode, `N`.
        context: true contexts, `N T`, from 0; None where unknown. For scoring only.
        reward: rewards, `N T`; None where unknown.
        terminated: True at the transition into a terminal state, `N T`; None where unknown.
        allow_missing: whether NaN may mark missing samples.
        names: what columns and episodes are called; None: they are numbered. Words for people: not compared by `==`.

    Example:
        >>> data = Trajectories(obs=np.zeros((5, 101, 4)), act=np.zeros((5, 100, 1)))
        >>> data.num_episodes, data.max_steps, data.num_transitions
        (5, 100, 500)
    """

    obs: Float[np.ndarray, "N T+1 S"]
    act: Float[np.ndarray, "N T A"]
    lengths: Int[np.ndarray, " N"]
    context: Int[np.ndarray, "N T"] | None
    reward: Float[np.ndarray, "N T"] | None
    terminated: Bool[np.ndarray, "N T"] | None
    allow_missing: bool
    names: Names | None

    def __init__(
        self,
        obs: Any,
        act: Any = None,
        lengths: Any = None,
        context: Any = None,
        reward: Any = None,
        terminated: Any = None,
        allow_missing: bool = False,
        names: Names | None = None,
    ) -> None:
        obs = float_array("obs", obs)
        if obs.ndim == 2:
            obs = obs[None]
            act, context, reward, terminated = (
                None if value is None else number_array(name, value)[None]
                for name, value in (("act", act), ("context", context), ("reward", reward), ("terminated", terminated))
            )
        num_episodes, max_steps, _ = _check_obs_shape(obs)
        act = _act_array(act, num_episodes, max_steps, obs.dtype)
        lengths = length_array(lengths, num_episodes, max_steps)
        is_step = np.arange(max_steps) < lengths[:, None]
        is_state = np.arange(max_steps + 1) <= lengths[:, None]
        if reward is not None:
            reward = float_array("reward", reward)
            check_shape("reward", reward, (num_episodes, max_steps), "episodes, transitions")
        arrays = (("obs", obs, is_state), ("act", act, is_step), ("reward", reward, is_step))
        check_finite(arrays, allow_missing)
        for _, array, is_valid in arrays:
            if array is not None:
                array[~is_valid] = 0.0
        if context is not None:
            context = context_array(context, is_step, allow_missing)
        if terminated is not None:
            terminated = terminated_array(terminated, lengths, max_steps)
        if names is not None:
            names.check(num_episodes, obs.shape[2], act.shape[2])
        checked = (obs, act, lengths, context, reward, terminated, bool(allow_missing), names)
        for field, value in zip(fields(self), checked, strict=True):
            object.__setattr__(self, field.name, value)

    @classmethod
    def from_episodes(cls, episodes: Sequence[Episode], allow_missing: bool = False) -> Trajectories:
        """Pad episodes of any lengths into one set; optional arrays are given in all episodes or in none."""
        if not episodes:
            raise DataError("there are no episodes: at least one is needed")
        lengths = [episode_length(index, episode) for index, episode in enumerate(episodes)]
        padded: dict[str, Any] = {name: stack([getattr(e, name) for e in episodes], name) for name in Episode._fields}
        return cls(**padded, lengths=lengths, allow_missing=allow_missing)

    @staticmethod
    def from_frame(
        frame: Any,
        *,
        obs: str | Sequence[str] | None = None,
        act: str | Sequence[str] | None = None,
        ignore: str | Sequence[str] | None = None,
        episode: str | None = None,
        time: str | None = None,
        context: str | None = None,
        reward: str | None = None,
        terminated: str | None = None,
        gaps: str = "episode",
        max_gap: float | None = None,
        resample: float | None = None,
        allow_missing: bool = False,
    ) -> Trajectories:
        """Read a pandas or polars table, one row a step; columns by name or pattern.

        The arguments are those of `mbrl-hdp fit any.csv`; `mbrl_hdp.data.roles.LogConfig` describes each.

        Raises:
            DataError: naming the columns and what to pass.

        Example:
            >>> data = Trajectories.from_frame(df, time="timestamp", obs=["temp_*"], act=["valve"], ignore=["*"])
        """
        from mbrl_hdp.data.logs import log_from_frame
        from mbrl_hdp.data.roles import LogConfig

        config = LogConfig(
            obs, act, ignore, episode, time, context, reward, terminated, gaps, max_gap, resample, allow_missing
        )
        config.check()
        return log_from_frame(frame, config).named

    def with_names(self, names: Names | None) -> Trajectories:
        """Return the same data, not copied, under other names."""
        if names is not None:
            names.check(self.num_episodes, self.obs_dim, self.act_dim)
        named = copy.copy(self)
        object.__setattr__(named, "names", names)
        return named

    @staticmethod
    def concatenate(parts: Sequence[Trajectories]) -> Trajectories:
        """Join sets of episodes; shorter ones are padded. Context, reward, terminated: in all of them or in none."""
        episodes = [episode for part in parts for episode in part]
        names = joined([part.names for part in parts], [part.num_episodes for part in parts])
        together = Trajectories.from_episodes(episodes, allow_missing=any(part.allow_missing for part in parts))
        return together.with_names(names)

    @staticmethod
    def load(path: str | Path, allow_missing: bool = False) -> Trajectories:
        """Load a `.npz`, `.csv` or parquet file or `minari:ID`; see `mbrl_hdp.data.load_trajectories`."""
        from mbrl_hdp.data.files import load_trajectories

        return load_trajectories(path, allow_missing=allow_missing)

    def save(self, path: str | Path) -> None:
        """Save as a `.npz` or `.csv` file or `minari:ID`; see `mbrl_hdp.data.save_trajectories`."""
        from mbrl_hdp.data.files import save_trajectories

        save_trajectories(self, path)

    @staticmethod
    def from_replay_buffer(buffer: ReplayBuffer) -> Trajectories:
        """Read mbrl-lib's buffer, which must store trajectories; see `mbrl_hdp.data.replay`."""
        from mbrl_hdp.data.replay import from_replay_buffer

        return from_replay_buffer(buffer)

    def to_replay_buffer(self, capacity: int | None = None, rng: np.random.Generator | None = None) -> ReplayBuffer:
        """Fill mbrl-lib's buffer, trajectories kept apart, contexts left out; see `mbrl_hdp.data.replay`."""
        from mbrl_hdp.data.replay import to_replay_buffer

        return to_replay_buffer(self, capacity, rng)

    @property
    def num_episodes(self) -> int:
        """Number of episodes, N."""
        return int(self.obs.shape[0])

    @property
    def max_steps(self) -> int:
        """Transitions that fit into an episode's row, T."""
        return int(self.act.shape[1])

    @property
    def obs_dim(self) -> int:
        """Width of an observation, S."""
        return int(self.obs.shape[2])

    @property
    def act_dim(self) -> int:
        """Width of an action, A; 0 without actions."""
        return int(self.act.shape[2])

    @property
    def num_transitions(self) -> int:
        """Number of transitions, padding not counted."""
        return int(self.lengths.sum())

    @property
    def is_step(self) -> Bool[np.ndarray, "N T"]:
        """True for the transitions within their episode's length."""
        return np.arange(self.max_steps) < self.lengths[:, None]

    @property
    def is_observed(self) -> Bool[np.ndarray, "N T"]:
        """True for the transitions that carry likelihood: within the length, both ends and the action finite."""
        has_obs = np.isfinite(self.obs).all(-1)
        return self.is_step & has_obs[:, :-1] & has_obs[:, 1:] & np.isfinite(self.act).all(-1)

    def transitions(self) -> Transitions:
        """Gather the observed transitions of all episodes, in order, one row each."""
        keep = self.is_observed
        return Transitions(self.obs[:, :-1][keep], self.act[keep], self.obs[:, 1:][keep])

    def episode(self, index: int) -> Episode:
        """Show one episode without padding (views, not copies)."""
        length = int(self.lengths[index])
        return Episode(
            obs=self.obs[index, : length + 1],
            act=self.act[index, :length],
            context=None if self.context is None else self.context[index, :length],
            reward=None if self.reward is None else self.reward[index, :length],
            terminated=None if self.terminated is None else bool(self.terminated[index, length - 1]),
        )

    def select(self, indices: int | slice | Sequence[int] | np.ndarray) -> Trajectories:
        """Take the episodes with these numbers (or slice, or bool mask), in the order given."""
        try:
            chosen = np.atleast_1d(np.arange(self.num_episodes)[indices])
        except IndexError as error:
            raise DataError(f"cannot select episodes from a set of {self.num_episodes}: {error}") from error
        taken = {name: None if array is None else array[chosen] for name, array in self._arrays().items()}
        names = None if self.names is None else self.names.of_episodes(chosen.tolist())
        return Trajectories(**taken, allow_missing=self.allow_missing, names=names)

    def take_columns(self, obs: Sequence[int], act: Sequence[int]) -> Trajectories:
        """Take some columns of observations and actions, in the order given."""
        taken = {**self._arrays(), "obs": self.obs[..., list(obs)], "act": self.act[..., list(act)]}
        names = None if self.names is None else self.names.of_columns(obs, act)
        return Trajectories(**taken, allow_missing=self.allow_missing, names=names)

    def with_actions(self, act: Float[np.ndarray, "N T A"], names: Names | None) -> Trajectories:
        """Return the same episodes with other actions, of which some may be missing (NaN)."""
        return Trajectories(**{**self._arrays(), "act": act}, allow_missing=True, names=names)

    def with_inputs(self, columns: Sequence[int]) -> Trajectories:
        """Make some observation columns further actions, after those that there are."""
        obs = [column for column in range(self.obs_dim) if column not in columns]
        act = np.concatenate([self.act, self.obs[:, :-1, list(columns)]], -1)
        taken = {**self._arrays(), "obs": self.obs[..., obs], "act": act}
        names = None if self.names is None else self.names.with_inputs(columns)
        return Trajectories(**taken, allow_missing=self.allow_missing, names=names)

    def with_past(self, steps: int) -> Trajectories:
        """Add the changes and actions of the last `steps` steps to every action; see `mbrl_hdp.data.past`."""
        from mbrl_hdp.data.past import with_past

        return with_past(self, steps)

    def _arrays(self) -> dict[str, Any]:
        named = (field.name for field in fields(self) if field.name not in {"allow_missing", "names"})
        return {name: getattr(self, name) for name in named}

    def split(self, parts: float | Sequence[int], seed: int = 0) -> tuple[Trajectories, ...]:
        """Split at random into sets of whole episodes.

        Args:
            parts: share of the first of two sets, in (0, 1); or the number of episodes of every set.
            seed: seed of the shuffle; within a set the episodes keep their order.

        Example:
            >>> train, held_out = data.split(0.8, seed=0)
            >>> train, validation, test = data.split([60, 20, 20])
        """
        counts = _split_counts(parts, self.num_episodes)
        order = np.random.default_rng(seed).permutation(self.num_episodes)
        return tuple(self.select(np.sort(chosen)) for chosen in np.split(order, np.cumsum(counts)[:-1]))

    def __len__(self) -> int:
        return self.num_episodes

    def __iter__(self) -> Iterator[Episode]:
        return (self.episode(index) for index in range(self.num_episodes))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Trajectories):
            return NotImplemented
        if not np.array_equal(self.lengths, other.lengths) or self.allow_missing != other.allow_missing:
            return False
        return all(
            _is_same(mine, theirs) for pair in zip(self, other, strict=True) for mine, theirs in zip(*pair, strict=True)
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        known = [name for name in ("context", "reward", "terminated") if getattr(self, name) is not None]
        return (
            f"Trajectories({self.num_episodes} episode{'s' * (self.num_episodes != 1)}, {self.num_transitions} "
            f"transition{'s' * (self.num_transitions != 1)}, "
            f"max_steps={self.max_steps}, obs_dim={self.obs_dim}, act_dim={self.act_dim}, "
            f"with {', '.join(known) or 'no labels'})"
        )


def _check_obs_shape(obs: np.ndarray) -> tuple[int, int, int]:
    if obs.ndim != 3:
        raise DataError(
            "obs must have shape [episodes, transitions + 1, obs_dim], or [transitions + 1, obs_dim] for one episode; "
            f"got {list(obs.shape)}"
        )
    num_episodes, num_states, obs_dim = obs.shape
    if num_episodes == 0:
        raise DataError("there are no episodes: at least one is needed")
    if num_states < 2:
        raise DataError(f"episodes are too short: one transition takes two observations, obs has {num_states} a row")
    if obs_dim == 0:
        raise DataError("obs has no columns: its last axis has length 0")
    return num_episodes, num_states - 1, obs_dim


def _act_array(act: Any, num_episodes: int, max_steps: int, dtype: np.dtype[Any]) -> Float[np.ndarray, "N T A"]:
    if act is None:
        return np.zeros((num_episodes, max_steps, 0), dtype)
    array = float_array("act", act)
    if array.ndim != 3 or array.shape[:2] != (num_episodes, max_steps):
        raise DataError(
            f"act must have shape [{num_episodes}, {max_steps}, act_dim] (one action less than observations; "
            f"a single column still has its own axis), got {list(array.shape)}"
        )
    return array


def _split_counts(parts: float | Sequence[int], num_episodes: int) -> list[int]:
    if isinstance(parts, int | float | np.number):
        if not 0.0 < parts < 1.0:
            raise DataError(f"the share of a split must lie between 0 and 1, got {parts}; counts go in a list")
        first = round(float(parts) * num_episodes)
        counts = [first, num_episodes - first]
    else:
        counts = [int(count) for count in parts]
    if not counts or min(counts) < 1 or sum(counts) != num_episodes:
        raise DataError(
            f"cannot split {num_episodes} episodes into sets of {counts}: "
            f"every set needs at least one and together they must make {num_episodes}"
        )
    return counts


def _is_same(left: Any, right: Any) -> bool:
    if left is None or right is None:
        return left is right
    return bool(np.array_equal(left, right, equal_nan=np.asarray(left).dtype.kind == "f"))
