"""`newcontexts`: two contexts are learned, then two more, without learning from scratch (appendix)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mbrl_hdp.experiments.studies.cartpole_fit import fit_settings, resolve
from mbrl_hdp.experiments.studies.drawings import Drawing, chain_panel, course_panel
from mbrl_hdp.experiments.studies.new_contexts_cell import run
from mbrl_hdp.experiments.studies.study import CellRecord, Gate, Page, Settings, Study, table_of

SIZE = 10
SEEDS = range(100, 110)
FIRST, SECOND = (1.0, -1.0), (1.0, -1.0, 0.5, -0.5)
MOST_LOST = 0.02
LEAST_NEW = 0.9


def cells(seeds: Sequence[int] | None, is_quick: bool) -> list[Settings]:
    """Return one pair of fits a seed."""
    size, own = (5, range(100, 101)) if is_quick else (SIZE, SEEDS)
    return [
        fit_settings(size, seed, is_quick, actuation=list(FIRST), force=40.0) | {"then": list(SECOND)}
        for seed in seeds or own
    ]


def recall(results: dict[str, Any]) -> list[float]:
    """Return, for every true context, the share of its steps that get the learned context matched to it."""
    counts = np.asarray(results["confusion"], dtype=np.float64)
    found = [0.0] * counts.shape[1]
    for learned, true in enumerate(results["to_true"]):
        if true >= 0:
            found[true] = float(counts[learned, true] / counts[:, true].sum())
    return found


def page(records: list[CellRecord]) -> Page:
    """Compare the old contexts before and after, and show the new ones."""
    columns = {
        "seed": lambda record: record.seed,
        "accuracy on D1: before": lambda record: f"{record.results['before']['accuracy']:.4f}",
        "after": lambda record: f"{_old_after(record):.4f}",
        "accuracy on D2": lambda record: f"{record.results['after']['accuracy']:.4f}",
        "share right, by true context": lambda record: ", ".join(f"{s:.3f}" for s in recall(record.results["after"])),
        "contexts": lambda r: f"{r.results['before']['num_contexts']}, then {r.results['after']['num_contexts']}",
        "old slots kept": lambda record: "yes" if record.results["slots_kept"] else "no",
    }
    body = (
        "D1: actuation 1 and -1; D2: 1, -1, 0.5 and -0.5; force 40 (the paper states neither), 500 trajectories each, "
        f"K={SIZE}. `fit(D1)`, then `fit(D2, warm_start=model, reset='chain')`: the chain is opened again, the heads "
        "are kept, as the paper describes. *After*: the wider model labels the held-out episodes of D1.\n\n"
    )
    return Page(body + table_of(records, columns), _gates(records), _drawings(records))


def _old_after(record: CellRecord) -> float:
    return float(record.results["old"]["accuracy"])


def _gates(records: list[CellRecord]) -> list[Gate]:
    is_whole = len(records) >= len(SEEDS)
    lost = max(record.results["before"]["accuracy"] - _old_after(record) for record in records)
    new = min(share for record in records for share in recall(record.results["after"])[len(FIRST) :])
    found = (
        (f"the old contexts lose at most {MOST_LOST} of their accuracy", f"{lost:.4f} at most", lost <= MOST_LOST),
        (f"every new context is right in more than {LEAST_NEW:.0%} of its steps", f"least {new:.4f}", new > LEAST_NEW),
    )
    return [Gate(name, words, is_met if is_whole else None) for name, words, is_met in found]


def _drawings(records: list[CellRecord]) -> list[Drawing]:
    first = records[0]
    stages = [("learned on D1", first.results["before"]), ("then on D2", first.results["after"])]
    words = f"seed {first.settings['seed']}"
    return [
        Drawing("newcontexts_chains", f"Learned chains, {words}.", [chain_panel(*stage) for stage in stages]),
        Drawing("newcontexts_courses", f"Held-out episodes, {words}.", [course_panel(*stage) for stage in stages]),
    ]


def headline(records: list[CellRecord]) -> str:
    """Return what the old contexts lose and how well the new ones are found; the paper has no numbers."""
    lost = max(record.results["before"]["accuracy"] - _old_after(record) for record in records)
    new = min(share for record in records for share in recall(record.results["after"])[len(FIRST) :])
    return (
        f"old contexts lose {lost:.3f} at most, new ones right in {new:.3f} of their steps at least, "
        f"{len(records)} seeds; the paper shows one run"
    )


STUDY = Study("newcontexts", "Learning new contexts", cells, run, page, resolve, headline=headline)
