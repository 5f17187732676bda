"""`tableS3`: how far the two-context chain moves with K: delta_K = |R_K - R_5|_1 / |R_5|_1, entrywise, same data."""

from __future__ import annotations

from statistics import median

import numpy as np

from mbrl_hdp.experiments.studies import table1
from mbrl_hdp.experiments.studies.branches import run_cell
from mbrl_hdp.experiments.studies.cartpole_fit import resolve
from mbrl_hdp.experiments.studies.study import CellRecord, Gate, Page, Study, table

LIMIT = 0.01
REFERENCE = 5

PAPER: dict[float, dict[int, float]] = {
    0.0: {4: 8.26e-3, 5: 0.0, 6: 7.69e-3, 8: 2.79e-3, 10: 1.29e-2, 20: 2.89e-2, 100: 1.42e-1},
    0.01: {4: 6.08e-3, 5: 0.0, 6: 6.41e-3, 8: 8.88e-3, 10: 3.61e-3, 20: 2.14e-2, 100: 1.77e-2},
    0.1: {4: 2.09e-3, 5: 0.0, 6: 1.66e-3, 8: 4.87e-3, 10: 1.38e-2, 20: 2.19e-2, 100: 2.60e-2},
}


def chain_distance(chain: list[list[float]], reference: list[list[float]]) -> float:
    """Return delta_K of two aligned chains; infinite where one of them does not have two contexts."""
    first, second = np.asarray(chain), np.asarray(reference)
    if first.shape != second.shape:
        return float("inf")
    return float(np.abs(first - second).sum() / np.abs(second).sum())


def distances(records: list[CellRecord], size: int, threshold: float) -> list[float]:
    """Return delta_K of every seed that has both K and the reference."""
    chains = {
        (record.settings["max_contexts"], record.settings["seed"]): record.results["branches"][str(threshold)]
        for record in records
    }
    seeds = sorted(seed for known, seed in chains if known == size and (REFERENCE, seed) in chains)
    return [
        chain_distance(chains[size, seed]["two_transition"], chains[REFERENCE, seed]["two_transition"])
        for seed in seeds
    ]


def page(records: list[CellRecord]) -> Page:
    """Return the page: our table beside the paper's."""
    records = table1.with_floor(records)
    sizes = [size for size in table1.sizes_of(records) if size != REFERENCE]
    found = {(eps, size): distances(records, size, eps) for eps in table1.THRESHOLDS for size in sizes}
    rows = [
        [f"{eps:g}", *(_cell(found[eps, size], PAPER[eps].get(size)) for size in sizes)] for eps in table1.THRESHOLDS
    ]
    rows.append(["seeds", *(str(len(found[0.0, size])) for size in sizes)])
    body = (
        "delta_K: entrywise L1 distance of the two-context chain (the two contexts with the largest stationary mass, "
        "Theorem 1) to that of K=5 on the same data, over the L1 norm; median over seeds (largest), ours / paper's. "
        f"The cells are those of `table1`. {table1.CONCENTRATION_WORDS} {_wrong_words(records)}\n\n"
        + table(["eps", *(f"K={size}" for size in sizes)], rows)
    )
    gates = [_gate(eps, size, found[eps, size]) for (eps, size) in found if found[eps, size]]
    return Page(body, gates)


def _wrong_words(records: list[CellRecord]) -> str:
    """Return at which K fits are wrong; their chains count like all others."""
    found = []
    for size in table1.sizes_of(records):
        branches = [branch for eps in table1.THRESHOLDS for branch in table1.branches_of(records, size, eps)]
        wrong = sum(not table1.is_right(branch) for branch in branches)
        found += [f"{wrong} of {len(branches)} at K={size}"] if wrong else []
    return (
        f"Runs that did not find the two contexts ([table1](table1.md)): {', '.join(found) or 'none'}, over all eps; "
        "none is left out."
    )


def _cell(values: list[float], paper: float | None) -> str:
    ours = f"{median(values):.1e} ({max(values):.1e})" if values else "-"
    return f"{ours} / " + ("-" if paper is None else f"{paper:.1e}")


def _gate(eps: float, size: int, values: list[float]) -> Gate:
    middle = median(values)
    is_whole = len(values) >= table1.planned_seeds(size)
    return Gate(
        f"eps={eps:g}, K={size}: median delta_K at most {LIMIT}",
        f"{middle:.1e}, {len(values)} seeds, largest {max(values):.1e}",
        middle <= LIMIT if is_whole else None,
    )


def headline(records: list[CellRecord]) -> str:
    """Return two places of the table beside the paper's."""
    records = table1.with_floor(records)
    found = [(size, eps, distances(records, size, eps)) for size, eps in ((20, 0.1), (100, 0.1))]
    return "delta_K, ours / paper: " + ", ".join(
        f"K={size}, eps {eps:g} {median(values):.1e} / {PAPER[eps][size]:.1e}" for size, eps, values in found if values
    )


TITLE = "Table S3: how far the chain depends on K"
STUDY = Study("tableS3", TITLE, table1.cells, run_cell, page, resolve, reads=("table1",), headline=headline)
