"""Processor time of a fit, SAC updates and planned actions, here against a checkout of another commit.

    git worktree add FOLDER COMMIT
    python -m benchmarks.against FOLDER [--rounds N] [--only NAME ...] [--quick] [--write]

Each checkout runs in a process of its own with its own `benchmarks/`; the two run by turns, a quarter of a second each
(the other is stopped meanwhile), so that a busy machine slows both alike. Ratios are here / there: 1.03 is 3 % slower.
`--quick` takes a tenth of the steps, updates and actions; `--write` records the rows in docs/results/against.md, each
with its commit; with `--only` the other rows stay as they were measured. The exit code is 1 if a ratio is above the
limit.
"""

from __future__ import annotations

import argparse
import os
import platform
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

LIMIT = 1.03
SLICE_S = 0.25
HERE = Path(__file__).resolve().parents[1]


def _fit(share: float) -> Callable[[], object]:
    from benchmarks.bench_fit import cartpole, tiny_config
    from mbrl_hdp.experiments.studies.cartpole_fit import episodes, fit_settings
    from mbrl_hdp.inference.fit import fit
    from mbrl_hdp.inference.schedule import FitConfig

    config = FitConfig()
    if hasattr(config, "start"):
        config.start = "random"  # what older commits did; the structure search came later
    config.num_steps, config.polish_steps = round(share * config.num_steps), round(share * config.polish_steps)
    fit(cartpole(10), max_contexts=5, dynamics="cartpole", config=tiny_config(), progress=False)  # compile
    data = episodes(fit_settings(5, 3))
    return lambda: fit(data, max_contexts=5, dynamics="cartpole", seed=3, config=config, progress=False)


def _sac(share: float) -> Callable[[], object]:
    from benchmarks.bench_sac import _ours

    updates = _ours([256], 2)
    updates()
    return lambda: [updates() for _ in range(round(share * 100))]


def _plan(share: float) -> Callable[[], object]:
    from benchmarks.bench_planner import default_cem

    act = default_cem()
    act()
    return lambda: [act() for _ in range(round(share * 100))]


JOBS = {
    "fit": (_fit, "fit.start=random, cart-pole hard, 500 trajectories, K=5, seed 3"),
    "sac": (_sac, "10,000 SAC updates, batch 256, hidden 256, 2 contexts"),
    "plan": (_plan, "100 planned actions, defaults of planner=cem, 5 contexts"),
}


def work(name: str, share: float) -> None:
    """Run one job whenever a line comes in, and print its processor seconds."""
    import torch

    torch.set_num_threads(1)
    run = JOBS[name][0](share)
    print("ready", flush=True)
    for _ in sys.stdin:
        started = time.process_time()
        run()
        print(time.process_time() - started, flush=True)


class Worker:
    """One job in one checkout."""

    def __init__(self, folder: Path, name: str, share: float) -> None:
        paths = os.pathsep.join(map(str, (folder, folder / "plugins")))
        self.process = subprocess.Popen(
            [sys.executable, "-P", __file__, "--work", name, str(share)],
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        if self.read() != "ready\n":
            raise SystemExit(f"{name} does not run in {folder}")

    def read(self) -> str:
        """Return the next line that it prints."""
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def ask(self) -> None:
        """Stop it and hand it a job."""
        assert self.process.stdin is not None
        self.process.send_signal(signal.SIGSTOP)
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def turn(self) -> float | None:
        """Let it run for one slice; return its processor seconds if it finished."""
        self.process.send_signal(signal.SIGCONT)
        if select.select([self.process.stdout], [], [], SLICE_S)[0]:
            return float(self.read())
        self.process.send_signal(signal.SIGSTOP)
        return None


def pair(here: Worker, there: Worker) -> tuple[float, float]:
    """Run the job once in both, by turns; return their processor seconds."""
    found: dict[Worker, float] = {}
    for worker in (here, there):
        worker.ask()
    while len(found) < 2:
        for worker in (here, there):
            if worker not in found and (seconds := worker.turn()) is not None:
                found[worker] = seconds
    return found[here], found[there]


def measure(name: str, folder: Path, rounds: int, share: float) -> list[tuple[float, float]]:
    workers: list[Worker] = []
    try:
        workers += [Worker(HERE, name, share), Worker(folder, name, share)]
        return [pair(workers[0], workers[1]) for _ in range(rounds)]
    finally:
        for worker in workers:
            worker.process.kill()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a checkout of another commit")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=list(JOBS), default=list(JOBS))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--write", action="store_true")
    words = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # so that no stopped worker is left behind
    share = 0.1 if words.quick else 1.0
    commit, rows, worst = _commit(HERE), {}, 0.0
    for name in words.only:
        pairs = measure(name, words.folder.resolve(), words.rounds, share)
        here, there = (median(times) for times in zip(*pairs, strict=True))
        worst = max(worst, here / there)
        each = ", ".join(f"{mine / theirs:.3f}" for mine, theirs in pairs)
        what = JOBS[name][1] + (", a tenth of it" if words.quick else "")
        rows[what] = f"| {what} | {commit} | {here:.2f} | {there:.2f} | {here / there:.3f} | {each} |"
        print(rows[what], flush=True)
    if words.write:
        _write(words.folder, rows)
    return 0 if worst <= LIMIT else 1


def _commit(folder: Path) -> str:
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _write(folder: Path, rows: dict[str, str]) -> None:
    """Write the page; rows that were not measured now stay."""
    page = HERE / "docs" / "results" / "against.md"
    old = page.read_text().splitlines() if page.exists() else []
    stored = {line.split(" | ")[0].removeprefix("| "): line for line in old if line.startswith("| ")}
    known = {what: rows.get(what, stored.get(what)) for _, what in JOBS.values()} | rows
    lines = ["| what | commit | here, s | there, s | ratio of medians | ratio of each pair |", "|" + " --- |" * 6]
    lines += [row for row in known.values() if row is not None]
    text = [
        "# Speed against an earlier commit",
        "",
        f"Written by `python -m benchmarks.against FOLDER --write`, FOLDER a checkout of {_commit(folder)}; do not",
        "edit. Every row names the commit that was measured. Processor seconds of one thread, medians over the pairs;",
        f"the two checkouts run by turns of {SLICE_S} s. Ratios are here / there; the limit is {LIMIT}.",
        "",
        f"Python {platform.python_version()} on {platform.system()} {platform.machine()}, {os.cpu_count()} cores.",
        "",
        *lines,
        "",
    ]
    page.write_text("\n".join(text))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(sys.argv[2], float(sys.argv[3]))
    else:
        sys.exit(main())
