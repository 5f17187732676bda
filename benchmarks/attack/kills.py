"""Train, fit and reproduce, ended at many points by signals and a full disk, and started again: the same to the bit.

Every attempt is ended once, at a moment drawn from the length of the undisturbed one, and started again (`train
resume=RUN`, or the same command). `benchmarks.kill_and_resume` ends one run again and again by SIGKILL, in processes of
their own that start from nothing.
"""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.attack.attempts import BAD, HARMLESS, Family, Verdict
from benchmarks.attack.material import QUICK_FIT, SMALL, Material
from benchmarks.attack.sandbox import Outcome, run_command
from benchmarks.run_differences import differences, tensors, timeless

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
_LIMIT = 600.0


@dataclass(frozen=True)
class Command:
    """A command that is ended.

    Attributes:
        name: what it is called in the table.
        words: its words for an output folder, also to go on after it was ended.
        compare: returns the differences between two output folders.
        kills: times that it is ended by a signal.
        full_disks: times that it meets a full disk.
    """

    name: str
    words: Callable[[Path], list[str]]
    compare: Callable[[Path, Path], list[str]]
    kills: int
    full_disks: int


def commands(data: Path) -> list[Command]:
    """Return what is ended, and how often: fifty times in all."""
    return [
        Command("train c_cem", lambda out: _train(out, "c_cem"), differences, 12, 2),
        Command("train c_sac", lambda out: _train(out, "c_sac"), differences, 12, 2),
        Command("fit", lambda out: _fit(out, data), _fit_differences, 9, 2),
        Command(
            "reproduce", lambda out: ["reproduce", "robust", "--quick", "--out", str(out)], _study_differences, 9, 2
        ),
    ]


def _train(out: Path, agent: str) -> list[str]:
    if (out / "config.yaml").is_file():
        return ["train", f"resume={out}"]
    return ["train", *SMALL, f"agent={agent}", f"hydra.run.dir={out}"]


def _fit(out: Path, data: Path) -> list[str]:
    return ["fit", str(data), *QUICK_FIT, "fit.num_steps=200", f"out={out}"]


def attack(root: Path, is_small: bool) -> Iterator[Verdict]:
    """End every command; the small version ends each once by each signal."""
    folder = root / "kills"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for command in commands(Material(root).data()):
        home = folder / command.name.replace(" ", "_")
        home.mkdir()
        _finish(command.words(home / "first"), home)  # compiles what is not compiled yet
        started = time.monotonic()
        _finish(command.words(home / "whole"), home)
        duration = time.monotonic() - started
        for number in range(len(SIGNALS) if is_small else command.kills):
            yield _killed(command, number, home, duration)
        for number in range(0 if is_small else command.full_disks):
            yield _full_disk(command, (number + 1) / (command.full_disks + 1), home)


def _killed(command: Command, number: int, home: Path, duration: float) -> Verdict:
    """End a command once; if it was quicker than the moment drawn, try an earlier one."""
    ended = SIGNALS[number % len(SIGNALS)]
    moment = duration * random.Random(f"{command.name} {number}").uniform(0.02, 0.98)
    codes = {signal.SIGKILL: -9, signal.SIGTERM: 143, signal.SIGINT: 130}
    for _ in range(8):
        out = home / "ended"
        shutil.rmtree(out, ignore_errors=True)
        outcome = run_command(command.words(out), home, _LIMIT, end=(ended, moment))
        if outcome.code != 0:
            break
        moment *= 0.6
    found = [] if outcome.code == codes[ended] else [f"exit code {outcome.code}: {outcome.err[-300:]}"]
    found += [] if ended == signal.SIGKILL or outcome.is_one_line else [f"not one line: {outcome.err[-300:]}"]
    _finish(command.words(out), home)
    found += command.compare(home / "whole", out)
    what = f"{command.name}: {ended.name} after {moment:.1f} of {duration:.1f} s"
    said = f"identical; {outcome.lines[0] if outcome.lines else 'no word'}"
    return Verdict("kills", what, BAD if found else HARMLESS, "; ".join(found) or said, moment)


def _full_disk(command: Command, share: float, home: Path) -> Verdict:
    """Let a command meet a disk that is full, make room, and start it again."""
    size = sum(path.stat().st_size for path in (home / "whole").rglob("*") if path.is_file())
    with small_disk(home / f"disk_{share:.2f}") as (disk, resize):
        resize(max(int(share * size), 4096))
        outcome = run_command(command.words(disk / "out"), home, _LIMIT)
        found = [] if outcome.code == 1 else [f"exit code {outcome.code}"]
        found += [] if outcome.is_one_line else [f"not one line: {outcome.err[-300:]}"]
        resize(1 << 30)
        _finish(command.words(disk / "out"), home)
        found += command.compare(home / "whole", disk / "out")
    what = f"{command.name}: disk full at {share:.0%} of its files"
    words = "; ".join(found) or f"identical; {outcome.lines[0]}"
    return Verdict("kills", what, BAD if found else HARMLESS, words, outcome.seconds)


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[tuple[Path, Callable[[int], None]]]:
    """Return a disk of its own (tmpfs; needs the right to mount) and a function that sets its size in bytes."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)], check=True)
    try:
        yield folder, lambda size: _resize(folder, size)
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def _resize(folder: Path, size: int) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", str(folder)], check=True)


def _finish(words: Sequence[str], home: Path) -> Outcome:
    outcome = run_command(words, home, _LIMIT)
    if outcome.code != 0:
        raise SystemExit(f"{' '.join(words)} failed\n{outcome.err}")
    return outcome


def _fit_differences(one: Path, two: Path) -> list[str]:
    found = [] if tensors(one / "model.safetensors") == tensors(two / "model.safetensors") else ["model.safetensors"]
    same = ("labels.csv", "columns.json")
    found += [name for name in same if (one / name).read_bytes() != (two / name).read_bytes()]
    names = [sorted(path.name for path in folder.iterdir()) for folder in (one, two)]
    return found + ([f"files {sorted(set(names[0]) ^ set(names[1]))}"] if names[0] != names[1] else [])


def _study_differences(one: Path, two: Path) -> list[str]:
    ours, theirs = _cells(one), _cells(two)
    return [] if ours and ours == theirs else [f"{len(ours)} and {len(theirs)} cells, or other numbers"]


def _cells(folder: Path) -> list[Any]:
    lines = [line for path in sorted(folder.rglob("*.jsonl")) for line in path.read_text().splitlines()]
    return [timeless({**json.loads(line), "commit": ""}) for line in lines]


FAMILY = Family("kills", "ended by a signal or a full disk and started again: identical to the bit", attack)
