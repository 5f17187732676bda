"""Half an hour of fits, labels, runs, evaluations and refusals in one process: memory, files and threads flat."""

from __future__ import annotations

import gc
import io
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.attack.attempts import BAD, HARMLESS, Family, Verdict
from benchmarks.attack.material import QUICK_FIT, SMALL, Material

MINUTES = 30.0
GROWTH = 0.05
"""Largest growth of the resident memory from the first third to the last, as a share."""


@dataclass(frozen=True)
class Sample:
    """What the process held after a round."""

    minutes: float
    megabytes: float
    files: int
    threads: int


def attack(root: Path, is_small: bool) -> Iterator[Verdict]:
    """Do the rounds; the small version does three."""
    samples = list(rounds(root, 0.0 if is_small else MINUTES, at_least=3))
    third = max(len(samples) // 3, 1)
    first, last = samples[:third], samples[-third:]
    memory = [float(np.median([sample.megabytes for sample in part])) for part in (first, last)]
    yield _verdict(
        "resident memory, MB", memory, memory[1] <= memory[0] * (1.0 + (0.5 if is_small else GROWTH)), samples
    )
    for name in ("files", "threads"):
        most = [float(max(getattr(sample, name) for sample in part)) for part in (first, last)]
        yield _verdict(f"open {name}", most, most[1] <= most[0], samples)


def _verdict(name: str, pair: list[float], is_flat: bool, samples: list[Sample]) -> Verdict:
    words = f"{pair[0]:.0f} in the first third, {pair[1]:.0f} in the last, {len(samples)} rounds"
    return Verdict("soak", name, HARMLESS if is_flat else BAD, words, samples[-1].minutes * 60.0)


def rounds(root: Path, minutes: float, at_least: int) -> Iterator[Sample]:
    """Use every command once a round; return what the process held after each. The first round warms up."""
    material, folder = Material(root), root / "soak"
    started = time.monotonic()
    done = 0
    while done <= at_least or time.monotonic() - started < 60.0 * minutes:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        _round(material, folder, done)
        gc.collect()
        done += 1
        if done > 1:
            yield _sample((time.monotonic() - started) / 60.0)


def _round(material: Material, folder: Path, number: int) -> None:
    from mbrl_hdp.cli import main

    data, agent = str(material.data()), ("c_cem", "c_sac", "ni_sac")[number % 3]
    lines = (
        (["fit", data, *QUICK_FIT, f"seed={number}", f"out={folder / 'fit'}"], 0),
        (["label", str(folder / "fit"), data, "-o", str(folder / "labels.csv")], 0),
        (["train", *SMALL, f"agent={agent}", f"seed={number}", f"hydra.run.dir={folder / 'run'}"], 0),
        (["evaluate", str(folder / "run"), "--episodes", "2"], 0),
        (["train", "sed=3"], 2),
        (["fit", "nowhere.csv"], 2),
    )
    for words, code in lines:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as errors:
            found = main(words)
        if found != code:
            raise SystemExit(f"round {number}: {' '.join(words)} ended with {found}: {errors.getvalue()[-500:]}")


def _sample(minutes: float) -> Sample:
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    megabytes = int(status["VmRSS"].split()[0]) / 1024.0
    return Sample(minutes, megabytes, len(os.listdir("/proc/self/fd")), int(status["Threads"]))


FAMILY = Family("soak", f"{MINUTES:.0f} minutes in one process: memory, open files and threads stay flat", attack)
