"""`priors`: the same fit with the Dirichlet prior and with none (MLE), and the threshold that each prior needs."""

from __future__ import annotations

from collections.abc import Sequence

from mbrl_hdp.experiments.studies.branches import run_cell
from mbrl_hdp.experiments.studies.cartpole_fit import fit_settings, resolve
from mbrl_hdp.experiments.studies.robust import COLUMNS, row
from mbrl_hdp.experiments.studies.study import CellRecord, Page, Settings, Study, table

PRIORS = ("hdp", "dirichlet", "mle")
SIZES = (5, 10)
SEEDS = range(100, 105)


def cells(seeds: Sequence[int] | None, is_quick: bool) -> list[Settings]:
    """Return the fits of each prior, and its runs without any distillation."""
    sizes, own = ((3,), range(100, 101)) if is_quick else (SIZES, SEEDS)
    found = []
    for seed in seeds or own:
        for size in sizes:
            for prior in PRIORS:
                cell = fit_settings(size, seed, is_quick, prior={"name": prior})
                found += [cell, cell | {"thresholds": [0.0]}]
    return found


def page(records: list[CellRecord]) -> Page:
    """Compare the priors."""
    fits = [record for record in records if "thresholds" not in record.settings]
    plain = [record for record in records if "thresholds" in record.settings]
    body = [
        "`fit` with its defaults (three restarts, thresholds .05 in training and .02 at extraction), by prior:",
        table(("prior, " + COLUMNS[0], *COLUMNS[1:]), [row(name, group) for name, group in _groups(fits)]),
        "The threshold that each prior needs: one run without any distillation (schedule `tempered`), masses of the "
        "mean chain over the runs whose accuracy with the two largest contexts is above .95. A threshold keeps exactly "
        "the two true contexts when it lies between the third mass and the second. The paper (Result A) says that the "
        "Dirichlet prior needs a much higher one than the HDP, and gives no numbers.",
        table(
            ("prior, K", "runs that found both", "third mass: least", "most", "second mass: least"),
            [_needed(name, group) for name, group in _groups(plain)],
        ),
    ]
    return Page("\n\n".join(body), [])


def _groups(records: list[CellRecord]) -> list[tuple[str, list[CellRecord]]]:
    names = {(r.settings["max_contexts"], PRIORS.index(r.settings["prior"]["name"])) for r in records}
    return [
        (
            f"{PRIORS[prior]}, {size}",
            [r for r in records if r.settings["max_contexts"] == size and r.settings["prior"]["name"] == PRIORS[prior]],
        )
        for size, prior in sorted(names)
    ]


def _needed(name: str, group: list[CellRecord]) -> list[str]:
    branches = [record.results["branches"]["0.0"] for record in group]
    good = [branch["masses"] for branch in branches if branch["two_accuracy"] > 0.95]
    count = f"{len(good)}/{len(branches)}"
    if not good:
        return [name, count, "-", "-", "-"]
    thirds, seconds = [masses[2] for masses in good], [masses[1] for masses in good]
    return [name, count, f"{min(thirds):.1e}", f"{max(thirds):.1e}", f"{min(seconds):.2f}"]


STUDY = Study("priors", "HDP, Dirichlet and no prior", cells, run_cell, page, resolve, reads=("robust",))
