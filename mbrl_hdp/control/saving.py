"""Policies and learned rewards on disk, as models are: one safetensors file each, its settings as JSON in the header.

Reading them runs no code. `policy.json` and `reward.json` are copies of the settings for people.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.spaces import Box
from torch import Tensor

from mbrl_hdp.belief.codec import BeliefCodec
from mbrl_hdp.control.policy import ContextSac, SacConfig
from mbrl_hdp.control.rewards import LearnedReward
from mbrl_hdp.data.atomic import atomic_path
from mbrl_hdp.data.manifest import MANIFEST
from mbrl_hdp.data.tensor_files import read_tensors, write_tensors
from mbrl_hdp.errors import CheckpointError, MbrlHdpError

_VERSION = 2


def save_policy(policy: ContextSac, folder: str | Path) -> None:
    """Write `policy.safetensors` (networks, optimisers, settings) to a folder, which is made if it is not there."""
    words = {
        "obs_dim": policy.codec.obs_dim,
        "num_contexts": policy.codec.max_contexts,
        "act_low": np.asarray(policy.action_space.low, float).tolist(),
        "act_high": np.asarray(policy.action_space.high, float).tolist(),
        "total_updates": policy.total_updates,
        "settings": _sac_settings(asdict(policy.config)),
    }
    _write(Path(folder), "policy", policy.state_dict(), words)


def load_policy(folder: str | Path) -> ContextSac:
    """Build a policy from a folder that `save_policy` wrote, as `final/` of a run directory is.

    Example:
        >>> model, policy = mbrl_hdp.load("RUN/final/model"), load_policy("RUN/final")
        >>> tracker = BeliefTracker(model)
        >>> act = policy.select_action(tracker.reset(obs), evaluate=True)

    Raises:
        CheckpointError: if the file is missing, damaged or of another version.
    """
    state, words = _read(Path(folder), "policy")
    try:
        space = Box(np.asarray(words["act_low"], np.float32), np.asarray(words["act_high"], np.float32))
        codec = BeliefCodec(words["obs_dim"], words["num_contexts"])
        config = SacConfig(**_sac_settings(words["settings"]))
        policy = ContextSac(codec, space, config, total_updates=words["total_updates"])
        policy.load_state_dict(state)
    except (KeyError, TypeError, ValueError, MbrlHdpError) as error:
        raise CheckpointError(f"the policy in {folder} cannot be built: {error}") from error
    return policy


def _sac_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that SAC has; options have their name beside them, older files two numbers of updates."""
    return {field.name: settings[field.name] for field in fields(SacConfig)}


def save_reward(reward: LearnedReward, folder: str | Path) -> None:
    """Write `reward.safetensors` to a folder, which is made if it is not there."""
    _write(Path(folder), "reward", reward.state_dict(), dict(reward.settings))


def load_reward(folder: str | Path) -> LearnedReward:
    """Build a learned reward from a folder that `save_reward` wrote; planners take it beside the model of that folder.

    Raises:
        CheckpointError: if the file is missing, damaged or of another version.
    """
    state, words = _read(Path(folder), "reward")
    try:
        reward = LearnedReward(**words)
        reward.load_state_dict(state)
    except (TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"the reward in {folder} cannot be built: {error}") from error
    return reward


def _write(folder: Path, name: str, state: Mapping[str, Tensor], words: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MANIFEST).unlink(missing_ok=True)  # it would belong to the files that are replaced
    words = {"schema_version": _VERSION, **words}
    write_tensors(folder / f"{name}.safetensors", state, words)
    with atomic_path(folder / f"{name}.json") as path:
        path.write_text(json.dumps(words, indent=2))


def _read(folder: Path, name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    path = folder / f"{name}.safetensors"
    try:
        state, words = read_tensors(path)
    except CheckpointError as error:
        raise CheckpointError(f"cannot read the {name} in {path}: {error}") from error
    if words.pop("schema_version", None) != _VERSION:
        raise CheckpointError(f"{path} was written by another version of mbrl_hdp, or not by save_{name}")
    return state, words
