"""`twelve_fit`: are the two contexts of the drone and the intersection found with each task's transition model?"""

from __future__ import annotations

from collections.abc import Sequence

from mbrl_hdp.experiments.studies.cartpole_fit import fit_settings, resolve
from mbrl_hdp.experiments.studies.robust import NO_HALVES
from mbrl_hdp.experiments.studies.study import CellRecord, Gate, Page, Settings, Study, table_of
from mbrl_hdp.experiments.studies.twelve_cell import run_cell

SEEDS = range(100, 105)
DYNAMICS = {"drone": "drone", "intersection": "vehicle"}
ACCURACY = 0.99


def cells(seeds: Sequence[int] | None, is_quick: bool) -> list[Settings]:
    """Return the fits of both tasks with the transition model of each."""
    return twelve_cells(seeds, is_quick, DYNAMICS, is_dt_known=True)


def twelve_cells(
    seeds: Sequence[int] | None, is_quick: bool, dynamics: dict[str, str], is_dt_known: bool
) -> list[Settings]:
    """Return fits of 200 random trajectories of each task with at most ten contexts and the defaults of `fit`."""
    found = []
    for seed in seeds or (SEEDS[:1] if is_quick else SEEDS):
        for task, name in dynamics.items():
            cell = fit_settings(10, seed, is_quick, task=task, dynamics={"name": name}, is_dt_known=is_dt_known)
            del cell["force"]
            found.append(cell | {"num_trajectories": 6 if is_quick else 200})
    return found


def page(records: list[CellRecord]) -> Page:
    """Show every fit."""
    body = (
        "200 trajectories of random actions (drone: 80 steps at 80 Hz; intersection: 100 steps of 0.1 s; actuation 1 "
        "and -1, switch probability .2 after a cool-off of 5 steps), at most 10 contexts, the defaults of `fit`, the "
        "transition model of each task. Accuracy: smoothed and aligned, on 100 episodes of another seed. Seconds are "
        f"processor time of one core. {NO_HALVES}\n\n"
    )
    return Page(body + fits_table(records), gates(records))


def is_success(record: CellRecord, accuracy: float = ACCURACY) -> bool:
    """Whether exactly two contexts were found and the labels are right."""
    return bool(record.results["num_contexts"] == 2 and record.results["accuracy"] >= accuracy)


def gates(records: list[CellRecord], accuracy: float = ACCURACY) -> list[Gate]:
    """Require exactly two contexts with labels of this accuracy in every fit of a task."""
    found = []
    for task in DYNAMICS:
        group = [record for record in records if record.settings["task"] == task]
        good = sum(is_success(record, accuracy) for record in group)
        is_met = good == len(group) if len(group) >= len(SEEDS) else None
        words = f"{task}: two contexts, accuracy at least {accuracy}, {len(SEEDS)} of {len(SEEDS)} seeds"
        found.append(Gate(words, f"{good} of {len(group)}", is_met))
    return found


def fits_table(records: list[CellRecord]) -> str:
    """Write a row for every fit."""
    columns = {
        "task": lambda record: record.settings["task"],
        "seed": lambda record: record.seed,
        "contexts": lambda record: str(record.results["num_contexts"]),
        "accuracy": lambda record: f"{record.results['accuracy']:.4f}",
        "switch probability": lambda record: f"{record.results['switch']:.4f}",
        "empirical": lambda record: f"{record.results['true_switch']:.4f}",
        "dynamics": lambda record: record.results["dynamics"],
        "search found": lambda record: str(record.results["searched"]),
        "CPU s": lambda record: f"{record.results['cpu_s']:.0f}",
    }
    return table_of(sorted(records, key=lambda record: list(DYNAMICS).index(record.settings["task"])), columns)


STUDY = Study(
    "twelve_fit", "Contexts of the drone and the intersection, the tasks' own models", cells, run_cell, page, resolve
)
