"""Train, fit and reproduce, ended at many points by signals and a full disk, and started again: the same to the bit.

Runs of `train` are ended again and again and resumed each time (`benchmarks.kill_and_resume` chooses the moments);
`fit` and `reproduce` are ended once an attempt and started again with the same command.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.attack.attempts import BAD, HARMLESS, Family, Verdict
from benchmarks.attack.material import QUICK_FIT, SMALL, Material
from benchmarks.kill_and_resume import kill_and_resume
from benchmarks.run_differences import differences, tensors

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
TRAIN_KILLS, OTHER_KILLS, FULL_DISKS = 12, 8, 3
_CODES = {signal.SIGKILL: {-9}, signal.SIGTERM: {143, -15}, signal.SIGINT: {130, -2}}
_REPRODUCE = ("reproduce", "robust", "--quick")


def attack(root: Path, is_small: bool) -> Iterator[Verdict]:
    """End every command many times; the small version ends each once."""
    folder = root / "kills"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for agent in ("c_cem", "c_sac")[: 1 if is_small else 2]:
        yield from _train_kills(agent, 1 if is_small else TRAIN_KILLS, folder)
    data = Material(root).data()
    fit = lambda out: ["fit", str(data), *QUICK_FIT, "fit.num_steps=400", f"out={out}"]  # noqa: E731
    reproduce = lambda out: [*_REPRODUCE, "--out", str(out)]  # noqa: E731
    for name, words, compare in (("fit", fit, _fit_differences), ("reproduce", reproduce, _study_differences)):
        yield from _other_kills(name, words, compare, folder / name, 1 if is_small else OTHER_KILLS)
    train = lambda out: [f"resume={out}"] if (out / "config.yaml").is_file() else _train_words(out)  # noqa: E731
    commands = (
        ("train", lambda out: ["train", *train(out)], differences),
        ("fit", fit, _fit_differences),
        ("reproduce", reproduce, _study_differences),
    )
    for name, words, compare in commands[: 1 if is_small else 3]:
        yield from _full_disks(name, words, compare, folder / f"{name}_full", 1 if is_small else FULL_DISKS)


def _train_words(out: Path) -> list[str]:
    return [*SMALL, "agent=c_sac", f"hydra.run.dir={out}"]


def _train_kills(agent: str, count: int, folder: Path) -> Iterator[Verdict]:
    started = time.monotonic()
    kills, found = kill_and_resume(agent, count, 0, folder, SIGNALS)
    seconds = (time.monotonic() - started) / len(kills)
    for number, kill in enumerate(kills):
        ended = SIGNALS[number % len(SIGNALS)].name
        where = f"train {agent}: {ended} at {kill.kind} ({kill.words}, last checkpoint {kill.last_checkpoint})"
        yield Verdict("kills", where, BAD if found else HARMLESS, "; ".join(found) or "identical", seconds)


Words = Callable[[Path], Sequence[str]]
Compare = Callable[[Path, Path], list[str]]


def _other_kills(name: str, words: Words, compare: Compare, folder: Path, count: int) -> Iterator[Verdict]:
    whole = folder / "whole"
    folder.mkdir()
    started = time.monotonic()
    _finish(words(whole), folder)
    duration = time.monotonic() - started
    for number in range(count):
        ended, out = SIGNALS[number % len(SIGNALS)], folder / f"killed_{number}"
        moment = duration * random.Random(f"{name} {number}").uniform(0.3, 0.95)
        code, text = _ended_after(words(out), folder, moment, ended)
        problem = [] if code in _CODES[ended] else [f"exit code {code}"]
        problem += [] if len(text.strip().splitlines()) <= 1 else [f"more than one line: {text[-200:]}"]
        _finish(words(out), folder)
        found = problem + compare(whole, out)
        what = f"{name}: {ended.name} after {moment:.1f} of {duration:.1f} s"
        yield Verdict(
            "kills", what, BAD if found else HARMLESS, "; ".join(found) or f"identical; {text.strip()}", moment
        )


def _full_disks(name: str, words: Words, compare: Compare, folder: Path, count: int) -> Iterator[Verdict]:
    """Let the command meet a disk that is full, make room, and start it again."""
    whole = folder / "whole"
    folder.mkdir()
    _finish(words(whole), folder)
    size = sum(path.stat().st_size for path in whole.rglob("*") if path.is_file())
    for number in range(count):
        share = (number + 1) / (count + 1)
        with small_disk(folder / f"disk_{number}") as (disk, limit):
            limit(max(int(share * size), 4096))
            code, text = _run(words(disk / "out"), folder)
            lines = text.strip().splitlines()
            problem = [] if code == 1 else [f"exit code {code}"]
            problem += [] if len(lines) == 1 else [f"{len(lines)} lines: {text[-300:]}"]
            limit(1 << 30)
            _finish(words(disk / "out"), folder)
            found = problem + compare(whole, disk / "out")
        what = f"{name}: disk full at {share:.0%} of its files"
        yield Verdict("kills", what, BAD if found else HARMLESS, "; ".join(found) or f"identical; {lines[0]}")


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


def _start(words: Sequence[str], folder: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TERM": "dumb"}
    return subprocess.Popen(
        [sys.executable, "-m", "mbrl_hdp", *words], cwd=folder, env=environment, text=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip


def _run(words: Sequence[str], folder: Path) -> tuple[int, str]:
    process = _start(words, folder)
    text = process.communicate(timeout=600)[1]
    return process.returncode, text


def _ended_after(words: Sequence[str], folder: Path, seconds: float, number: signal.Signals) -> tuple[int, str]:
    process = _start(words, folder)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    process.send_signal(number)
    text = process.communicate(timeout=600)[1]
    return process.returncode, text


def _finish(words: Sequence[str], folder: Path) -> None:
    code, text = _run(words, folder)
    if code != 0:
        raise SystemExit(f"{' '.join(words)} failed\n{text}")


def _fit_differences(one: Path, two: Path) -> list[str]:
    found = [] if tensors(one / "model.safetensors") == tensors(two / "model.safetensors") else ["model.safetensors"]
    same = ("labels.csv", "columns.json")
    found += [name for name in same if (one / name).read_bytes() != (two / name).read_bytes()]
    names = [sorted(path.name for path in folder.iterdir()) for folder in (one, two)]
    return found + ([f"files {sorted(set(names[0]) ^ set(names[1]))}"] if names[0] != names[1] else [])


def _study_differences(one: Path, two: Path) -> list[str]:
    cells = [[_cell(line) for path in sorted(folder.rglob("*.jsonl")) for line in path.read_text().splitlines()]
             for folder in (one, two)]  # fmt: skip
    return [] if cells[0] and cells[0] == cells[1] else [f"{len(cells[0])} and {len(cells[1])} cells, or other numbers"]


def _cell(line: str) -> Any:
    words = json.loads(line)
    return _timeless({key: value for key, value in words.items() if key != "commit"})


def _timeless(words: Any) -> Any:
    if isinstance(words, dict):
        return {key: _timeless(value) for key, value in words.items() if not key.endswith("_s")}
    return [_timeless(value) for value in words] if isinstance(words, list) else repr(words)


FAMILY = Family("kills", "ended by a signal or a full disk and started again: identical to the bit", attack)
