"""`systems_control`: control with nothing but defaults, on systems that nobody prepared."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from mbrl_hdp.envs.systems.control import GOALS
from mbrl_hdp.experiments.studies.control_cell import resolve, run
from mbrl_hdp.experiments.studies.returns_table import LEGEND, return_cell, returns_of
from mbrl_hdp.experiments.studies.study import CellRecord, Gate, Page, Settings, Study, table
from mbrl_hdp.experiments.studies.train_cell import SMOKE_OVERRIDES

SEEDS = range(100, 102)
SHARE, ENOUGH = 0.95, 4


def cells(seeds: Sequence[int] | None, is_quick: bool) -> list[Settings]:
    """Return every system with a goal, seed by seed."""
    if is_quick:
        overrides = [word.replace("env.kwargs", "+env.kwargs") for word in SMOKE_OVERRIDES]
        return [_cell("pendulum", seed, "smoke") | {"overrides": overrides} for seed in seeds or SEEDS[:1]]
    return [_cell(system, seed, "fast") for seed in seeds or SEEDS for system in GOALS]


def _cell(system: str, seed: int, profile: str) -> Settings:
    return {"agent": "C-CEM", "system": system, "profile": profile, "seed": seed}


def page(records: list[CellRecord]) -> Page:
    """Show every system: its return, as a share of the return when the truth is known, and what contexts are worth."""
    groups = {name: [r for r in records if r.settings["system"] == name] for name in GOALS}
    groups = {name: group for name, group in groups.items() if group}
    columns = ("system", "return", "truth known", "share", "context known", "random", "contexts", "accuracy")
    rows = [[name, *_row(group)] for name, group in groups.items()]
    shares = {name: share_of(group) for name, group in groups.items()}
    good = sum(share >= SHARE for share in shares.values())
    body = (
        "Five systems of [systems](systems.md) as gymnasium environments with a goal each "
        "(`mbrl_hdp/envs/systems/control.py`, written down before anything was tried): `mbrl-hdp train env=gymnasium "
        "env.id=mbrl_hdp.envs.systems.control:SuiteSystem-v0 +env.kwargs.system=unicycle agent=c_cem profile=fast`. "
        "There is no preset: transition model, number of contexts and the planner's settings are found by the run. "
        f"{LEGEND} Truth known: the first 20 of the same episodes and the same planner settings, with the true "
        "equations, the true chain and the acting context known. Share: our mean return of these episodes over that. "
        "Context known: the learned model, the acting context known. Random: the first episodes of the run."
    )
    gate = Gate(
        f"at least {SHARE:.0%} of the return when the truth is known, on {ENOUGH} of {len(GOALS)} systems",
        f"{good} of {len(groups)}",
        (good >= ENOUGH) if _is_whole(groups) or good >= ENOUGH else None,
    )
    return Page(f"{body}\n\n{table(columns, rows)}", [gate])


def share_of(group: list[CellRecord]) -> float:
    """Return the mean return over that, on the same episodes, of the planner that knows the truth."""
    told = [record.results["told"] for record in group]
    ours = [record.results["summary"]["returns"][: len(each)] for record, each in zip(group, told, strict=True)]
    return mean(map(mean, ours)) / mean(map(mean, told))


def _row(group: list[CellRecord]) -> list[str]:
    fed = [record.results["summary"]["truth_fed"] for record in group]
    accuracy = [record.results["summary"]["context_accuracy"] for record in group]
    return [
        return_cell(returns_of(group)),
        f"{mean(mean(record.results['told']) for record in group):.2f}",
        f"{share_of(group):.3f}",
        ", ".join("-" if each is None else f"{each['return_mean']:.2f}" for each in fed),
        f"{mean(record.results['train_curve'][0][1] for record in group):.2f}",
        ", ".join(f"{record.results['summary']['num_contexts']}" for record in group),
        ", ".join("-" if each is None else f"{each:.3f}" for each in accuracy),
    ]


def _is_whole(groups: dict[str, list[CellRecord]]) -> bool:
    return len(groups) == len(GOALS) and all(len(group) >= len(SEEDS) for group in groups.values())


def headline(records: list[CellRecord]) -> str:
    """Return the share of every system; the paper has no such study."""
    names = dict.fromkeys(record.settings["system"] for record in records)
    shares = [f"{name} {share_of([r for r in records if r.settings['system'] == name]):.2f}" for name in names]
    return f"share of the planner that knows the truth: {', '.join(shares)}"


TITLE = "Control with nothing but defaults"
STUDY = Study("systems_control", TITLE, cells, run, page, resolve, headline=headline)
