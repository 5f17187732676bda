"""Compare two run directories number by number; times, versions and the commit aside."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open

from mbrl_hdp.data.manifest import MANIFEST
from mbrl_hdp.experiments.metrics import read_metrics

# What differs between equal runs: facts of the machine, and checksums of files that hold times.
_HOST_FACTS = {"versions", "git_commit", "sha256"}


def differences(one: Path, two: Path) -> list[str]:
    """Return what differs between two finished runs; empty if nothing does."""
    found = list(_row_differences(timeless(read_metrics(one)), timeless(read_metrics(two))))[:1]
    if _words(one / "summary.json") != _words(two / "summary.json"):
        found.append("summary.json")
    last = [sorted((run / "checkpoints").glob("epoch_*"))[-1] for run in (one, two)]
    if last[0].name != last[1].name:
        found.append(f"last checkpoints {last[0].name} and {last[1].name}")
    for name, pair in (("checkpoint", last), ("final", [one / "final", two / "final"])):
        found += [f"{name}/{what}" for what in _folder_differences(*pair)]
    if scalars(one) != scalars(two):
        found.append("TensorBoard scalars")
    return found + [f"left behind: {path.relative_to(two)}" for path in leftovers(two)]


def _row_differences(one: list[dict[str, Any]], two: list[dict[str, Any]]) -> Iterator[str]:
    if len(one) != len(two):
        yield f"metrics.csv: {len(one)} and {len(two)} rows"
    for number, (ours, theirs) in enumerate(zip(one, two, strict=False)):
        if list(ours.items()) != list(theirs.items()):
            names = [name for name in ours | theirs if ours.get(name) != theirs.get(name)]
            yield f"metrics.csv from row {number} on ({', '.join(names) or 'order of columns'})"


def _folder_differences(one: Path, two: Path) -> Iterator[str]:
    names = [sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()) for root in (one, two)]
    if names[0] != names[1]:
        yield f"files {sorted(set(names[0]) ^ set(names[1]))}"
        return
    for name in names[0]:
        if Path(name).name == MANIFEST:
            continue  # checksums of the files that are compared here
        read = {".safetensors": tensors, ".npz": arrays, ".json": _words}.get(Path(name).suffix, Path.read_bytes)
        if read(one / name) != read(two / name):
            yield name


def tensors(path: Path) -> dict[str, Any]:
    """Return every tensor of a file as its type, shape and bytes, and the words of its header without times."""
    with safe_open(path, framework="np") as file:
        found: dict[str, Any] = {name: _bits(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118
        words = {name: _parsed(text) for name, text in (file.metadata() or {}).items()}
    return {**found, "header": timeless(words)}


def arrays(path: Path) -> dict[str, Any]:
    """Return every array of an npz file as its type, shape and bytes."""
    with np.load(path, allow_pickle=False) as file:
        return {name: _bits(file[name]) for name in file.files}


def scalars(run: Path) -> dict[str, list[tuple[int, float | str]]]:
    """Return what TensorBoard shows of a run: step and value of every curve, times aside."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run / "tensorboard")).Reload()
    return {
        tag: [(event.step, repr(event.value)) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
        if not tag.endswith("_s")
    }


def leftovers(run: Path) -> list[Path]:
    """Return hidden files that a killed process left; Hydra's own folder is none."""
    return sorted(path for path in run.rglob(".*") if path.name != ".hydra")


def _bits(array: np.ndarray[Any, Any]) -> tuple[str, tuple[int, ...], bytes]:
    return str(array.dtype), array.shape, array.tobytes()


def _words(path: Path) -> Any:
    return timeless(json.loads(path.read_text()))


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def timeless(words: Any) -> Any:
    """Remove times and descriptions of the machine; NaN is written as text, so that it equals itself."""
    if isinstance(words, dict):
        kept = {key: value for key, value in words.items() if not key.endswith("_s") and key not in _HOST_FACTS}
        return {key: timeless(value) for key, value in kept.items()}
    if isinstance(words, list):
        return [timeless(value) for value in words]
    return repr(words)
