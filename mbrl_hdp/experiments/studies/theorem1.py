"""`theorem1`: is the distilled chain the chain itself, watched only while it is in the kept contexts?"""

from __future__ import annotations

from collections.abc import Sequence

from mbrl_hdp.experiments.studies.study import CellRecord, Gate, Page, Settings, Study, table
from mbrl_hdp.experiments.studies.theorem1_cell import run

SEEDS = range(100, 103)
SIZES = ((3, 1), (5, 3), (10, 8), (20, 16))
# Results are float64; a chain of twenty contexts is eliminated in sixteen steps.
EXACT = 1e-12
# Standard errors that the largest of all counted frequencies may be away.
MOST_ERRORS = 6.0


def cells(seeds: Sequence[int] | None, is_quick: bool) -> list[Settings]:
    """Return random chains of several sizes."""
    size = {"num_chains": 3, "num_steps": 2000} if is_quick else {"num_chains": 40, "num_steps": 20_000}
    own = seeds or (SEEDS[:1] if is_quick else SEEDS)
    return [
        {"num_contexts": contexts, "num_spurious": spurious, "seed": seed, **size}
        for contexts, spurious in SIZES
        for seed in own
    ]


def page(records: list[CellRecord]) -> Page:
    """Return the largest deviation of each statement, by size."""
    rows = []
    for contexts, spurious in SIZES:
        group = [record for record in records if record.settings["num_contexts"] == contexts]
        if group:
            largest = [max(_all(group, name)) for name in ("rows", "formula", "proportions")]
            rows.append(
                [
                    f"{contexts}, {spurious} removed",
                    str(len(_all(group, "rows"))),
                    *(f"{value:.1e}" for value in largest),
                    f"{max(_all(group, 'watched_z')):.1f}",
                    f"{max(_all(group, 'spurious')):.3f}",
                ]
            )
    columns = (
        "contexts", "chains", "rows sum to 1", "printed formula", "stationary proportions",
        "simulated moves, standard errors", "largest mass removed",
    )  # fmt: skip
    body = (
        "Theorem 1: removing contexts by R11 + R12 (I - R22)^-1 R21 leaves a Markov chain whose stationary "
        "distribution is that of the full chain restricted to the kept contexts and normalised. Random sticky chains "
        "whose other contexts are rarely entered. Largest absolute deviation over all chains: of the row sums from 1, "
        "of our elimination from the printed formula (by a linear solver), of the stationary proportions. Last: the "
        "chain is simulated, steps in removed contexts are dropped, and the moves that remain are counted.\n\n"
    )
    return Page(body + table(columns, rows), _gates(records))


def _all(records: list[CellRecord], name: str) -> list[float]:
    return [value for record in records for value in record.results[name]]


def _gates(records: list[CellRecord]) -> list[Gate]:
    gates = []
    for name, words in (("rows", "rows sum to 1"), ("formula", "the printed formula"), ("proportions", "proportions")):
        largest = max(_all(records, name))
        gates.append(Gate(f"{words}: within {EXACT:g}", f"{largest:.1e}", largest <= EXACT))
    largest = max(_all(records, "watched_z"))
    return [
        *gates,
        Gate(f"simulated moves: within {MOST_ERRORS:g} standard errors", f"{largest:.1f}", largest <= MOST_ERRORS),
    ]


def headline(records: list[CellRecord]) -> str:
    """Return how far the distilled chain is from the printed formula."""
    return f"holds: printed formula within {max(_all(records, 'formula')):.0e} on {len(_all(records, 'rows'))} chains"


STUDY = Study("theorem1", "Theorem 1 on random chains", cells, run, page, dict, headline=headline)
