"""`systems_fit`: what does `fit` with pure defaults say about systems that nobody prepared, and is its word good?"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from mbrl_hdp.experiments.studies import systems
from mbrl_hdp.experiments.studies.cartpole_fit import resolve as fit_resolve
from mbrl_hdp.experiments.studies.study import CellRecord, Gate, Page, Settings, Study, table, table_of
from mbrl_hdp.experiments.studies.system_fit_cell import run_cell
from mbrl_hdp.inference.schedule import FitConfig
from mbrl_hdp.inference.verdict import LEVELS, SURE

VARIANTS = ("plain", "still_process")
SURE_ACCURACY = 0.95
SURE_RIGHT = 0.95


def cells(seeds: Sequence[int] | None, is_quick: bool) -> list[Settings]:
    """Return the plain cells and those with noise and no switching of `systems`, first seed only."""
    wanted = systems.cells(list(seeds or systems.SEEDS)[:1], is_quick)
    variants = ("plain",) if is_quick else VARIANTS
    return [cell | {"method": "fit"} for cell in wanted if cell["variant"] in variants]


def page(records: list[CellRecord]) -> Page:
    """Show every fit, the wrong ones first."""
    ordered = sorted(records, key=lambda record: (not systems.is_bad(record), record.results["accuracy"]))
    columns = {
        "system": lambda record: record.settings["system"],
        "variant": lambda record: record.settings["variant"],
        "seed": lambda record: record.seed,
        "found/true": lambda record: f"{record.results['found']}/{record.results['true']}",
        "accuracy": lambda record: f"{record.results['accuracy']:.4f}",
        "verdict": lambda record: record.results["verdict"],
        "halves agree": lambda record: " ".join(f"{value:.2f}" for value in record.results["half_agreement"]) or "-",
        "dynamics": lambda record: record.results["dynamics"],
        "search found": lambda record: str(record.results["searched"]),
        "runs": lambda record: str(len(record.results["runs"])),
        "CPU s": lambda record: f"{record.results['cpu_s']:.0f}",
    }
    body = (
        "`mbrl_hdp.fit(data)` with nothing set on the systems of [systems](systems.md): structure search, transition "
        "models compared on held-out episodes, distillation. Nothing was tuned on this seed. Verdict: the one "
        "that the report of the fit prints. Halves agree: adjusted Rand index of the labels with those found anew in "
        "each half of the episodes (not made where the search was slow). Seconds are processor time of one core. Cells "
        "with a wrong number or a low accuracy come first.\n\n"
    )
    return Page(f"{body}{_by_verdict(records)}\n\n{table_of(ordered, columns)}", _gates(records))


def is_sure(record: CellRecord) -> bool:
    """Whether the report of the fit says `sure`."""
    return bool(record.results["verdict"] == SURE)


def is_good(record: CellRecord) -> bool:
    """Whether the labels of the fit are right."""
    return bool(record.results["accuracy"] >= SURE_ACCURACY)


def _by_verdict(records: list[CellRecord]) -> str:
    """Return how often each verdict is right."""
    rows = []
    for level in LEVELS:
        group = [record for record in records if record.results["verdict"] == level]
        right = [record for record in group if is_good(record)]
        share = f"{len(right) / len(group):.0%}" if group else "-"
        rows.append([level, str(len(group)), str(len(right)), share])
    return table(["verdict", "fits", f"accuracy at least {SURE_ACCURACY}", "share"], rows)


def _gates(records: list[CellRecord]) -> list[Gate]:
    planned = {(cell["system"], cell["variant"]) for cell in cells(None, False)}
    is_whole = planned <= {(record.settings["system"], record.settings["variant"]) for record in records}
    switching = [record for record in records if not systems.is_still(record)]
    still = [record for record in records if systems.is_still(record)]
    sure = [record for record in records if is_sure(record)]
    seconds = [record.results["cpu_s"] for record in records]
    gates = [
        (f"median below {systems.MEDIAN_S:.0f} CPU s", f"{median(seconds):.0f} s", median(seconds) < systems.MEDIAN_S),
        (f"none above {systems.MOST_S:.0f} CPU s", f"{max(seconds):.0f} s", max(seconds) <= systems.MOST_S),
    ]
    for group, share, name in (
        (switching, systems.RIGHT, "number right in at least {:.0%} of the switching cells"),
        (still, systems.STILL_RIGHT, "one context in at least {:.0%} of the cells that never switch"),
    ):
        if group:
            right = sum(map(systems.is_right, group))
            gates.append((name.format(share), f"{right} of {len(group)}", right >= share * len(group)))
    if switching:
        middle = median(record.results["accuracy"] for record in switching)
        gates.append(
            (f"their median accuracy at least {systems.ACCURACY}", f"{middle:.4f}", middle >= systems.ACCURACY)
        )
    if sure:
        good = sum(map(is_good, sure))
        words = f"accuracy at least {SURE_ACCURACY} in {SURE_RIGHT:.0%} of the fits that say sure"
        gates.append((words, f"{good} of {len(sure)}", good >= SURE_RIGHT * len(sure)))
    return [Gate(name, found, is_met if is_whole else None) for name, found, is_met in gates]


def resolve(settings: Settings) -> Settings:
    """Return a cell's settings with every default that `fit` takes."""
    parts = {"prior": "hdp", "distillation": "stationary", "dynamics": "auto"}
    fit = {"halves_within_s": FitConfig().halves_within_s}
    return settings | fit_resolve({kind: {"name": name} for kind, name in parts.items()} | {"fit": fit})


STUDY = Study("systems_fit", "What `fit` says about systems that nobody prepared", cells, run_cell, page, resolve)
