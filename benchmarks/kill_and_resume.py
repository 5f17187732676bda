"""Kill a training run again and again (SIGKILL), resume it each time, and compare the outcome with one left alone.

    python -m benchmarks.kill_and_resume [--points 10] [--agents c_cem c_sac] [--seed 0] [--write resume.md]

Every run is the real program, `mbrl-hdp train ...` and then `mbrl-hdp train resume=RUN`. Its progress line (read
through a pseudo-terminal) shows where it stands. Exit code 1 on any difference.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pty
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.run_differences import differences

# Small cart-pole, several epochs; everything else is the program's default.
SETTINGS = (
    *("profile=smoke", "env=cartpole_hard", "env.kwargs.horizon=30", "max_contexts=3", "planner.horizon=5"),
    *("dynamics.hidden_sizes=[32]", "budget.num_epochs=8", "budget.warm_model_steps=200", "budget.model_steps=40"),
    *("budget.episodes_per_epoch=4", "budget.eval_episodes=2", "budget.final_eval_episodes=6"),
)
# What each kill waits for, and from which epoch on; then it waits a little more, at random.
PLAN = (
    *(("imports", 0), ("model", 0), ("checkpoint", 0), ("episode", 1), ("metrics", 2), ("time", 3)),
    *(("checkpoint", 4), ("model", 5), ("episode", 6), ("final", 7)),
)
_AFTER_ALL_EPOCHS = 10**6
_IMPORTS = "imports"
_WORDS = re.compile(r"((?:epoch \d+|final|known contexts): [a-z]+[^\x1b\r\n━╸╺]*?)\s*[━╸╺\x1b\r\n]")
_TICK = 2e-4
_TIMEOUT = 600.0


@dataclass(frozen=True)
class Kill:
    """One kill and where the run stood."""

    kind: str
    seconds: float
    words: str
    last_checkpoint: str
    num_rows: int
    is_writing: bool

    def row(self, number: int) -> list[str]:
        """Return the line of the table."""
        writing = "yes" if self.is_writing else ""
        return [
            str(number),
            self.kind,
            f"{self.seconds:.2f}",
            self.words,
            self.last_checkpoint,
            str(self.num_rows),
            writing,
        ]


class Child:
    """A running `mbrl-hdp train`, its progress line and its folder."""

    def __init__(self, words: Sequence[str], folder: Path) -> None:
        self.folder, self.started, self.words = folder, time.monotonic(), _IMPORTS
        ours, theirs = pty.openpty()
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TERM": "xterm", "COLUMNS": "120"}
        # Empty at first: the run in peace compiles what the others read, and that must make no difference either.
        environment["NUMBA_CACHE_DIR"] = str(folder.parent / "numba")
        command = [sys.executable, "-m", "mbrl_hdp", "train", *words]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=theirs, env=environment)
        os.close(theirs)
        self.text = ""
        self.reader = threading.Thread(target=self._read, args=(ours,), daemon=True)
        self.reader.start()

    def _read(self, handle: int) -> None:
        while True:
            try:
                data = os.read(handle, 4096)
            except OSError:  # Linux reports the end of a pseudo-terminal as an error
                data = b""
            if not data:
                os.close(handle)
                return
            self.text = (self.text + data.decode(errors="replace"))[-4096:]
            found = _WORDS.findall(self.text)
            if found:
                self.words = found[-1].strip()

    @property
    def epoch(self) -> int:
        """The epoch that the progress line shows, -1 before the first."""
        if self.words == _IMPORTS:
            return -1
        found = re.match(r"epoch (\d+)", self.words)
        return int(found[1]) if found else _AFTER_ALL_EPOCHS

    @property
    def is_over(self) -> bool:
        """Whether it has ended by itself."""
        return self.process.poll() is not None

    def wait_for(self, is_there: Callable[[], bool]) -> None:
        """Wait for something to happen, or for the end."""
        limit = time.monotonic() + _TIMEOUT
        while not is_there() and not self.is_over and time.monotonic() < limit:
            time.sleep(_TICK)

    def finish(self) -> None:
        """Let it go on to its end."""
        if self.process.wait(_TIMEOUT) != 0:
            raise SystemExit(f"{self.folder}: the run failed\n{self.text}")
        self.reader.join(1.0)

    def kill(self, kind: str, number: signal.Signals = signal.SIGKILL) -> Kill:
        """End it by a signal, without warning by default; return where it stood."""
        seconds = time.monotonic() - self.started
        self.process.send_signal(number)
        code = self.process.wait(_TIMEOUT)
        self.reader.join(1.0)
        # SIGKILL cannot be caught; the others are answered with one line and the shell's exit code. Before Python has
        # come to our first line, they end it as they end any program.
        if code not in {-number, *([] if number == signal.SIGKILL else [128 + number])}:
            raise SystemExit(f"the run ended (code {code}) before the {kind} kill; give it more epochs\n{self.text}")
        checkpoints = sorted(path.name for path in (self.folder / "checkpoints").glob("epoch_*"))
        metrics = self.folder / "metrics.csv"
        return Kill(
            kind,
            seconds,
            self.words if self.words != _IMPORTS or (self.folder / "config.yaml").is_file() else "no config.yaml yet",
            checkpoints[-1] if checkpoints else "none",
            len(metrics.read_text().splitlines()) - 1 if metrics.is_file() else 0,
            any((self.folder / "checkpoints").glob(".unfinished_*")),
        )


def wait_for_moment(child: Child, kind: str, epoch: int, rng: random.Random, work_s: float) -> None:
    """Wait for the moment that a kill is after.

    Args:
        child: the run.
        kind: what to wait for.
        epoch: first epoch to do so in.
        rng: draws how much longer to wait.
        work_s: seconds that the uninterrupted run took after its first epoch.
    """
    if kind == "imports":
        time.sleep(rng.uniform(0.2, 3.0))
        return
    child.wait_for(lambda: child.epoch >= epoch)
    if kind == "time":
        time.sleep(rng.uniform(0.0, 0.2) * work_s)
    elif kind == "metrics":
        known = _stamp(child.folder / "metrics.csv")
        child.wait_for(lambda: _stamp(child.folder / "metrics.csv") != known)
    elif kind == "checkpoint":
        old = _unfinished(child.folder)  # an earlier kill may have left one
        child.wait_for(lambda: bool(_unfinished(child.folder) - old))
        time.sleep(rng.uniform(0.0, 0.006))
    else:
        pattern = {"model": "learning the contexts", "episode": ": episode", "final": r"^(final|known)"}[kind]
        child.wait_for(lambda: child.epoch >= epoch and re.search(pattern, child.words) is not None)
        time.sleep(rng.uniform(0.0, 0.1))


def _unfinished(folder: Path) -> set[tuple[str, int]]:
    """Identify the checkpoints that are being written: names and times."""
    with contextlib.suppress(FileNotFoundError):
        return {(path.name, path.stat().st_mtime_ns) for path in (folder / "checkpoints").glob(".unfinished_*")}
    return set()


def _stamp(path: Path) -> int:
    """Identify a file's contents: atomic writes give every version its own inode and time."""
    return path.stat().st_mtime_ns if path.is_file() else 0


def kill_and_resume(
    agent: str, num_points: int, seed: int, folder: Path, numbers: Sequence[signal.Signals] = (signal.SIGKILL,)
) -> tuple[list[Kill], list[str]]:
    """Run an agent twice, once in peace, once with kills by these signals in turn; return kills and differences."""
    words = [*SETTINGS, f"agent={agent}", f"seed={seed}"]
    whole, killed = folder / f"{agent}_whole", folder / f"{agent}_killed"
    child = Child([*words, f"hydra.run.dir={whole}"], whole)
    child.wait_for(lambda: child.epoch >= 1)
    began = time.monotonic()
    child.finish()
    work_s = time.monotonic() - began
    rng = random.Random(f"{agent} {seed}")
    kills: list[Kill] = []
    plan = [PLAN[number % (len(PLAN) - 1)] for number in range(num_points - 1)] + [PLAN[-1]]
    for kind, epoch in plan:
        child = Child(_resuming(words, killed), killed)
        wait_for_moment(child, kind, epoch, rng, work_s)
        kills.append(child.kill(kind, numbers[len(kills) % len(numbers)]))
        print(" ".join(kills[-1].row(len(kills))), file=sys.stderr, flush=True)
    Child(_resuming(words, killed), killed).finish()
    return kills, differences(whole, killed)


def _resuming(words: Sequence[str], folder: Path) -> list[str]:
    """Return the words that go on with a run; a run without config.yaml has not begun and is started again."""
    return [f"resume={folder}"] if (folder / "config.yaml").is_file() else [*words, f"hydra.run.dir={folder}"]


def table(kills: Sequence[Kill]) -> str:
    """Write the kills as a Markdown table."""
    columns = ("kill", "waited for", "after s", "progress line", "last checkpoint", "rows of metrics.csv", "unfinished")
    lines = [list(columns), ["---"] * len(columns), *(kill.row(number + 1) for number, kill in enumerate(kills))]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--points", type=int, default=10, help="kills per agent (default 10)")
    parser.add_argument("--agents", nargs="+", default=["c_cem", "c_sac"], help="agents to try")
    parser.add_argument("--seed", type=int, default=0, help="seed of the runs and of the kills")
    parser.add_argument("--folder", type=Path, help="keep the runs in this new folder")
    parser.add_argument("--write", type=Path, help="also write the outcome to this Markdown file")
    options = parser.parse_args()
    parts, is_same = [], True
    with tempfile.TemporaryDirectory() as temporary:
        for agent in options.agents:
            folder = options.folder or Path(temporary)
            kills, found = kill_and_resume(agent, options.points, options.seed, folder)
            verdict = "no difference" if not found else "DIFFERENT: " + "; ".join(found)
            is_same &= not found
            parts.append(f"## {agent}\n\n{table(kills)}\n\nVerdict after {len(kills)} kills: **{verdict}**.")
            print(parts[-1], flush=True)
    if options.write is not None:
        options.write.write_text(_page(options, parts))
    return 0 if is_same else 1


def _page(options: argparse.Namespace, parts: Sequence[str]) -> str:
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    words = f"--points {options.points} --agents {' '.join(options.agents)} --seed {options.seed}"
    return "\n\n".join([
        "# A run that is killed and resumed is the same run",
        f"Written by `python -m benchmarks.kill_and_resume {words}` at commit {commit or 'unknown'}; do not edit.",
        "Each agent trains once in peace; then the same command is ended by SIGKILL and resumed (`mbrl-hdp train "
        "resume=RUN`), again and again, and left to finish. Compared: metrics.csv cell by cell without the columns of "
        "times (`_s`), every tensor and array of the last checkpoint and of `final/`, run.json, model.json and "
        "summary.json without times, versions and commit, the TensorBoard scalars (every epoch once), and that no "
        "temporary file is left. The first run compiles its kernels, the others read them from the cache. "
        "*Unfinished*: a checkpoint was being written. Settings: `" + " ".join(SETTINGS) + "`.",
        *parts,
    ]) + "\n"  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
