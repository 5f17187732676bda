"""What table2 with 20 seeds would cost on 100 cores: measured cell times and a simulation of the cluster.

python -m benchmarks.cluster_plan [--seeds 20] [--runs 20] [--write docs/results/cluster_plan.md]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.cluster_model import Cell, ClusterModel, Outcome, simulate
from mbrl_hdp.experiments.reproduce import code_version
from mbrl_hdp.experiments.studies import load_study
from mbrl_hdp.experiments.studies.study import Settings, table
from mbrl_hdp.experiments.studies.train_cell import resolve

_RECORDS = Path(__file__).resolve().parents[1] / "docs" / "results" / "table2.jsonl"
Kind = tuple[str, str, str]

# Assumptions, the doubtful ones varied below. A worker's start and a checkpoint are rounded up from what one core and a
# laptop's disk need; spot machines are ended about once in twenty hours, other machines hardly ever.
CALM = ClusterModel(num_machines=5, cores_each=20, start_s=15.0, checkpoint_s=0.05)
CLUSTERS: Mapping[str, ClusterModel] = {
    "one core": ClusterModel(1, 1, start_s=15.0, checkpoint_s=0.05),
    "two cores": ClusterModel(1, 2, start_s=15.0, checkpoint_s=0.05),
    "100 cores, nothing fails": CALM,
    "100 cores, reserved (a machine dies every 1000 hours)": replace(CALM, machine_deaths=1e-3, worker_deaths=1e-3),
    "100 cores, spot (a machine dies every 20 hours)": replace(CALM, machine_deaths=0.05, worker_deaths=1e-2),
    "100 cores, very bad (a machine dies every 2 hours)": replace(CALM, machine_deaths=0.5, worker_deaths=0.1),
    "100 cores, nothing fails, slow store (2 s a checkpoint)": replace(CALM, checkpoint_s=2.0),
    "1000 cores, nothing fails": replace(CALM, num_machines=50, cores_each=20),
}


def kind_of(settings: Settings) -> Kind:
    """Return what decides a cell's time."""
    return settings["agent"], settings["failure"], settings["profile"]


def measured_seconds() -> dict[Kind, list[float]]:
    """Return the seconds of the finished cells of table2 by kind; the last line of a cell counts."""
    last = {}
    for line in _RECORDS.read_text().splitlines():
        record = json.loads(line)
        last[(kind_of(record["settings"]), record["settings"]["seed"])] = float(record["time_s"])
    found: dict[Kind, list[float]] = {}
    for (kind, _), seconds in last.items():
        found.setdefault(kind, []).append(seconds)
    return found


def planned_cells(num_seeds: int, seconds: Mapping[Kind, Sequence[float]], rng: np.random.Generator) -> list[Cell]:
    """Return the cells of table2 with so many seeds; the time of each is drawn from the measured ones of its kind.

    Agents of which no cell was ever run are left out.
    """
    cells = [
        cell for cell in load_study("table2").cells(range(100, 100 + num_seeds), False) if kind_of(cell) in seconds
    ]
    found, epochs = [], {}
    for cell in cells:
        kind = kind_of(cell)
        if kind not in epochs:
            epochs[kind] = int(resolve(cell)["budget"]["num_epochs"])
        found.append(Cell(epochs[kind], float(rng.choice(seconds[kind])) / epochs[kind]))
    return found


def row(name: str, model: ClusterModel, plans: Sequence[Sequence[Cell]]) -> list[str]:
    """Simulate a cluster for every plan; return the line of the table."""
    outcomes = [simulate(model, cells, number) for number, cells in enumerate(plans)]
    hours = [outcome.makespan_s / 3600 for outcome in outcomes]
    low, high = np.quantile(hours, [0.05, 0.95])
    return [
        name,
        f"{statistics.median(hours):.2f} ({low:.2f} to {high:.2f})",
        f"{_median(outcomes, 'busy_s') / 3600:.1f}",
        f"{model.num_cores * statistics.median(hours):.0f}",
        f"{_median(outcomes, 'num_deaths'):.0f}",
        f"{100 * statistics.median(o.lost_s / o.busy_s for o in outcomes):.2f} %",
        f"{100 * statistics.median(o.store_s / o.makespan_s for o in outcomes):.1f} %",
        f"{_median(outcomes, 'longest_wait_s'):.1f}",
    ]


def _median(outcomes: Sequence[Outcome], name: str) -> float:
    return statistics.median(getattr(outcome, name) for outcome in outcomes)


COLUMNS = (
    *(
        "cluster",
        "hours until the last cell (median, 5 to 95 %)",
        "core hours at work (waiting for the store included)",
        "core hours paid",
    ),
    *("deaths of workers", "work lost", "store busy", "longest wait for the store, s"),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20, help="seeds of every cell (default 20)")
    parser.add_argument(
        "--runs", type=int, default=20, help="simulations of every cluster (default 20; 3 of the small ones)"
    )
    parser.add_argument("--write", type=Path, help="also write the page to this Markdown file")
    options = parser.parse_args()
    seconds = measured_seconds()
    plans = [planned_cells(options.seeds, seconds, np.random.default_rng(seed)) for seed in range(options.runs)]
    rows = [row(name, model, plans[: 3 if model.num_cores < 10 else None]) for name, model in CLUSTERS.items()]
    text = page(options, seconds, plans[0], rows)
    print(text)
    if options.write is not None:
        options.write.write_text(text)
    return 0


def page(
    options: argparse.Namespace,
    seconds: Mapping[Kind, Sequence[float]],
    cells: Sequence[Cell],
    rows: Sequence[Sequence[str]],
) -> str:
    """Return the page."""
    longest = max(cell.seconds for cell in cells) / 3600
    times = [[" ".join(kind), str(len(found)), f"{statistics.median(found):.0f}", f"{max(found):.0f}"]
             for kind, found in sorted(seconds.items())]  # fmt: skip
    return "\n\n".join([
        f"# Plan: table2 with {options.seeds} seeds on a cluster",
        f"Written by `python -m benchmarks.cluster_plan --seeds {options.seeds} --runs {options.runs}` at commit "
        f"{code_version()}; do not edit. **This is a simulation, not a measurement**: no cluster of this size was "
        "used.",
        f"{len(cells)} cells, of which the longest takes {longest:.1f} hours: no number of cores ends earlier, "
        "because a cell is one process (it is C-SAC with the paper's budget; `--only profile=fast` leaves it "
        "out). The time of a cell is drawn from the measured ones of its kind (below). They were measured on a "
        "shared machine: they are upper bounds.",
        table(COLUMNS, rows),
        "Assumed: a worker needs 15 s until it has imported everything; after every epoch a checkpoint goes to "
        "one store, which needs .05 s for it and writes one at a time; a worker that dies loses the epoch that "
        "it is in and goes on from the checkpoint; a machine (20 cores) that dies is back after ten minutes; the "
        "longest cells begin first (`mbrl-hdp reproduce` begins them in the order of the study: run `--only "
        "profile=paper` first). *Core hours paid*: all cores until the last cell is finished; machines that are "
        "given back when idle cost less. The simulation is checked against closed forms "
        "(`tests/experiments/test_cluster_plan.py`): list scheduling, the queue at the store, and (exp(rt) - "
        "1)/r seconds for an epoch of t seconds with memoryless deaths at rate r.",
        "What it says: deaths cost next to nothing, because an epoch is seconds long; the store is what to look "
        "at, for the same reason. Where a checkpoint takes a shared store seconds, write runs to a disk of the "
        "machine and copy them when they are finished, or lengthen epochs (`budget.episodes_per_epoch`).",
        "Measured seconds of cells (docs/results/table2.jsonl):",
        table(("cell", "measured", "median, s", "longest, s"), times),
    ]) + "\n"  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
