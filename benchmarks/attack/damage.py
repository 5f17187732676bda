"""Damaged files of runs, exports and models: each is refused by name, or changes nothing.

A run is evaluated, an export is loaded and asked for an action, a model labels a file; "harmless" means that the
outcome is the same, byte for byte, as with the file whole.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.attack.attempts import BAD, HARMLESS, REFUSED, Family, Verdict, sample
from benchmarks.attack.material import Material
from benchmarks.attack.sandbox import Outcome, run_command, run_job

RUN, EXPORT, MODEL = "run", "export", "model"
_CHECKPOINT = "checkpoints/epoch_00002"
_FILES = {
    RUN: [
        *(f"{_CHECKPOINT}/{name}" for name in ("model/model.safetensors", "agent.safetensors", "data.npz", "run.json")),
        *(f"{_CHECKPOINT}/manifest.json", "config.yaml"),
    ],
    EXPORT: ["final/model/model.safetensors", "final/policy.safetensors", "final/manifest.json"],
    MODEL: ["model.safetensors", "columns.json", "manifest.json"],
}

Spoil = Callable[[Path, random.Random], None]


@dataclass(frozen=True)
class Damage:
    """One damaged file.

    Attributes:
        kind: run, export or model.
        agent: agent of the run.
        file: which file, relative to the folder.
        name: what was done to it.
        spoil: does it.
    """

    kind: str
    agent: str
    file: str
    name: str
    spoil: Spoil


def _flip(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def _flip_late(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content) // 2, len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def _zeros(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    start = rng.randrange(max(len(content) - 64, 1))
    content[start : start + 64] = bytes(len(content[start : start + 64]))
    path.write_bytes(content)


def _digit(path: Path, rng: random.Random) -> None:
    """Change one digit, as an editor's slip would; the file stays well-formed."""
    content = bytearray(path.read_bytes())
    places = [place for place, byte in enumerate(content) if chr(byte).isdigit()]
    place = rng.choice(places) if places else 0
    content[place] = ord(str((content[place] - ord("0") + 1) % 10)) if places else content[place] ^ 1
    path.write_bytes(content)


def _cut(share: float) -> Spoil:
    return lambda path, _: path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)]) and None


def _append(path: Path, rng: random.Random) -> None:
    path.write_bytes(path.read_bytes() + bytes(rng.randrange(256) for _ in range(17)))


def _foreign(path: Path, _: random.Random) -> None:
    path.write_text("[section]\nthis is = another program's file\n")


def _nested(path: Path, _: random.Random) -> None:
    path.write_text("[" * 100_000)


def _other(make: Callable[[int], Path]) -> Spoil:
    """Swap in the same file of another run; it is made when it is first needed."""

    def spoil(path: Path, _: random.Random) -> None:
        names = path.parts
        start = next(i for i, part in enumerate(names) if part.startswith(("run_", "fit_")))
        shutil.copy2(make(1).joinpath(*names[start + 1 :]), path)

    return spoil


def _other_epoch(path: Path, _: random.Random) -> None:
    shutil.copy2(str(path).replace("epoch_00002", "epoch_00001"), path)


def _not_a_number(path: Path, _: random.Random) -> None:
    """Fill one tensor with NaN; checksum and manifest are made anew, so that only its values give it away."""
    from mbrl_hdp.data.manifest import write_manifest
    from mbrl_hdp.data.tensor_files import read_tensors, write_tensors

    tensors, words = read_tensors(path)
    name = max((n for n, t in tensors.items() if t.is_floating_point()), key=lambda n: tensors[n].numel())
    tensors[name] = tensors[name] * float("nan")
    write_tensors(path, tensors, words)
    for folder in (path.parent, path.parent.parent):
        manifest = folder / "manifest.json"
        if manifest.is_file():
            found = json.loads(manifest.read_text())
            write_manifest(folder, found["bound"], found["files"])


_GENERAL: tuple[tuple[str, Spoil], ...] = (
    *((f"bit {number} flipped", _flip) for number in range(4)),
    *((f"late bit {number} flipped", _flip_late) for number in range(2)),
    *(("64 bytes zeroed", _zeros), ("one digit changed", _digit), ("cut in half", _cut(0.5)), ("empty", _cut(0.0))),
    *(("last byte missing", _cut(0.9999)), ("17 bytes appended", _append), ("a foreign file", _foreign)),
)


def _run_damages(material: Material, agent: str) -> Iterator[Damage]:
    files = [name for name in _FILES[RUN] if (material.run(agent) / name).is_file()]
    for file in files:
        for name, spoil in _GENERAL:
            yield Damage(RUN, agent, file, name, spoil)
        yield Damage(RUN, agent, file, "from a run with another seed", _other(partial(material.run, agent)))
        if file.startswith(_CHECKPOINT):
            yield Damage(RUN, agent, file, "from another epoch", _other_epoch)
        if file.endswith(".safetensors"):
            yield Damage(RUN, agent, file, "a tensor of NaN", _not_a_number)
        if file.endswith((".json", ".yaml")):
            yield Damage(RUN, agent, file, "nested brackets", _nested)
        yield Damage(RUN, agent, file, "removed", lambda path, _: path.unlink())


def _folder_damages(agent: str) -> Iterator[Damage]:
    """Return what may happen to the folders of checkpoints; `file` is the folder that is made or lost."""

    def copied(name: str) -> Spoil:
        return lambda path, _: shutil.copytree(path, path.parent / name) and None

    for name in ("epoch_00002.bak", "epoch_99999", "epoch_3", "epoch_", ".unfinished_00003", "epoch_00003 (copy)"):
        yield Damage(RUN, agent, _CHECKPOINT, f"copied to {name}", copied(name))
    yield Damage(RUN, agent, f"{_CHECKPOINT}/model", "removed", lambda path, _: shutil.rmtree(path))
    yield Damage(
        RUN, agent, f"{_CHECKPOINT}/model", "moved away", lambda path, _: path.rename(path.parent / "m") and None
    )


def _export_damages(material: Material, agent: str) -> Iterator[Damage]:
    for file in [name for name in _FILES[EXPORT] if (material.run(agent) / name).is_file()]:
        for name, spoil in _GENERAL[:10]:
            yield Damage(EXPORT, agent, file, name, spoil)
        yield Damage(EXPORT, agent, file, "from a run with another seed", _other(partial(material.run, agent)))
        if file.endswith(".safetensors"):
            yield Damage(EXPORT, agent, file, "a tensor of NaN", _not_a_number)


def _model_damages(material: Material) -> Iterator[Damage]:
    for file in [name for name in _FILES[MODEL] if (material.fit() / name).is_file()]:
        for name, spoil in _GENERAL[:11]:
            yield Damage(MODEL, "", file, name, spoil)
        yield Damage(MODEL, "", file, "from another fit", _other(material.fit))
        if file.endswith(".safetensors"):
            yield Damage(MODEL, "", file, "a tensor of NaN", _not_a_number)


def damages(material: Material) -> list[Damage]:
    """Return every attempt."""
    found = [*_run_damages(material, "c_cem"), *_folder_damages("c_cem"), *_run_damages(material, "c_sac")]
    return [*found, *_export_damages(material, "c_sac"), *_model_damages(material)]


def _use(damage: Damage, folder: Path, material: Material) -> tuple[Outcome, bytes]:
    """Use a run, an export or a model; return how it went and everything that came of it."""
    if damage.kind == RUN:
        outcome = run_command(["evaluate", str(folder), "--episodes", "1"], folder.parent)
        result = folder / "evaluation.json"
    elif damage.kind == EXPORT:
        result = folder.parent / "action.npy"
        outcome = run_job(lambda: _act(folder / "final", result), folder.parent)
    else:
        result = folder.parent / "labels.csv"
        outcome = run_command(["label", str(folder), str(material.data()), "-o", str(result)], folder.parent)
    return outcome, result.read_bytes() if outcome.code == 0 else b""


def _act(final: Path, result: Path) -> int:
    """Load model and policy as README shows and act on a fixed observation."""
    import sys

    import mbrl_hdp
    from mbrl_hdp.control.saving import load_policy
    from mbrl_hdp.control.tracker import BeliefTracker
    from mbrl_hdp.errors import CheckpointError

    try:
        model, policy = mbrl_hdp.load(final / "model"), load_policy(final)
    except CheckpointError as error:
        print(f"mbrl-hdp: {error}", file=sys.stderr)
        return 2
    packed = BeliefTracker(model).reset(np.array([0.1, -0.2, 0.3, 0.4]))
    np.save(result, policy.select_action(packed, evaluate=True))
    return 0


def attack(root: Path, is_small: bool) -> Iterator[Verdict]:
    """Damage one file after the other."""
    material = Material(root)
    whole: dict[tuple[str, str], bytes] = {}
    for number, damage in enumerate(sample(damages(material), is_small, 12)):
        source = material.fit() if damage.kind == MODEL else material.run(damage.agent)
        key = (damage.kind, damage.agent)
        if key not in whole:
            whole[key] = _use(damage, material.copy(source, "whole"), material)[1]
        folder = material.copy(source, f"damage_{number}")
        damage.spoil(folder / damage.file, random.Random(f"{number} {damage.file} {damage.name}"))
        outcome, result = _use(damage, folder, material)
        yield _judge(damage, outcome, result == whole[key])
        shutil.rmtree(folder.parent)


def _judge(damage: Damage, outcome: Outcome, is_same: bool) -> Verdict:
    if outcome.code == 0:
        kind, words = (HARMLESS, "same result") if is_same else (BAD, "ANOTHER RESULT without a word")
    elif outcome.code == 2 and outcome.is_one_line:
        kind, words = REFUSED, outcome.lines[0]
    else:
        kind, words = BAD, f"exit code {outcome.code}: {outcome.err[-300:]}"
    name = f"{damage.kind} {damage.agent} {damage.file}: {damage.name}"
    return Verdict("damage", name, kind, words, outcome.seconds)


FAMILY = Family("damage", "a damaged file is refused by name, or the result is the same to the byte", attack)
