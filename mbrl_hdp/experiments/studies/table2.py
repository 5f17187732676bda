"""`table2`: the paper's returns on cart-pole with hard and soft failures, by agent; whole runs of Algorithm 1.

Our own agents are its cells; the rows of the others are the cells of `baselines`.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

import numpy as np

from mbrl_hdp.experiments.studies import baselines
from mbrl_hdp.experiments.studies.returns_table import (
    LEGEND,
    SEEDS,
    Returns,
    group_of,
    improvement_table,
    return_rows,
    returns_of,
)
from mbrl_hdp.experiments.studies.study import CellRecord, Gate, Page, Results, Settings, Study, table
from mbrl_hdp.experiments.studies.train_cell import AGENTS, BASELINES, FAILURES, SMOKE_OVERRIDES, resolve, run
from mbrl_hdp.experiments.summary import bootstrap_interval

# Mean and standard deviation in the paper's Table 2 (it has no NI-SAC on cart-pole).
PAPER = {
    "C-CEM": ("87.63 ± 0.14", "60.15 ± 25.91", "83.15 ± 7.72", "89.08 ± 1.90"),
    "C-SAC": ("85.38 ± 1.64", "76.80 ± 8.91", "86.76 ± 2.88", "88.35 ± 1.30"),
    "FI-SAC": ("84.50 ± 1.79", "76.63 ± 8.54", "84.75 ± 3.07", "86.92 ± 1.03"),
    "NI-SAC": ("", "", "", ""),
}
DIFFERENCES = (("FI-SAC", "C-SAC"), ("C-SAC", "NI-SAC"), ("FI-SAC", "NI-SAC"), ("C-CEM", "NI-SAC"))
# (agent, failure) -> smallest mean return over the seeds, and the most real episodes that it may take.
WANTED = {
    ("C-CEM", "hard"): (87.0, 240), ("C-CEM", "soft .1"): (78.0, None), ("C-CEM", "soft .3"): (86.8, None),
    ("C-CEM", "soft .5"): (89.1, None), ("C-SAC", "hard"): (85.4, 600), ("C-SAC", "soft .1"): (76.8, None),
    ("C-SAC", "soft .3"): (86.8, None), ("C-SAC", "soft .5"): (88.4, None), ("FI-SAC", "hard"): (84.5, None),
}  # fmt: skip
# No evaluation of C-CEM on the hard failure may fall further below the best one before it.
LARGEST_FALL = 5.0
# Return whose time is reported.
QUICK_RETURN = 85.0


def cells(seeds: Sequence[int] | None, is_quick: bool) -> list[Settings]:
    """Return our agents on every failure, gated ones first, C-SAC once with the paper's settings, then `baselines`."""
    if is_quick:
        own = [_cell("C-CEM", "hard", seed, "smoke") | {"overrides": list(SMOKE_OVERRIDES)} for seed in seeds or (100,)]
        return [*own, *baselines.cells(seeds, is_quick)]
    pairs = [(failure, agent) for failure in FAILURES for agent in AGENTS]
    gated = [(failure, agent) for failure, agent in pairs if (agent, failure) in WANTED]
    rest = [pair for pair in pairs if pair not in gated]
    first, last = (
        [_cell(agent, failure, seed, "fast") for failure, agent in group for seed in seeds or SEEDS]
        for group in (gated, rest)
    )
    return [*first, _cell("C-SAC", "hard", SEEDS[0], "paper"), *last, *baselines.cells(seeds, is_quick)]


def _cell(agent: str, failure: str, seed: int, profile: str) -> Settings:
    """Name a cell; its settings are its preset's (`train_cell.preset_of`)."""
    return {"agent": agent, "failure": failure, "profile": profile, "seed": seed}


def page(records: list[CellRecord]) -> Page:
    """Return the page: our returns beside the paper's."""
    every = [record for record in records if record.settings["profile"] != "paper"]
    records = [record for record in records if record.settings["agent"] in AGENTS]
    fast = [record for record in records if record.settings["profile"] != "paper"]
    body = [
        f"{LEGEND} Ours with `profile=fast`. Every cell is a preset: `mbrl-hdp train experiment=cartpole_soft03_c_sac "
        "seed=100` is C-SAC on soft .3, seed 100; the paper's settings are `experiment=paper/NAME`. On soft failures "
        "C-CEM plans on 24 context paths instead of 6, on soft .1 and .5 12 steps ahead instead of 10, on soft .1 and "
        ".3 with feedback (`planner.context_mode`). On soft .3 and .5 all three SAC agents see standardised "
        "observations and have an initial temperature of .1 (default .8), a target entropy of -1 (-.05) and a discount "
        "of .95 (.99), chosen with FI-SAC on other seeds. With these C-SAC had 86.73 on soft .3; a discount of .92 and "
        "300 epochs instead of 150, which it has there now, were then tried with FI-SAC on seeds 0 and 1, each alone "
        "(.92: 87.50, 87.29; 300 epochs: 87.07, 87.60; neither: 87.21, 87.20), together only here. Everything else "
        "is the default. The paper's numbers are its Table 2 (DNNMM and ANPMM: its appendix); it has no NI-SAC on "
        "cart-pole. The agents below NI-SAC are those of [baselines](baselines.md); the paper picked their best runs "
        "or episodes, ours are means over all.",
        table(
            ("agent", *FAILURES),
            [row for agent in (*AGENTS, *BASELINES)
             for row in return_rows(agent, every, (PAPER | baselines.PAPER).get(agent, ()), FAILURES)],
        ),
        improvement_table(every, ("C-CEM", "C-SAC"), list(FAILURES)),
        "What is the context worth? Differences of returns in the same evaluation episodes (same start, same contexts)"
        " with their 95 % intervals, the same bootstrap. FI-SAC was trained on the true context, C-SAC on the learned "
        "belief, NI-SAC on the observation alone; otherwise the three have the same settings. Only a difference whose "
        "interval leaves out 0 separates two agents, and with three seeds not for certain.",
        table(("difference", *FAILURES), [_difference_row(*pair, fast) for pair in DIFFERENCES]),
        "Every run. Fed the truth: return of the same agent in the same episodes with the one-hot true context in "
        "the place of its belief. For C-CEM, which is not trained on beliefs, the difference is what not knowing the "
        "context costs it. C-SAC was trained on beliefs and never saw one-hot ones: for it the difference is no such "
        "cost, and it is often negative. Per switch: the difference divided by the switches at which the belief named "
        "the wrong context (M of Theorem 3).",
        table(
            ("failure", "agent", "profile", "seed", "return", "std", "worst", "episodes", "contexts", "accuracy",
             "switch delay", "fed the truth", "difference", "per switch", "minutes"),
            [_each(record) for record in records],
        ),
        "Where the time of a run went, in percent (environment, acting, model, policy, evaluation): mean over seeds.",
        table(("failure", "agent", "environment", "acting", "model", "policy", "evaluation", "total s"),
              [_times(failure, agent, fast) for failure in FAILURES for agent in AGENTS
               if group_of(fast, agent, failure)]),
        f"C-CEM on the hard failure reached {QUICK_RETURN:g} in its evaluations after (training time, without the "
        f"evaluations): {_time_to(fast)}.",
    ]  # fmt: skip
    return Page("\n\n".join(body), [*_gates(fast), *_paper_gate(records), *_collapse_gate(fast)])


def _time_to(records: list[CellRecord]) -> str:
    found = []
    for record in group_of(records, "C-CEM", "hard"):
        reached = [point for point in record.results["curve"] if point[1] >= QUICK_RETURN]
        words = f"{reached[0][2]:.0f} s and {reached[0][0]} episodes" if reached else "never"
        found.append(f"seed {record.settings['seed']} {words}")
    return "; ".join(found) or "not run yet"


def _difference_row(agent: str, other: str, records: list[CellRecord]) -> list[str]:
    row = [f"{agent} - {other}"]
    for failure in FAILURES:
        pairs = paired_differences(group_of(records, agent, failure), group_of(records, other, failure))
        if not pairs:
            row.append("-")
            continue
        low, high = bootstrap_interval(pairs)
        row.append(f"{mean(pair.mean() for pair in pairs):+.2f} [{low:+.2f}, {high:+.2f}], n={len(pairs)}")
    return row


def paired_differences(ours: list[CellRecord], others: list[CellRecord]) -> list[Returns]:
    """Return the differences of two agents' returns, episode by episode, for every seed that both have.

    Evaluation episodes of one seed start in the same state and have the same contexts, whatever the agent.
    """
    found = []
    for one in ours:
        for two in others:
            if one.settings["seed"] == two.settings["seed"]:
                found.append(np.subtract(one.results["summary"]["returns"], two.results["summary"]["returns"]))
    return found


def _truth_fed(summary: Results) -> tuple[float | None, float | None, float | None]:
    """Return what `summary.json` says of the agent fed the truth: return, difference and difference per switch."""
    if "switch_loss" in summary:  # summaries of schema version 1
        old = summary["switch_loss"] or {}
        known = old.get("known_return_mean")
        return known, None if known is None else known - summary["return_mean"], old.get("return_lost_per_switch")
    found = summary["truth_fed"] or {}
    names = ("return_mean", "return_difference", "difference_per_misidentified_switch")
    return found.get(names[0]), found.get(names[1]), found.get(names[2])


def _each(record: CellRecord) -> list[str]:
    found, settings = record.results["summary"], record.settings
    known, difference, per_switch = _truth_fed(found)
    return [
        settings["failure"], settings["agent"], settings["profile"], record.seed,
        f"{found['return_mean']:.2f}", f"{found['return_std']:.2f}", f"{min(found['returns']):.1f}",
        str(found["num_real_episodes"]), _or_dash(found["num_contexts"], "d"),
        _or_dash(found["context_accuracy"], ".3f"), _or_dash(found["switch_delay"], ".2f"),
        _or_dash(known, ".2f"), _or_dash(difference, "+.2f"), _or_dash(per_switch, "+.3f"),
        f"{found['wall_time_s'] / 60:.1f}",
    ]  # fmt: skip


def _or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _times(failure: str, agent: str, records: list[CellRecord]) -> list[str]:
    group = [record.results["summary"]["time_breakdown_s"] for record in group_of(records, agent, failure)]
    means = {name: mean(times[name] for times in group) for name in group[0]}
    total = sum(means.values())
    return [failure, agent, *(f"{100 * seconds / total:.0f}" for seconds in means.values()), f"{total:.0f}"]


def _gates(records: list[CellRecord]) -> list[Gate]:
    gates = []
    for (agent, failure), (least, most) in WANTED.items():
        group = [record.results["summary"] for record in group_of(records, agent, failure)]
        if not group:
            continue
        found = mean(summary["return_mean"] for summary in group)
        episodes = max(summary["num_real_episodes"] for summary in group)
        is_met = found >= least and (most is None or episodes <= most)
        within = "" if most is None else f" within {most} episodes"
        words = f"{found:.2f}, {len(group)} seeds, {episodes} episodes"
        gates.append(
            Gate(f"{agent}, {failure}: at least {least:g}{within}", words, is_met if len(group) >= len(SEEDS) else None)
        )
    return gates


def _paper_gate(records: list[CellRecord]) -> list[Gate]:
    """Check the one run with the paper's budget against the gates of the quick ones."""
    least, most = WANTED["C-SAC", "hard"]
    gates = []
    for record in records:
        if record.settings["profile"] != "paper":
            continue
        found, settings = record.results["summary"], record.settings
        name = f"{settings['agent']}, {settings['failure']}, profile=paper, seed {settings['seed']}"
        is_met = found["return_mean"] >= least and found["num_real_episodes"] <= most
        words = f"{found['return_mean']:.2f}, {found['num_real_episodes']} episodes"
        gates.append(Gate(f"{name}: at least {least:g} within {most} episodes", words, is_met))
    return gates


def _collapse_gate(records: list[CellRecord]) -> list[Gate]:
    group = group_of(records, "C-CEM", "hard")
    if not group:
        return []
    falls = [largest_fall([point[1] for point in record.results["curve"]]) for record in group]
    name = f"C-CEM, hard: no evaluation more than {LARGEST_FALL:g} below the best before it"
    is_met = max(falls) <= LARGEST_FALL
    return [Gate(name, f"largest fall {max(falls):.2f}", is_met if len(group) >= len(SEEDS) else None)]


def largest_fall(curve: Sequence[float]) -> float:
    """Return how far a learning curve falls below its best value so far, at most.

    Example:
        >>> largest_fall([80.0, 88.0, 85.5, 89.0])
        2.5
    """
    values = np.asarray(curve)
    return float((np.maximum.accumulate(values) - values).max())


def headline(records: list[CellRecord]) -> str:
    """Return our agents on the hard failure beside the paper's."""
    fast = [record for record in records if record.settings["profile"] != "paper"]
    found = [(agent, returns_of(group_of(fast, agent, "hard"))) for agent in (*AGENTS, *BASELINES)]
    paper = {name: words[0].partition(" ")[0] for name, words in (PAPER | baselines.PAPER).items()}
    return "return on hard, ours / paper: " + ", ".join(
        f"{agent} {np.mean([own.mean() for own in returns]):.1f} / {paper.get(agent) or '-'}"
        for agent, returns in found
        if returns
    )


STUDY = Study(
    "table2", "Table 2: returns on cart-pole with hard and soft failures", cells, run, page, resolve,
    reads=("baselines",), headline=headline,
)  # fmt: skip
