"""`soft`: actuation 1 and .5 at twice the force; with a high threshold, does one context remain, as in the paper?"""

from __future__ import annotations

from collections.abc import Sequence

from mbrl_hdp.experiments.studies.branches import run_cell
from mbrl_hdp.experiments.studies.cartpole_fit import fit_settings, resolve
from mbrl_hdp.experiments.studies.study import CellRecord, Page, Settings, Study, table

THRESHOLDS = (0.05, 0.3, 0.5)
SEEDS = range(100, 103)


def cells(seeds: Sequence[int] | None, is_quick: bool) -> list[Settings]:
    """Return fits with rising thresholds (the same in training and at extraction)."""
    size, own = (3, range(100, 101)) if is_quick else (5, SEEDS)
    return [
        fit_settings(
            size,
            seed,
            is_quick,
            actuation=[1.0, 0.5],
            force=40.0,
            distillation={"name": "stationary", "train_threshold": threshold, "test_threshold": threshold},
        )
        for seed in seeds or own
        for threshold in THRESHOLDS
    ]


def page(records: list[CellRecord]) -> Page:
    """Return what remains at each threshold."""
    rows = [
        [
            f"{record.settings['distillation']['train_threshold']:g}",
            record.seed,
            str(record.results["num_contexts"]),
            ", ".join(f"{mass:.2g}" for mass in record.results["masses"][:3]),
            f"{record.results['accuracy']:.4f}",
            f"{record.results['log_likelihood']:.2f}",
        ]
        for record in sorted(records, key=lambda r: r.settings["distillation"]["train_threshold"])
    ]
    columns = ("threshold", "seed", "contexts kept", "largest masses", "accuracy", "held-out log-likelihood a step")
    body = (
        "Actuation 1 and .5, force 40, 500 trajectories, K=5, defaults of `fit` but for the threshold (in training and "
        "at extraction). The paper: with a high threshold only one meaningful context is learned for chi = .5, and the "
        "task is still solved. Two equally likely contexts have mass .5 each, so that a threshold below that can only "
        "leave one context where training merged them; at .5 the rule itself drops the smaller one.\n\n"
    )
    return Page(body + table(columns, rows), [])


STUDY = Study("soft", "A soft failure and a high threshold", cells, run_cell, page, resolve)
