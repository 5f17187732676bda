"""Stand in for your machine: a pump with three regimes that nobody writes down, logged to two CSV files.

    python simulate_pump.py            # writes machine.csv and second.csv here, as a data logger would
    python simulate_pump.py --truth    # the same with a column `context`, to see how well it is found

Each shift is one episode, of any length: pressure (bar), flow (l/min), oil temperature (C), once a second. There are no
actions and no labels. The regimes differ in where the pump settles, how quickly and how roughly it runs there.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np

COLUMNS = ("obs_pressure", "obs_flow", "obs_temperature")
REGIMES = ("normal", "cavitating", "filter clogged")
SETTLES_AT = np.array([[6.0, 40.0, 45.0], [4.6, 34.0, 47.0], [7.4, 24.0, 62.0]])
SPEED = np.array([[0.30, 0.25, 0.03], [0.45, 0.40, 0.03], [0.15, 0.12, 0.05]])
ROUGHNESS = np.array([[0.05, 0.30, 0.05], [0.15, 1.20, 0.05], [0.04, 0.25, 0.06]])
NEXT = np.array([[0.97, 0.02, 0.01], [0.05, 0.93, 0.02], [0.03, 0.01, 0.96]])
"""Probability of the next regime (columns) for each regime now (rows)."""


def simulate_shift(num_steps: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Run the pump; return the readings, `num_steps + 1` of them, and the regime that led from each to the next."""
    regime = int(rng.choice(3, p=[0.8, 0.1, 0.1]))
    readings = [SETTLES_AT[regime] + rng.normal(size=3) * [0.3, 2.0, 2.0]]
    regimes = []
    for _ in range(num_steps):
        drift = SPEED[regime] * (SETTLES_AT[regime] - readings[-1])
        readings.append(readings[-1] + drift + ROUGHNESS[regime] * rng.normal(size=3))
        regimes.append(regime)
        regime = int(rng.choice(3, p=NEXT[regime]))
    return np.array(readings), np.array(regimes)


def write_log(path: Path, num_shifts: int, seed: int, has_truth: bool = False) -> None:
    """Write a log in the layout that `mbrl-hdp fit` reads: one row a reading, columns episode, step, obs_*."""
    rng = np.random.default_rng(seed)
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["episode", "step", *COLUMNS, *(["context"] if has_truth else [])])
        for shift in range(num_shifts):
            readings, regimes = simulate_shift(int(rng.integers(60, 201)), rng)
            for step, row in enumerate(readings):
                label = [regimes[step] if step < len(regimes) else ""] if has_truth else []
                writer.writerow([shift, step, *(f"{value:.4f}" for value in row), *label])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(), help="folder of the two files (default: here)")
    parser.add_argument("--shifts", type=int, default=60, help="episodes in machine.csv; second.csv gets a tenth")
    parser.add_argument("--truth", action="store_true", help="also write the regimes, as a column `context`")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    write_log(options.out / "machine.csv", options.shifts, seed=0, has_truth=options.truth)
    write_log(options.out / "second.csv", max(options.shifts // 10, 1), seed=1, has_truth=options.truth)
    print(f"wrote machine.csv and second.csv to {options.out.resolve()}")


if __name__ == "__main__":
    main()
