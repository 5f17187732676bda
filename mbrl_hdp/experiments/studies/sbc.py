"""`sbc`: is the posterior of the chain right as often as it says? Simulation-based calibration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from scipy.stats import binom, chi2

from mbrl_hdp.experiments.fingerprint import installed_plugins
from mbrl_hdp.experiments.studies.cartpole_fit import part
from mbrl_hdp.experiments.studies.drawings import CurvePanel, Drawing
from mbrl_hdp.experiments.studies.sbc_cell import COVERAGES, is_inside, run
from mbrl_hdp.experiments.studies.study import CellRecord, Gate, Page, Settings, Study, table

SEEDS = range(100, 105)
PRIORS = ("dirichlet", "hdp")
CASES = {"seen": 100.0, "clear": 4.0, "overlapping": 1.5}
# Gradient steps of the top weights; the rows alone need none.
GRADIENT_STEPS = {"dirichlet": 0, "hdp": 60}
NUM_BINS = 20
LEAST_SIMULATIONS = 200
# The conjugate case is exact: its ranks must pass at this level, corrected for the number of quantities.
LEVEL = 0.01


def cells(seeds: Sequence[int] | None, is_quick: bool) -> list[Settings]:
    """Return forty simulations a seed, for both priors and three kinds of emissions."""
    size = {"num_simulations": 3, "num_draws": 19} if is_quick else {"num_simulations": 40, "num_draws": 99}
    own = seeds or (SEEDS[:1] if is_quick else SEEDS)
    return [
        {
            "prior": {"name": prior, "row_concentration": 6.0, "stickiness": 18.0},
            "case": case,
            "separation": separation,
            "num_contexts": 3,
            "num_episodes": 5,
            "num_steps": 40,
            "num_gradient_steps": GRADIENT_STEPS[prior],
            "seed": seed,
            **size,
        }
        for prior in PRIORS
        for seed in own
        for case, separation in CASES.items()
    ]


def resolve(settings: Settings) -> Settings:
    """Return a cell's settings with every default of its prior."""
    config = asdict(part(installed_plugins(), "prior", settings["prior"]).config)
    return settings | {"prior": {"name": settings["prior"]["name"], **config}}


def uniformity(ranks: Sequence[int], num_draws: int) -> float:
    """Return the p-value of the chi-square test that ranks 0 .. num_draws are equally likely, in bins of equal size."""
    counts = np.bincount(np.asarray(ranks) * NUM_BINS // (num_draws + 1), minlength=NUM_BINS)
    expected = len(ranks) / NUM_BINS
    return float(chi2.sf(np.square(counts - expected).sum() / expected, NUM_BINS - 1))


def page(records: list[CellRecord]) -> Page:
    """Show coverage, tests of uniform ranks and the differences of their distribution functions."""
    groups = _groups(records)
    rows = []
    for (prior, case), ranks in groups.items():
        for name, own in ranks.items():
            num_draws = records[0].settings["num_draws"]
            inside = [f"{is_inside(np.asarray(own), num_draws, level).mean():.1%}" for level in COVERAGES]
            rows.append([prior, case, name, str(len(own)), *inside, f"{uniformity(own, num_draws):.3g}"])
    columns = ["prior", "contexts", "quantity", "simulations", *(f"{level:.0%} interval" for level in COVERAGES)]
    body = (
        "A chain of three contexts is drawn from the prior (row_concentration 6, stickiness 18), five episodes of 40 "
        "steps are simulated with normal emissions of known heads, and the chain is learned from them as `fit` learns "
        "it. *Seen*: emissions leave no doubt about the context, so that the exact posterior of the Dirichlet prior is "
        "known (it is what the machinery itself is tested on); *clear*: heads 4 standard deviations apart; "
        "*overlapping*: 1.5. Shown is how often the true value lies in the central intervals of the learned posterior "
        f"(each share has a standard error of about {0.5 / np.sqrt(max(_least(groups), 1)):.1%}), and the p-value of "
        f"the chi-square test that its rank among 99 draws is uniform ({NUM_BINS} bins). The stickiness is a setting, "
        "not learned, so it has no posterior; the shared weights of `hdp` are a point estimate (the paper's choice), "
        "so they have none either, and what they are uncertain about is missing from the rows' posterior.\n\n"
    )
    return Page(
        f"{body}{_summary(groups, records)}\n\n{table([*columns, 'p'], rows)}",
        _gates(groups, records),
        _drawings(groups, records),
    )


Groups = dict[tuple[str, str], dict[str, list[int]]]


def _groups(records: list[CellRecord]) -> Groups:
    """Return the ranks of all seeds by prior and case, then by quantity."""
    found: Groups = {}
    for record in records:
        ranks = found.setdefault((record.settings["prior"]["name"], record.settings["case"]), {})
        for name, own in record.results["ranks"].items():
            ranks.setdefault(name, []).extend(own)
    return found


def _least(groups: Groups) -> int:
    return min((len(own) for ranks in groups.values() for own in ranks.values()), default=0)


def _summary(groups: Groups, records: list[CellRecord]) -> str:
    """Return the coverage over all quantities, by prior and case."""
    num_draws = records[0].settings["num_draws"]
    rows = []
    for (prior, case), ranks in groups.items():
        pooled = np.concatenate([np.asarray(own) for own in ranks.values()])
        shares = [f"{is_inside(pooled, num_draws, level).mean():.1%}" for level in COVERAGES]
        rows.append([prior, case, *shares])
    head = ["prior", "contexts", *(f"{level:.0%} interval holds the truth" for level in COVERAGES)]
    return "All quantities together:\n\n" + table(head, rows)


def _gates(groups: Groups, records: list[CellRecord]) -> list[Gate]:
    """Ask for enough simulations, and for uniform ranks where the posterior is exact; the rest is only published."""
    least = _least(groups)
    is_whole = least >= LEAST_SIMULATIONS
    gates = [Gate(f"at least {LEAST_SIMULATIONS} simulations a case", str(least), is_whole or None)]
    exact = groups.get(("dirichlet", "seen"))
    if exact:
        worst = min(uniformity(own, records[0].settings["num_draws"]) for own in exact.values()) * len(exact)
        words = f"conjugate case: ranks uniform (p at least {LEVEL} after Bonferroni)"
        gates.append(Gate(words, f"{min(worst, 1.0):.3g}", worst >= LEVEL if is_whole else None))
    return gates


def _drawings(groups: Groups, records: list[CellRecord]) -> list[Drawing]:
    num_draws = records[0].settings["num_draws"]
    panels = [_panel(f"{prior}, {case}", ranks, num_draws) for (prior, case), ranks in groups.items()]
    caption = (
        "Distribution function of the ranks minus the uniform one; dashed band: where each point lies with 95 % "
        "probability if ranks are uniform. A slope that falls in the middle means intervals that are too narrow."
    )
    return [Drawing("sbc", caption, panels)]


def _panel(title: str, ranks: dict[str, list[int]], num_draws: int) -> CurvePanel:
    grid = np.arange(1, num_draws + 1) / (num_draws + 1)
    lines: list[tuple[str, Any]] = []
    for name, own in ranks.items():
        below = (np.asarray(own)[:, None] < np.arange(1, num_draws + 1)).mean(0)
        lines.append((name, list(zip(grid.tolist(), (below - grid).tolist(), strict=True))))
    size = len(next(iter(ranks.values())))
    for side in (0.025, 0.975):
        limit = binom.ppf(side, size, grid) / size - grid
        lines.append(("95 % band", list(zip(grid.tolist(), limit.tolist(), strict=True))))
    return CurvePanel(title, "rank / (draws + 1)", "difference", lines)


STUDY = Study("sbc", "Simulation-based calibration of the chain's posterior", cells, run, page, resolve)
