"""`resultA`: chains and time courses learned with three priors, by lucky and unlucky seeds (Figures 1 and 2)."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from mbrl_hdp.experiments.studies.branches import run_cell
from mbrl_hdp.experiments.studies.cartpole_fit import fit_settings, resolve
from mbrl_hdp.experiments.studies.drawings import Drawing, chain_panel, course_panel
from mbrl_hdp.experiments.studies.study import CellRecord, Gate, Page, Results, Settings, Study, table
from mbrl_hdp.experiments.studies.table1 import CONCENTRATION_WORDS, third

PRIORS = {"hdp": "HDP", "dirichlet": "Dirichlet", "mle": "MLE"}
SIZE = 5
SEEDS = range(100, 120)
PLAIN, DISTILLED = 0.0, 0.1
FOUND = 0.95


def cells(seeds: Sequence[int] | None, is_quick: bool) -> list[Settings]:
    """Return one run of every prior a seed, which branches where distillation begins."""
    size, own = (3, range(100, 101)) if is_quick else (SIZE, SEEDS)
    return [
        fit_settings(size, seed, is_quick, prior={"name": prior}) | {"thresholds": [PLAIN, DISTILLED]}
        for seed in seeds or own
        for prior in PRIORS
    ]


def branch_of(record: CellRecord, threshold: float) -> Results:
    """Return the results of one threshold."""
    found: Results = record.results["branches"][str(threshold)]
    return found


def is_lucky(record: CellRecord, threshold: float) -> bool:
    """Whether the two largest contexts of a run are the true ones."""
    return bool(branch_of(record, threshold)["two_accuracy"] > FOUND)


def page(records: list[CellRecord]) -> Page:
    """Count lucky seeds by prior; draw an unlucky one without and a lucky one with distillation, as the paper does."""
    groups = {prior: [r for r in records if r.settings["prior"]["name"] == prior] for prior in PRIORS}
    rows = [
        [f"{PRIORS[prior]}, eps {threshold:g}", *_row(group, threshold)]
        for prior, group in groups.items()
        if group
        for threshold in (PLAIN, DISTILLED)
    ]
    columns = (
        "prior, threshold in training", "lucky seeds", "accuracy, two largest: median (least)",
        "third mass: median (largest)", "contexts kept at .02",
    )  # fmt: skip
    body = (
        "Cart-pole hard, K=5, 500 trajectories of 100 random actions, one run a seed (schedule `tempered`, no "
        f"restarts, no search, no polish). {CONCENTRATION_WORDS} A seed is lucky if the two contexts with the largest "
        f"stationary mass label more than {FOUND:.0%} of the held-out steps right. The paper shows one unlucky seed of "
        "MLE without distillation and one lucky seed with eps = .1, and no shares; its claim is that the HDP finds the "
        "contexts and leaves the third one less mass than the Dirichlet prior does.\n\n"
    )
    return Page(body + table(columns, rows), _gates(groups), _drawings(groups))


def _row(group: list[CellRecord], threshold: float) -> list[str]:
    branches = [branch_of(record, threshold) for record in group]
    accuracy = [branch["two_accuracy"] for branch in branches]
    thirds = [third(branch) for branch in branches]
    kept = [branch["num_contexts"] for branch in branches]
    return [
        f"{sum(is_lucky(record, threshold) for record in group)} of {len(group)}",
        f"{median(accuracy):.4f} ({min(accuracy):.4f})",
        f"{median(thirds):.1e} ({max(thirds):.1e})",
        ", ".join(f"{count}: {kept.count(count)}x" for count in sorted(set(kept))),
    ]


def _gates(groups: dict[str, list[CellRecord]]) -> list[Gate]:
    if not all(groups.values()):
        return []
    is_whole = all(len(group) >= len(SEEDS) for group in groups.values())
    lucky = {prior: sum(is_lucky(record, PLAIN) for record in group) for prior, group in groups.items()}
    mass = {prior: median(third(branch_of(r, PLAIN)) for r in group) for prior, group in groups.items()}
    found = (
        (
            "HDP is lucky at least as often as MLE, eps 0",
            f"{lucky['hdp']} against {lucky['mle']}",
            lucky["hdp"] >= lucky["mle"],
        ),
        (
            "HDP leaves the third context less mass than Dirichlet and MLE, eps 0 (median)",
            ", ".join(f"{PRIORS[prior]} {value:.1e}" for prior, value in mass.items()),
            mass["hdp"] < min(mass["dirichlet"], mass["mle"]),
        ),
    )
    return [Gate(name, words, is_met if is_whole else None) for name, words, is_met in found]


def _drawings(groups: dict[str, list[CellRecord]]) -> list[Drawing]:
    """Draw the first seed on which MLE fails without distillation, and the first on which all succeed with it."""
    by_seed = {record.settings["seed"]: record for record in groups["mle"]}
    whole = [seed for seed in by_seed if all(_of(group, seed) for group in groups.values())]
    unlucky = next((seed for seed in whole if not is_lucky(by_seed[seed], PLAIN)), None)
    lucky = next(
        (s for s in whole if all(is_lucky(r, DISTILLED) for group in groups.values() for r in _of(group, s))), None
    )
    found = []
    for seed, threshold, word in ((unlucky, PLAIN, "unlucky"), (lucky, DISTILLED, "lucky")):
        if seed is not None:
            runs = [(PRIORS[prior], branch_of(_of(group, seed)[0], threshold)) for prior, group in groups.items()]
            words = f"seed {seed}, {word} for MLE, eps = {threshold:g} in training"
            chains, courses = ([panel(*run) for run in runs] for panel in (chain_panel, course_panel))
            found += [
                Drawing(f"resultA_chains_{word}", f"Learned chains: {words}.", chains),
                Drawing(f"resultA_courses_{word}", f"A held-out episode: {words}.", courses),
            ]
    return found


def _of(group: list[CellRecord], seed: int) -> list[CellRecord]:
    return [record for record in group if record.settings["seed"] == seed]


def headline(records: list[CellRecord]) -> str:
    """Return the share of lucky seeds without distillation; the paper shows one seed of each kind."""
    groups = {prior: [r for r in records if r.settings["prior"]["name"] == prior] for prior in PRIORS}
    shares = (
        f"{PRIORS[prior]} {sum(is_lucky(record, PLAIN) for record in group)} of {len(group)}"
        for prior, group in groups.items()
        if group
    )
    return f"seeds that find the contexts, eps 0: {', '.join(shares)}; the paper shows one seed of each kind"


STUDY = Study("resultA", "Result A: three priors", cells, run_cell, page, resolve, headline=headline)
