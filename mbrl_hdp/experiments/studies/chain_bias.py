"""`chain_bias`: is the learned switch probability the data's, and what does the paper's row_concentration do to it?"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from mbrl_hdp.experiments.studies.branches import run_cell
from mbrl_hdp.experiments.studies.cartpole_fit import fit_settings, resolve
from mbrl_hdp.experiments.studies.study import CellRecord, Gate, Page, Settings, Study, table

LIMIT = 0.05
CONCENTRATIONS = (100.0, 1000.0)
SEEDS = range(100, 110)
# The paper's concentration is only reported.
_FEW = 3


def cells(seeds: Sequence[int] | None, is_quick: bool) -> list[Settings]:
    """Return fits with the default concentration (those of `robust`) and with the paper's."""
    size, own = (3, range(100, 101)) if is_quick else (5, SEEDS)
    return [
        fit_settings(size, seed, is_quick, prior=_prior(concentration))
        for concentration in CONCENTRATIONS
        for seed in seeds or (own if concentration == CONCENTRATIONS[0] else own[:_FEW])
    ]


def _prior(concentration: float) -> Settings:
    """Name the default prior as `robust` does, so that its cells serve here."""
    if concentration == CONCENTRATIONS[0]:
        return {"name": "hdp"}
    return {"name": "hdp", "row_concentration": concentration}


def concentration_of(record: CellRecord) -> float:
    """Return a cell's row_concentration."""
    return float(record.settings["prior"].get("row_concentration", CONCENTRATIONS[0]))


def bias(record: CellRecord) -> float:
    """Return the learned switch probability over the empirical one, minus 1."""
    return float(record.results["switch"] / record.results["true_switch"] - 1.0)


def page(records: list[CellRecord]) -> Page:
    """Compare learned and empirical switching."""
    rows = [
        [
            f"{concentration_of(record):g}",
            record.seed,
            f"{record.results['switch']:.4f}",
            f"{record.results['true_switch']:.4f}",
            f"{100 * bias(record):+.1f} %",
            f"{record.results['accuracy']:.4f}",
        ]
        for record in records
    ]
    for concentration in CONCENTRATIONS:
        group = [bias(record) for record in records if concentration_of(record) == concentration]
        if group:
            rows.append([f"{concentration:g}", "mean", "", "", f"{100 * mean(group):+.1f} %", ""])
    columns = ("row_concentration", "seed", "switch probability", "empirical", "bias", "accuracy")
    body = (
        "Mean probability of leaving a context in the distilled chain, against the moves counted in the same 500 "
        "trajectories; K=5. The default row_concentration is 100, the paper's 1000.\n\n"
    )
    return Page(body + table(columns, rows), _gates(records))


def _gates(records: list[CellRecord]) -> list[Gate]:
    default = [bias(record) for record in records if concentration_of(record) == CONCENTRATIONS[0]]
    if not default:
        return []
    is_whole = len(default) >= len(SEEDS)
    middle, largest = abs(mean(default)), max(map(abs, default))
    found = f"{len(default)} seeds"
    return [
        Gate("row_concentration 100: mean bias within 5 %", f"{100 * middle:.2f} %, {found}", _met(middle, is_whole)),
        Gate("the same on every seed", f"largest {100 * largest:.2f} %, {found}", _met(largest, is_whole)),
    ]


def _met(value: float, is_whole: bool) -> bool | None:
    return value <= LIMIT if is_whole else None


STUDY = Study(
    "chain_bias", "The learned chain switches as often as the data", cells, run_cell, page, resolve, reads=("robust",)
)
