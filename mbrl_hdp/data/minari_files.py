"""Trajectories to and from Minari datasets (minari and h5py are in requirements-extras.lock)."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Space

from mbrl_hdp.data.trajectories import Episode, Trajectories
from mbrl_hdp.errors import DataError

_CONTEXT = "context"
_INSTALL = "Minari datasets need minari and h5py: pip install --no-deps -r requirements-extras.lock (in the checkout)"


def load_minari(dataset_id: str, allow_missing: bool = False) -> Trajectories:
    """Read a local Minari dataset; true contexts come from the recorded `info["context"]` where there are any.

    Raises:
        DataError: if Minari is not installed, the dataset is not on this machine, or its spaces are not flat boxes.
    """
    minari = _import_minari()
    try:
        dataset = minari.load_dataset(dataset_id)
        for name, space in (("observation", dataset.observation_space), ("action", dataset.action_space)):
            _check_space(dataset_id, name, space)
        episodes = [_read_episode(episode) for episode in dataset.iterate_episodes()]
    except ImportError as error:
        raise DataError(f"{_INSTALL} ({error})") from error
    except (FileNotFoundError, ValueError) as error:
        raise DataError(
            f"minari:{dataset_id} cannot be loaded ({error}); `minari download {dataset_id}` fetches published ones"
        ) from error
    if any(episode.context is None for episode in episodes):
        episodes = [episode._replace(context=None) for episode in episodes]
    try:
        return Trajectories.from_episodes(episodes, allow_missing)
    except DataError as error:
        raise DataError(f"minari:{dataset_id}: {error}") from error


def save_minari(data: Trajectories, dataset_id: str) -> None:
    """Write a local Minari dataset; contexts go into `infos["context"]`, -1 standing for the reset.

    Rewards that are unknown become NaN; episodes that do not end in a terminal state count as truncated.

    Raises:
        DataError: if Minari is not installed, the name is malformed or taken.
    """
    minari = _import_minari()
    spaces = {
        "observation_space": Box(-np.inf, np.inf, (data.obs_dim,), data.obs.dtype.type),
        "action_space": Box(-np.inf, np.inf, (data.act_dim,), data.act.dtype.type),
    }
    buffers = [_episode_buffer(number, episode) for number, episode in enumerate(data)]
    try:
        minari.create_dataset_from_buffers(dataset_id, buffers, **spaces)
    except ImportError as error:
        raise DataError(f"{_INSTALL} ({error})") from error
    except ValueError as error:
        raise DataError(f"minari:{dataset_id} cannot be written: {error}") from error


def _import_minari() -> ModuleType:
    try:
        return importlib.import_module("minari")
    except ImportError as error:
        raise DataError(_INSTALL) from error


def _check_space(dataset_id: str, name: str, space: Space[Any]) -> None:
    if not isinstance(space, Box) or len(space.shape) != 1:
        raise DataError(f"minari:{dataset_id}: the {name} space must be a Box of flat vectors, got {space}")


def _read_episode(episode: Any) -> Episode:
    length = len(episode.rewards)
    context = (episode.infos or {}).get(_CONTEXT)
    reward = np.asarray(episode.rewards)
    return Episode(
        obs=np.asarray(episode.observations),
        act=np.asarray(episode.actions),
        # Minari records the info of the reset too; the context that acted on step t is then entry t + 1.
        context=None if context is None else np.asarray(context)[-length:],
        reward=None if np.isnan(reward).all() else reward,
        terminated=bool(episode.terminations[-1]),
    )


def _episode_buffer(number: int, episode: Episode) -> Any:
    from minari.data_collector import EpisodeBuffer

    length = len(episode.obs) - 1
    is_last = np.arange(length) == length - 1
    terminations = is_last & bool(episode.terminated)
    return EpisodeBuffer(
        id=number,
        observations=episode.obs,
        actions=episode.act,
        rewards=np.full(length, np.nan) if episode.reward is None else episode.reward,
        terminations=terminations,
        truncations=is_last & ~terminations,
        infos=None if episode.context is None else {_CONTEXT: np.append(-1, episode.context)},
    )
