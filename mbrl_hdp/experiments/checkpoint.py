"""Checkpoints of a run: one folder per epoch, written whole or not at all, read without running code."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.torch import save_file
from torch import Tensor

from mbrl_hdp.control.state import FILE_NAME, pack_state, read_tensors, unpack_state
from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.errors import CheckpointError
from mbrl_hdp.inference.saving import load

if TYPE_CHECKING:
    from mbrl_hdp.experiments.loop import Run

SCHEMA_VERSION = 2
_KEEP = 2
_REWARD = "reward."


@dataclass(frozen=True)
class Snapshot:
    """Where a run stands after an epoch.

    Attributes:
        next_epoch: epoch to go on with.
        num_episodes: real episodes so far.
        env_steps: environment steps so far.
        rows: rows of metrics.csv so far.
    """

    next_epoch: int
    num_episodes: int
    env_steps: int
    rows: list[dict[str, Any]]


def write_snapshot(folder: Path, snapshot: Snapshot, run: Run) -> None:
    """Write a checkpoint; a run killed in the middle leaves the one before it whole."""
    parent = folder / "checkpoints"
    parent.mkdir(parents=True, exist_ok=True)
    unfinished = parent / f".unfinished_{snapshot.next_epoch:05d}"
    if unfinished.exists():
        shutil.rmtree(unfinished)
    unfinished.mkdir()
    if run.model is not None:
        run.model.save(unfinished / "model")
    assert run.data is not None
    run.data.save(unfinished / "data.npz")
    save_file({**pack_state(run.agent.state_dict()), **_reward_state(run)}, unfinished / FILE_NAME)
    words = {
        "schema_version": SCHEMA_VERSION,
        "next_epoch": snapshot.next_epoch,
        "num_episodes": snapshot.num_episodes,
        "env_steps": snapshot.env_steps,
        "rows": snapshot.rows,
    }
    (unfinished / "run.json").write_text(json.dumps(words))
    final = parent / f"epoch_{snapshot.next_epoch:05d}"
    if final.exists():
        shutil.rmtree(final)
    unfinished.rename(final)
    for old in sorted(parent.glob("epoch_*"))[:-_KEEP]:
        shutil.rmtree(old)


def latest_snapshot(folder: Path) -> Callable[[Run], Snapshot] | None:
    """Find the last checkpoint; return a function that loads it into a run, None where there is none."""
    found = sorted((folder / "checkpoints").glob("epoch_*"))
    return None if not found else lambda run: _read(found[-1], run)


def _read(folder: Path, run: Run) -> Snapshot:
    try:
        words = json.loads((folder / "run.json").read_text())
        tensors = read_tensors(folder / FILE_NAME)
    except (OSError, ValueError, CheckpointError) as error:
        raise CheckpointError(
            f"{folder} is damaged ({error}); delete it to go on from the checkpoint before it"
        ) from error
    if words.get("schema_version") != SCHEMA_VERSION:
        raise CheckpointError(f"{folder} was written by another version of mbrl_hdp; use that one to go on")
    if (folder / "model").is_dir():
        run.use_model(load(folder / "model", run.registry))
    run.data = Trajectories.load(folder / "data.npz")
    reward = [name for name in tensors if name.startswith(_REWARD)]
    _restore_reward(run, {name.removeprefix(_REWARD): tensors.pop(name) for name in reward})
    run.agent.load_state_dict(unpack_state(tensors), run.data, run.model)
    return Snapshot(words["next_epoch"], words["num_episodes"], words["env_steps"], words["rows"])


def _reward_state(run: Run) -> dict[str, Tensor]:
    """Return the learned reward as tensors; nothing where there is none."""
    state = {} if run.learned_reward is None else run.learned_reward.state_dict()
    return {f"{_REWARD}{name}": value.detach().clone().contiguous() for name, value in state.items()}


def _restore_reward(run: Run, state: dict[str, Tensor]) -> None:
    try:
        if run.learned_reward is not None:
            run.learned_reward.load_state_dict(state)
    except RuntimeError as error:
        raise CheckpointError(
            "the saved reward does not fit this run (env.reward, max_contexts or the environment changed); "
            "resume with the settings it began with"
        ) from error
