"""Peak memory and time of a fit on a parquet folder that is larger than memory should hold.

    python -m benchmarks.large_log FOLDER --rows 50000000 --page docs/results/large_log.md

Writes the folder (two sensors, an actuator that reverses, episodes of 500 rows; one file a million rows) unless it is
there. Then a tenth of the files and all of them, each in a process of its own: read in pieces, fit on minibatches of
the episodes that were drawn. The page is the table of seconds and peak memory.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pandas as pd

import mbrl_hdp
from mbrl_hdp.data.files import read_log
from mbrl_hdp.data.parquet_files import PIECE
from mbrl_hdp.data.roles import LogConfig
from mbrl_hdp.experiments.studies.study import table
from mbrl_hdp.experiments.summary import git_commit

FILE_ROWS, EPISODE_ROWS = 1_000_000, 500
FIT = mbrl_hdp.FitConfig(num_steps=100, polish_steps=20, num_restarts=1)


def write(folder: Path, num_rows: int) -> None:
    """Write the log, file by file."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(num_rows // FILE_ROWS):
        rng = np.random.default_rng(number)
        count = FILE_ROWS // EPISODE_ROWS
        act = rng.uniform(-1, 1, size=(EPISODE_ROWS, count)).astype(np.float32)
        sign = np.where(np.cumsum(rng.random((EPISODE_ROWS, count)) < 0.02, axis=0) % 2, -1, 1).astype(np.float32)
        noise = (0.05 * rng.normal(size=(EPISODE_ROWS, count, 2))).astype(np.float32)
        state = np.zeros((EPISODE_ROWS, count, 2), np.float32)
        turn = np.array([[0.9, 0.1], [-0.1, 0.85]], np.float32)
        drive = np.array([0.6, 0.25], np.float32)
        for t in range(EPISODE_ROWS - 1):
            state[t + 1] = state[t] @ turn.T + drive * (act[t] * sign[t])[:, None] + noise[t]
        frame = pd.DataFrame(
            {
                "unit": np.repeat(np.arange(count) + number * count, EPISODE_ROWS),
                "x": state[..., 0].T.ravel(),
                "y": state[..., 1].T.ravel(),
                "u": act.T.ravel(),
            }
        )
        frame.to_parquet(folder / f"part-{number:04d}.parquet", index=False)


@dataclass(frozen=True)
class Measured:
    """One process: seconds are CPU seconds, memory is the peak of the resident set in MB."""

    rows: int
    on_disk_mb: float
    max_rows: int
    note: str
    idle_mb: float
    read_s: float
    read_mb: float
    fit_s: float
    fit_mb: float
    contexts: int


def measure(folder: Path, num_files: int, max_rows: int) -> Measured:
    """Read and fit the first files of the folder in this process."""
    files = sorted(folder.glob("*.parquet"))[:num_files]
    with tempfile.TemporaryDirectory() as place:
        for file in files:
            (Path(place) / file.name).symlink_to(file.resolve())
        idle, started = peak_mb(), time.process_time()
        config = LogConfig(episode="unit", obs=["x", "y"], act=["u"], max_rows=max_rows)
        log = read_log(Path(place), config)
    read_s, read_mb, started = time.process_time() - started, peak_mb(), time.process_time()
    model = mbrl_hdp.fit(log.data, dynamics="linear", max_contexts=4, config=FIT, progress=False)
    size = sum(file.stat().st_size for file in files) / 2**20
    done = (read_s, read_mb, time.process_time() - started, peak_mb(), model.num_contexts)
    return Measured(len(files) * FILE_ROWS, size, max_rows, log.notes[-1], idle, *done)


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def page(found: list[Measured]) -> str:
    """Return the page."""
    columns = (
        *("rows in the log", "MB on disk", "`max_rows`", "reading, CPU s", "peak MB after reading"),
        *("fit, CPU s", "peak MB after the fit", "contexts found (truth: 2)"),
    )
    rows = []
    for m in found:
        sizes = [f"{m.rows:,}", f"{m.on_disk_mb:.0f}", f"{m.max_rows:,}"]
        costs = [f"{value:.0f}" for value in (m.read_s, m.read_mb, m.fit_s, m.fit_mb)]
        rows.append([*sizes, *costs, str(m.contexts)])
    last = found[-1]
    command = f"python -m benchmarks.large_log FOLDER --rows {last.rows} --max-rows {last.max_rows} --page PAGE"
    return f"""# A log larger than memory

Written by `{command}` at commit {git_commit() or "unknown"}.

A parquet folder with more rows than `max_rows` (2,000,000 by default) is read in pieces of {PIECE:,} rows. Of its
episodes, whole ones are drawn at random, every one equally likely, with at most `max_rows` rows; the model is learned
from this sample on minibatches of episodes. **The other rows are read, checked and dropped: they do not inform the
model.** Memory is bounded by one piece and the sample, whatever the size of the log. `max_rows=null` takes all rows
into memory. `mbrl-hdp label` keeps every row of its data in memory: label such a log file by file.

{table(columns, rows)}

Peak memory is that of the whole process ({found[0].idle_mb:.0f} MB before anything is read: Python and torch). Each
line is a process of its own with one thread, `dynamics=linear max_contexts=4 fit.num_steps={FIT.num_steps}
fit.polish_steps={FIT.polish_steps} fit.num_restarts={FIT.num_restarts}`, all other settings by default.

The largest one said: {found[-1].note}.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=50_000_000)
    parser.add_argument("--max-rows", type=int, default=1_000_000)
    parser.add_argument("--write-only", action="store_true")
    parser.add_argument("--page", type=Path, help="Markdown file to write")
    parser.add_argument("--files", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.folder.exists():
        write(options.folder, options.rows)
    if options.write_only:
        return
    if options.files:
        print(json.dumps(asdict(measure(options.folder, options.files, options.max_rows))))
        return
    num_files = options.rows // FILE_ROWS
    found = []
    for count in (max(num_files // 10, 1), num_files):
        words = [sys.executable, "-m", "benchmarks.large_log", str(options.folder), "--files", str(count)]
        done = subprocess.run(
            [*words, "--max-rows", str(options.max_rows)], stdout=subprocess.PIPE, text=True, check=True
        )
        found.append(Measured(**json.loads(done.stdout.splitlines()[-1])))
        print(found[-1])
    if options.page is not None:
        options.page.write_text(page(found))


if __name__ == "__main__":
    main()
