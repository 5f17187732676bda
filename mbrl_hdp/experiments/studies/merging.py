"""`merging`: six contexts, some alike; does a larger threshold in training merge them, as in the paper?"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from mbrl_hdp.experiments.studies.branches import run_cell
from mbrl_hdp.experiments.studies.cartpole_fit import fit_settings, resolve
from mbrl_hdp.experiments.studies.drawings import Drawing, course_panel
from mbrl_hdp.experiments.studies.sets import learned_sets, sets_in_words
from mbrl_hdp.experiments.studies.study import CellRecord, Gate, Page, Results, Settings, Study, table

ACTUATION = (-1.0, -0.5, 0.05, 0.1, 0.5, 1.0)
NAMES = tuple(f"{value:g}" for value in ACTUATION)
SIZE = 12
THRESHOLDS = (0.0, 0.05, 0.1)
SEEDS = range(100, 110)
LEAST_SETS = 5
PAPER = {
    0.0: "{-1}, {-0.5}, {0.05, 0.1}, {0.5}, {1}",
    0.05: "{-1, -0.5}, {0.05, 0.1, 0.5}, {1}",
    0.1: "{-1, -0.5}, {0.05, 0.1, 0.5, 1}",
}


def cells(seeds: Sequence[int] | None, is_quick: bool) -> list[Settings]:
    """Return a run a seed, which branches where distillation begins, and the fit that ships."""
    size, own = (4, range(100, 101)) if is_quick else (SIZE, SEEDS)
    same = {"actuation": list(ACTUATION), "force": 40.0}
    return [
        fit_settings(size, seed, is_quick, **same) | extra
        for extra in ({"thresholds": list(THRESHOLDS)}, {})
        for seed in seeds or own
    ]


def page(records: list[CellRecord]) -> Page:
    """Print the learned sets beside the paper's."""
    branching = [record for record in records if "thresholds" in record.settings]
    fits = [record for record in records if "thresholds" not in record.settings]
    rows = [
        _row(f"{eps:g}", record, record.results["branches"][str(eps)]) for eps in THRESHOLDS for record in branching
    ]
    rows += [_row("`fit`", record, record.results) for record in fits]
    body = (
        "Actuation -1, -0.5, 0.05, 0.1, 0.5 and 1 at force 40, K=12, 500 trajectories of 100 random actions; eps in "
        "training, .02 at extraction. One run a seed (schedule `tempered`, no search, no restarts, no polish); the "
        "last rows are `fit` with its defaults. A set holds the true contexts that are labelled alike most often; a "
        "share in brackets says how much of a context is in its set where that is below 75 %. Each of the six "
        "contexts acts a sixth of the time, which is above every threshold here: a threshold can only merge contexts "
        "whose slots it removes before their heads have separated.\n\n"
        + table(("eps", "the paper's sets"), [[f"{eps:g}", words] for eps, words in PAPER.items()])
        + "\n\n"
    )
    columns = ("eps", "seed", "sets", "learned sets", "contexts kept", "accuracy")
    return Page(body + table(columns, rows), _gates(branching), _drawings(branching))


def num_sets(results: Results) -> int:
    """Return the number of learned sets."""
    return len(learned_sets(results["confusion"]))


def _row(word: str, record: CellRecord, results: Results) -> list[str]:
    return [
        word,
        record.seed,
        str(num_sets(results)),
        sets_in_words(results["confusion"], NAMES),
        str(results["num_contexts"]),
        f"{results['accuracy']:.3f}",
    ]


def _gates(branching: list[CellRecord]) -> list[Gate]:
    if not branching:
        return []
    sizes = {eps: [num_sets(record.results["branches"][str(eps)]) for record in branching] for eps in THRESHOLDS}
    is_whole = len(branching) >= len(SEEDS)
    middle = {eps: median(found) for eps, found in sizes.items()}
    falls = all(list(by_eps) == sorted(by_eps, reverse=True) for by_eps in zip(*sizes.values(), strict=True))
    is_merged = middle[THRESHOLDS[-1]] < middle[THRESHOLDS[0]]
    words = ", ".join(f"{eps:g}: {value:g}" for eps, value in middle.items())
    found = (
        (f"at least {LEAST_SETS} sets at eps 0 (least)", str(min(sizes[0.0])), min(sizes[0.0]) >= LEAST_SETS),
        ("never more sets at a larger eps", "yes" if falls else "no", falls),
        ("fewer sets at eps .1 than at 0 (median over seeds)", words, is_merged),
    )
    return [Gate(name, shown, is_met if is_whole else None) for name, shown, is_met in found]


def _drawings(branching: list[CellRecord]) -> list[Drawing]:
    if not branching:
        return []
    first = branching[0]
    panels = [course_panel(f"eps = {eps:g}", first.results["branches"][str(eps)]) for eps in THRESHOLDS]
    return [Drawing("merging_courses", f"A held-out episode, seed {first.settings['seed']}.", panels)]


def headline(records: list[CellRecord]) -> str:
    """Return the number of learned sets by threshold beside the paper's."""
    branching = [record for record in records if "thresholds" in record.settings]
    if not branching:
        return ""
    found = (
        f"eps {eps:g} {median(num_sets(r.results['branches'][str(eps)]) for r in branching):g} / {words.count('{')}"
        for eps, words in PAPER.items()
    )
    return f"number of sets (median), ours / paper: {', '.join(found)}"


STUDY = Study("merging", "Merging contexts by the threshold", cells, run_cell, page, resolve, headline=headline)
