"""Peak memory and time of a fit on a parquet folder that is larger than memory should hold.

    python -m benchmarks.large_log FOLDER --rows 50000000

Writes the folder (two sensors, an actuator that reverses, episodes of 500 rows; one file a million rows) unless it is
there, reads it in pieces, fits on minibatches of the episodes that were drawn; prints rows, seconds and peak memory.
"""

from __future__ import annotations

import argparse
import resource
import time
from pathlib import Path

import numpy as np
import pandas as pd

import mbrl_hdp
from mbrl_hdp.data.files import read_log
from mbrl_hdp.data.roles import LogConfig

FILE_ROWS, EPISODE_ROWS = 1_000_000, 500


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


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=50_000_000)
    parser.add_argument("--max-rows", type=int, default=1_000_000)
    parser.add_argument("--write-only", action="store_true")
    options = parser.parse_args()
    if not options.folder.exists():
        write(options.folder, options.rows)
    if options.write_only:
        return
    print(f"before: peak {peak_mb():.0f} MB")
    started = time.perf_counter()
    log = read_log(options.folder, LogConfig(episode="unit", obs=["x", "y"], act=["u"], max_rows=options.max_rows))
    print(log.notes[-1])
    print(f"read: {time.perf_counter() - started:.0f} s, peak {peak_mb():.0f} MB")
    started = time.perf_counter()
    config = mbrl_hdp.FitConfig(num_steps=100, polish_steps=20, num_restarts=1)
    model = mbrl_hdp.fit(log.data, dynamics="linear", max_contexts=4, config=config, progress=False)
    print(f"fit: {model.num_contexts} contexts, {time.perf_counter() - started:.0f} s, peak {peak_mb():.0f} MB")


if __name__ == "__main__":
    main()
