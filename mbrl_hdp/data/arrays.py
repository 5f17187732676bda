"""Trajectories from what is in memory: tables, arrays, lists of episodes, dictionaries of offline data sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mbrl_hdp.data.names import Names
from mbrl_hdp.data.roles import LogConfig
from mbrl_hdp.data.trajectories import Episode, Trajectories
from mbrl_hdp.errors import DataError

# Names in D4RL's and Minari's dictionaries, and in those of `Trajectories`.
_NAMES = {
    "obs": ("observations", "obs", "observation"),
    "next_obs": ("next_observations", "next_obs"),
    "act": ("actions", "act", "action"),
    "reward": ("rewards", "reward"),
    "terminated": ("terminals", "terminations", "terminated", "dones"),
    "truncated": ("timeouts", "truncations", "truncated"),
}


def as_trajectories(data: Any, names: Names | None = None) -> Trajectories:
    """Return trajectories from whatever holds them.

    Args:
        data: `Trajectories`; a pandas or polars table; an array of observations (`T+1 S` or `N T+1 S`); a list of
            such arrays, of pairs (obs, act) or of `Episode`; a D4RL- or Minari-style dictionary, or a list of them.
        names: columns to take, in this order, where the data has names too; others are left out.

    Raises:
        DataError: if it is none of these, does not fit together, or lacks columns.
    """
    read = _read(data)
    if names is None or read.names is None:
        return read
    orders = names.orders(read.names)
    is_same = orders == (list(range(read.obs_dim)), list(range(read.act_dim)))
    return read if is_same else read.take_columns(*orders)


def _read(data: Any) -> Trajectories:
    if isinstance(data, Trajectories):
        return data
    if isinstance(data, Mapping):
        return from_dictionary(data)
    from mbrl_hdp.data.logs import is_frame, log_from_frame  # with pandas, which is slow to import

    if is_frame(data):
        return log_from_frame(data, LogConfig()).named
    if isinstance(data, list | tuple) and len(data):
        return _from_list(data)
    if hasattr(data, "iterate_episodes"):  # a Minari data set
        return Trajectories.from_episodes([_recorded(episode) for episode in data.iterate_episodes()])
    if hasattr(data, "__array__") and not isinstance(data, str):
        return Trajectories(obs=data)
    raise DataError(
        f"cannot read trajectories from {type(data).__name__}; use Trajectories(obs=..., act=...), "
        "Trajectories.from_frame(table, obs=[...]) or mbrl_hdp.load_trajectories(file)"
    )


def from_dictionary(words: Mapping[str, Any]) -> Trajectories:
    """Read a dictionary of an offline data set: flat arrays (D4RL) whose episodes end where a flag is set.

    `observations` with one row more than `actions` (Minari's episodes) are one episode. Otherwise row t holds
    observation, action and reward of step t; without `next_observations` the last row of an episode only ends it.

    Raises:
        DataError: naming the array that is missing or of the wrong length.
    """
    found = {
        key: next((np.asarray(words[name]) for name in names if name in words), None) for key, names in _NAMES.items()
    }
    obs, act = found["obs"], found["act"]
    if obs is None:
        raise DataError(f"the dictionary has no observations; it has {', '.join(map(str, words)) or 'nothing'}")
    if obs.ndim == 3:
        return Trajectories(obs, act, reward=found["reward"], terminated=found["terminated"])
    if act is not None and len(obs) == len(act) + 1:
        return Trajectories.from_episodes([_whole(found)])
    for key, array in found.items():
        if array is not None and len(array) != len(obs):
            raise DataError(f"{key} has {len(array)} rows, observations have {len(obs)}: one row a step is needed")
    ends = np.zeros(len(obs), bool)
    for key in ("terminated", "truncated"):
        if found[key] is not None:
            ends |= np.asarray(found[key]).astype(bool).ravel()
    ends[-1] = True
    starts = np.append(0, np.flatnonzero(ends)[:-1] + 1)
    pieces = [slice(begin, end + 1) for begin, end in zip(starts, np.flatnonzero(ends), strict=True)]
    episodes = [_piece(found, piece) for piece in pieces]
    return Trajectories.from_episodes([episode for episode in episodes if len(episode.obs) > 1])


def _piece(found: Mapping[str, np.ndarray | None], piece: slice) -> Episode:
    """Cut one episode out of flat arrays."""
    obs, next_obs = found["obs"], found["next_obs"]
    assert obs is not None
    length = piece.stop - piece.start - (next_obs is None)
    steps = slice(piece.start, piece.start + length)

    def part(key: str) -> np.ndarray | None:
        array = found[key]
        return None if array is None else array[steps]

    last = None if next_obs is None else next_obs[piece.stop - 1][None]
    terminated = found["terminated"]
    return Episode(
        obs=obs[piece] if last is None else np.concatenate([obs[piece], last]),
        act=part("act"),
        reward=part("reward"),
        terminated=None if terminated is None else bool(np.asarray(terminated[piece]).astype(bool).any()),
    )


def _whole(found: Mapping[str, np.ndarray | None]) -> Episode:
    terminated = found["terminated"]
    is_terminal = None if terminated is None else bool(np.asarray(terminated).astype(bool).any())
    return Episode(obs=found["obs"], act=found["act"], reward=found["reward"], terminated=is_terminal)  # type: ignore[arg-type]


def _recorded(episode: Any) -> Episode:
    reward = None if episode.rewards is None else np.asarray(episode.rewards)
    return Episode(
        np.asarray(episode.observations), np.asarray(episode.actions), None, reward, bool(np.any(episode.terminations))
    )


def _from_list(items: Sequence[Any]) -> Trajectories:
    if all(isinstance(item, Mapping) for item in items):
        parts = [from_dictionary(item) for item in items]
        return Trajectories.concatenate(parts)
    if all(isinstance(item, Episode) for item in items):
        return Trajectories.from_episodes(list(items))
    if all(isinstance(item, tuple) and len(item) == 2 for item in items):
        return Trajectories.from_episodes([Episode(np.asarray(obs), np.asarray(act)) for obs, act in items])
    if all(np.ndim(item) == 2 for item in items):
        return Trajectories.from_episodes([Episode(np.asarray(item)) for item in items])
    raise DataError(
        "a list of episodes holds arrays of observations [T+1, S], pairs (obs, act), Episode objects or dictionaries, "
        f"all of one kind; got {type(items[0]).__name__} first"
    )
