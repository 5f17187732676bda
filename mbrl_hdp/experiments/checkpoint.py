"""Checkpoints of a run: one folder per epoch, written whole or not at all, read without running code."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from mbrl_hdp.control.state import FILE_NAME, pack_state, unpack_state
from mbrl_hdp.data.atomic import atomic_path, sync
from mbrl_hdp.data.manifest import check_manifest, data_hash, write_manifest
from mbrl_hdp.data.plain_files import read_json
from mbrl_hdp.data.tensor_files import read_tensors, write_tensors
from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.errors import CheckpointError
from mbrl_hdp.inference.saving import load

if TYPE_CHECKING:
    from mbrl_hdp.experiments.loop import Run

SCHEMA_VERSION = 3
_KEEP = 2
_NAME = re.compile(r"epoch_(\d+)")
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
    state = {**pack_state(run.agent.state_dict()), **_reward_state(run)}
    write_tensors(unfinished / FILE_NAME, state, {})
    words = {"schema_version": SCHEMA_VERSION, **asdict(snapshot)}
    with atomic_path(unfinished / "run.json") as path:
        path.write_text(json.dumps(words))
    write_manifest(unfinished, _bound(run))
    final = parent / f"epoch_{snapshot.next_epoch:05d}"
    if final.exists():
        shutil.rmtree(final)
    unfinished.rename(final)
    sync(parent)
    for old in _checkpoints(folder)[:-_KEEP]:
        shutil.rmtree(old)


def _bound(run: Run) -> dict[str, str]:
    """Return what a checkpoint belongs to besides its own files."""
    return {"configuration": data_hash(asdict(run.config))}


def _checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints of a run, oldest first; copies and leftovers of other names are none."""
    named = [(path, _NAME.fullmatch(path.name)) for path in (folder / "checkpoints").glob("epoch_*")]
    found = [(int(name[1]), path) for path, name in named if name is not None and path.is_dir()]
    return [path for _, path in sorted(found)]


def latest_snapshot(folder: Path) -> Callable[[Run], Snapshot] | None:
    """Find the last checkpoint; return a function that loads it into a run, None where there is none.

    The function raises a CheckpointError if the checkpoint is damaged, and names the newest one that is whole.
    """
    found = _checkpoints(folder)
    return None if not found else lambda run: _read_newest(found, run)


def _read_newest(found: list[Path], run: Run) -> Snapshot:
    try:
        return _read(found[-1], run)
    except CheckpointError as error:
        good = [path for path in found[:-1] if _is_whole(path, run)]
        advice = f"move {found[-1].name} away to go on from {good[-1].name}" if good else "no older one is whole"
        raise CheckpointError(f"{found[-1]} cannot be used: {error}; {advice}") from error


def _is_whole(folder: Path, run: Run) -> bool:
    try:
        _check(folder, run)
    except CheckpointError:
        return False
    return True


def _check(folder: Path, run: Run) -> dict[str, Any]:
    """Check everything but the numbers; return run.json."""
    if not (folder / "manifest.json").is_file():
        raise CheckpointError("it has no manifest.json: it is damaged, or an earlier version of mbrl_hdp wrote it")
    check_manifest(folder, _bound(run))
    words = read_json(folder / "run.json")
    if words.get("schema_version") != SCHEMA_VERSION:
        raise CheckpointError("it was written by another version of mbrl_hdp; use that one to go on")
    if folder.name != f"epoch_{words['next_epoch']:05d}":
        raise CheckpointError(f"it is that of epoch_{words['next_epoch']:05d} under another name")
    return words


def _read(folder: Path, run: Run) -> Snapshot:
    words = _check(folder, run)
    tensors, _ = read_tensors(folder / FILE_NAME)
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
