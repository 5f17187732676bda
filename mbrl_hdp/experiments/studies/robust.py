"""`robust`: does every seed find the two contexts of cart-pole hard?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from mbrl_hdp.experiments.studies.branches import run_cell
from mbrl_hdp.experiments.studies.cartpole_fit import fit_settings, resolve
from mbrl_hdp.experiments.studies.study import CellRecord, Gate, Page, Settings, Study, table, table_of

SUCCESS = 0.95
# What pages say of the times of fits (`cartpole_fit.fit_config`).
NO_HALVES = "Times leave out that contexts are found anew in each half of the episodes, which only serves the verdict."
MEDIAN = 0.985
# max_contexts -> (seeds, how many must succeed)
PLAN = {5: (range(100, 120), 19), 10: (range(100, 110), 9), 20: (range(100, 110), 9), 100: (range(100, 103), 3)}


def cells(seeds: Sequence[int] | None, is_quick: bool) -> list[Settings]:
    """Return every size's seeds, small sizes first."""
    plan = {3: (range(100, 101), 0)} if is_quick else PLAN
    return [fit_settings(size, seed, is_quick) for size, (own, _) in plan.items() for seed in (seeds or own)]


def is_success(record: CellRecord) -> bool:
    """Whether the contexts were found: accurate, and exactly two of them kept."""
    return bool(record.results["accuracy"] > SUCCESS and record.results["num_contexts"] == 2)


def page(records: list[CellRecord]) -> Page:
    """Count successes by size."""
    rows, gates = [], []
    for size in sorted({record.settings["max_contexts"] for record in records}):
        group = [record for record in records if record.settings["max_contexts"] == size]
        rows.append(row(f"{size}", group))
        seeds, needed = PLAN.get(size, (range(0), 0))
        gates += _gates(size, group, len(seeds), needed)
    body = (
        "Cart-pole hard (actuation 1 and -1, force 20, switch probability .2 after a cool-off of 5 steps), 500 "
        "trajectories of 100 random actions, 100 held-out trajectories of another seed. A success has smoothed aligned "
        f"accuracy above {SUCCESS} and exactly two contexts after distillation. The paper shows one seed (its Figure "
        f"with Result A) and no accuracy. {NO_HALVES}\n\n"
    )
    each = {"K": lambda record: str(record.settings["max_contexts"])} | EACH | {"runs (* taken)": _runs}
    return Page(body + table(COLUMNS, rows) + "\n\n" + table_of(records, each), gates)


# What pages of fits show of every one.
EACH: dict[str, Callable[[CellRecord], str]] = {
    "seed": lambda record: record.seed,
    "accuracy": lambda record: f"{record.results['accuracy']:.4f}",
    "contexts": lambda record: str(record.results["num_contexts"]),
    "switch probability": lambda record: f"{record.results['switch']:.4f}",
    "empirical": lambda record: f"{record.results['true_switch']:.4f}",
}
COLUMNS = ("K", "seeds", "successes", "accuracy: least", "median", "contexts kept", "third mass: most", "s a fit")


def row(name: str, group: list[CellRecord]) -> list[str]:
    """Sum a group of fits up in one row."""
    accuracy = [record.results["accuracy"] for record in group]
    kept = [record.results["num_contexts"] for record in group]
    third = [record.results["masses"][2] for record in group if len(record.results["masses"]) > 2]
    return [
        name,
        str(len(group)),
        f"{sum(map(is_success, group))}/{len(group)}",
        f"{min(accuracy):.4f}",
        f"{median(accuracy):.4f}",
        ", ".join(f"{count}: {kept.count(count)}x" for count in sorted(set(kept))),
        f"{max(third):.1e}" if third else "-",
        f"{median(record.results['fit_time_s'] for record in group):.0f}",
    ]


def _runs(record: CellRecord) -> str:
    return ", ".join(run["schedule"] + ("*" if run["taken"] else "") for run in record.results["runs"])


def _gates(size: int, group: list[CellRecord], planned: int, needed: int) -> list[Gate]:
    if not needed:
        return []
    found = sum(map(is_success, group))
    is_whole = len(group) >= planned
    is_met = found >= needed if is_whole or found >= needed else None
    gates = [Gate(f"K={size}: at least {needed} of {planned} succeed", f"{found} of {len(group)} run", is_met)]
    if size == 5:
        middle = median(record.results["accuracy"] for record in group)
        gates.append(
            Gate(f"K=5: median accuracy at least {MEDIAN}", f"{middle:.4f}", middle >= MEDIAN if is_whole else None)
        )
    return gates


STUDY = Study("robust", "Every seed finds the contexts", cells, run_cell, page, resolve)
