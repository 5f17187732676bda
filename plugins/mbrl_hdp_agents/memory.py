"""Replay buffers of agents in Algorithm 1: filled and relabelled by epoch; checkpoints hold the episodes once."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from mbrl_hdp.control.agent import Epoch
from mbrl_hdp.control.replay import BeliefReplay, model_beliefs
from mbrl_hdp.data.trajectories import Trajectories


def take_in(replay: BeliefReplay, epoch: Epoch) -> None:
    """Store an epoch's episodes; after a refit recompute the beliefs of all stored episodes (Algorithm 1)."""
    model = epoch.model
    if model is None:
        replay.extend(epoch.new, epoch.appended)
        return
    replay.extend(epoch.new, model_beliefs(model, epoch.new))
    if epoch.is_refit:
        replay.relabel(lambda stored: model_beliefs(model, stored))


def replay_state(replay: BeliefReplay) -> dict[str, Tensor]:
    """Return what the run's own episodes do not hold: the beliefs, one row an observation, and the generator."""
    state = replay.state_dict()
    _, beliefs = replay.codec.unpack(state["packed"])
    return {"beliefs": beliefs, "generator": state["generator"]}


def restore_replay(replay: BeliefReplay, state: Mapping[str, Tensor], data: Trajectories) -> None:
    """Fill an empty buffer with the run's episodes and the beliefs of `replay_state`."""
    replay.extend(data)
    full = replay.state_dict()
    obs, _ = replay.codec.unpack(full["packed"])
    packed = replay.codec.pack_tensors(obs, state["beliefs"])
    replay.load_state_dict({**full, "packed": packed, "generator": state["generator"]})
