"""`table2`: the paper's returns on cart-pole with hard and soft failures, by agent; whole runs of Algorithm 1."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev

import numpy as np
from omegaconf import OmegaConf

from mbrl_hdp.experiments.config import check_config, load_config
from mbrl_hdp.experiments.loop import train
from mbrl_hdp.experiments.metrics import read_metrics
from mbrl_hdp.experiments.studies.study import CellRecord, Gate, Page, Results, Settings, Study, cell_key, table
from mbrl_hdp.experiments.summary import bootstrap_interval
from mbrl_hdp.hooks import load_registry
from mbrl_hdp.runtime import configure

SEEDS = range(100, 103)
FAILURES = {"hard": "cartpole_hard", "soft .1": "cartpole_soft01", "soft .3": "cartpole_soft03",
            "soft .5": "cartpole_soft05"}  # fmt: skip
AGENTS = {"C-CEM": "c_cem", "C-SAC": "c_sac", "FI-SAC": "fi_sac", "NI-SAC": "ni_sac"}
# Mean and standard deviation in the paper's Table 2 (it has no NI-SAC on cart-pole).
PAPER = {
    "C-CEM": ("87.63 ± 0.14", "60.15 ± 25.91", "83.15 ± 7.72", "89.08 ± 1.90"),
    "C-SAC": ("85.38 ± 1.64", "76.80 ± 8.91", "86.76 ± 2.88", "88.35 ± 1.30"),
    "FI-SAC": ("84.50 ± 1.79", "76.63 ± 8.54", "84.75 ± 3.07", "86.92 ± 1.03"),
    "NI-SAC": ("", "", "", ""),
}
# Settings of C-CEM by failure beside the default's, chosen on seeds that are not reported.
_WIDE = ["planner.horizon=12", "planner.num_particles=24"]
_PLANNER: dict[str, list[str]] = {
    "hard": [],
    "soft .1": [*_WIDE, "planner.context_mode=feedback"],
    "soft .3": ["planner.context_mode=feedback", "planner.num_particles=24"],
    "soft .5": _WIDE,
}
# Settings of the three SAC agents by failure, chosen with FI-SAC on seeds that are not reported.
_SHARP = ["agent.standardise_obs=true", "agent.initial_temperature=0.1", "agent.target_entropy=-1"]
_POLICY: dict[str, list[str]] = {
    "hard": [],
    "soft .1": [],
    "soft .3": [*_SHARP, "agent.discount=0.92", "budget.num_epochs=300"],
    "soft .5": [*_SHARP, "agent.discount=0.95"],
}
# (agent, failure) -> smallest mean return over the seeds, and the most real episodes that it may take.
WANTED = {
    ("C-CEM", "hard"): (87.0, 240), ("C-CEM", "soft .1"): (78.0, None), ("C-CEM", "soft .3"): (86.8, None),
    ("C-CEM", "soft .5"): (89.1, None), ("C-SAC", "hard"): (85.4, 600), ("C-SAC", "soft .1"): (76.8, None),
    ("C-SAC", "soft .3"): (86.8, None), ("C-SAC", "soft .5"): (88.4, None), ("FI-SAC", "hard"): (84.5, None),
}  # fmt: skip
# No evaluation of C-CEM on the hard failure may fall further below the best one before it.
LARGEST_FALL = 5.0
# Return whose time is told.
QUICK_RETURN = 85.0
# Where unfinished runs wait to be gone on with.
_RUNS = Path("outputs") / "reproduce" / "table2"


def cells(seeds: Sequence[int] | None, is_quick: bool) -> list[Settings]:
    """Return every agent on every failure with `profile=fast`, and C-SAC once with the paper's budget; gates first."""
    if is_quick:
        return [_cell("C-CEM", "hard", 100, "smoke")]
    pairs = [(failure, agent) for failure in FAILURES for agent in AGENTS]
    gated = [(failure, agent) for failure, agent in pairs if (agent, failure) in WANTED]
    rest = [pair for pair in pairs if pair not in gated]
    first, last = (
        [_cell(agent, failure, seed, "fast") for failure, agent in group for seed in seeds or SEEDS]
        for group in (gated, rest)
    )
    return [*first, _cell("C-SAC", "hard", SEEDS[0], "paper"), *last]


def _cell(agent: str, failure: str, seed: int, profile: str) -> Settings:
    if profile == "paper":
        overrides = [f"experiment={FAILURES[failure]}_{AGENTS[agent]}"]
    else:
        overrides = [f"env={FAILURES[failure]}", f"agent={AGENTS[agent]}"]
        overrides += (_PLANNER if agent == "C-CEM" else _POLICY)[failure]
    return {"agent": agent, "failure": failure, "profile": profile, "seed": seed, "overrides": overrides}


def run(settings: Settings) -> Results:
    """Train as `mbrl-hdp train` does, going on with an unfinished run; keep its summary and its learning curve."""
    name = hashlib.sha256(cell_key(settings).encode()).hexdigest()[:12]
    folder = _RUNS / f"{settings['failure'].replace(' ', '_')}_{settings['agent']}_{settings['seed']}_{name}"
    registry = load_registry()
    words = [*settings["overrides"], f"profile={settings['profile']}", f"seed={settings['seed']}"]
    config = load_config(words, registry)
    typed = check_config(config)
    configure(typed.runtime)
    folder.mkdir(parents=True, exist_ok=True)
    OmegaConf.save(config, folder / "config.yaml")
    train(typed, registry, folder, progress=False)
    summary = json.loads((folder / "summary.json").read_text())
    curve = learning_curve(read_metrics(folder))
    shutil.rmtree(folder)
    return {"summary": summary, "curve": curve}


def learning_curve(rows: Sequence[Mapping[str, str]]) -> list[list[float]]:
    """Return real episodes, return and seconds so far (evaluations left out) of every evaluation."""
    seconds, found = 0.0, []
    for row in rows:
        seconds += sum(float(row.get(name) or 0.0) for name in ("env_s", "act_s", "model_s", "agent_s"))
        if row.get("return_mean"):
            found.append([int(row["num_real_episodes"]), round(float(row["return_mean"]), 3), round(seconds, 1)])
    return found


def page(records: list[CellRecord]) -> Page:
    """Put our returns beside the paper's."""
    fast = [record for record in records if record.settings["profile"] != "paper"]
    body = [
        "Return over 50 separate evaluation episodes a seed: mean over seeds ± standard deviation over all episodes "
        "[95 % interval of the mean, bootstrap within seeds], ours with `profile=fast`. On soft failures C-CEM plans "
        "on 24 context paths instead of 6, on soft .1 and .5 12 steps ahead instead of 10, on soft .1 and .3 with "
        "feedback (`planner.context_mode`). On soft .3 and .5 all three SAC agents see standardised observations and "
        "have an initial temperature of .1 (default .8), a target entropy of -1 (-.05) and a discount of .95 (.99), "
        "chosen with FI-SAC on other seeds. With these C-SAC had 86.73 on soft .3; a discount of .92 and 300 epochs "
        "instead of 150, which it has there now, were then tried with FI-SAC on the seeds 0 and 1, each alone (.92: "
        "87.50, 87.29; 300 epochs: 87.07, 87.60; neither: 87.21, 87.20), together only here. Everything else is the "
        "default. The paper's numbers are its Table 2.",
        table(("agent", *FAILURES), [row for agent in AGENTS for row in _rows(agent, fast)]),
        "Every run. Known context: return of the same agent and episodes when it is told the context. Lost: that minus "
        "the return, per switch at which the belief named the wrong context (Theorem 3).",
        table(
            ("failure", "agent", "profile", "seed", "return", "std", "worst", "episodes", "contexts", "accuracy",
             "switch delay", "known context", "lost per switch", "minutes"),
            [_each(record) for record in records],
        ),
        "Where the time of a run went, in percent (environment, acting, model, policy, evaluation): mean over seeds.",
        table(("failure", "agent", "environment", "acting", "model", "policy", "evaluation", "total s"),
              [_times(failure, agent, fast) for failure in FAILURES for agent in AGENTS
               if _group(fast, agent, failure)]),
        f"C-CEM on the hard failure reached {QUICK_RETURN:g} in its evaluations after (training time, without the "
        f"evaluations): {_time_to(fast)}.",
    ]  # fmt: skip
    return Page("\n\n".join(body), [*_gates(fast), *_paper_gate(records), *_collapse_gate(fast)])


def _time_to(records: list[CellRecord]) -> str:
    found = []
    for record in _group(records, "C-CEM", "hard"):
        reached = [point for point in record.results["curve"] if point[1] >= QUICK_RETURN]
        words = f"{reached[0][2]:.0f} s and {reached[0][0]} episodes" if reached else "never"
        found.append(f"seed {record.settings['seed']} {words}")
    return "; ".join(found) or "not run yet"


def _group(records: list[CellRecord], agent: str, failure: str) -> list[CellRecord]:
    return [r for r in records if r.settings["agent"] == agent and r.settings["failure"] == failure]


def _rows(agent: str, records: list[CellRecord]) -> list[list[str]]:
    ours = [f"{agent}, ours"]
    for failure in FAILURES:
        returns = [np.array(r.results["summary"]["returns"]) for r in _group(records, agent, failure)]
        if not returns:
            ours.append("-")
            continue
        low, high = bootstrap_interval(returns)
        spread = stdev(np.concatenate(returns).tolist())
        seeds = "" if len(returns) == len(SEEDS) else f", {len(returns)} seed(s)"
        ours.append(f"{mean(r.mean() for r in returns):.2f} ± {spread:.2f} [{low:.2f}, {high:.2f}]{seeds}")
    return [ours, [f"{agent}, paper", *PAPER[agent]]]


def _each(record: CellRecord) -> list[str]:
    found, settings = record.results["summary"], record.settings
    loss = found["switch_loss"] or {}
    return [
        settings["failure"], settings["agent"], settings["profile"], str(settings["seed"]),
        f"{found['return_mean']:.2f}", f"{found['return_std']:.2f}", f"{min(found['returns']):.1f}",
        str(found["num_real_episodes"]), _or_dash(found["num_contexts"], "d"),
        _or_dash(found["context_accuracy"], ".3f"), _or_dash(found["switch_delay"], ".2f"),
        _or_dash(loss.get("known_return_mean"), ".2f"),
        _or_dash(loss.get("return_lost_per_switch"), "+.3f"), f"{found['wall_time_s'] / 60:.1f}",
    ]  # fmt: skip


def _or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _times(failure: str, agent: str, records: list[CellRecord]) -> list[str]:
    group = [record.results["summary"]["time_breakdown_s"] for record in _group(records, agent, failure)]
    means = {name: mean(times[name] for times in group) for name in group[0]}
    total = sum(means.values())
    return [failure, agent, *(f"{100 * seconds / total:.0f}" for seconds in means.values()), f"{total:.0f}"]


def _gates(records: list[CellRecord]) -> list[Gate]:
    gates = []
    for (agent, failure), (least, most) in WANTED.items():
        group = [record.results["summary"] for record in _group(records, agent, failure)]
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
    """Hold the one run with the paper's budget to what is asked of the quick ones."""
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
    group = _group(records, "C-CEM", "hard")
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


STUDY = Study("table2", "Table 2: returns on cart-pole with hard and soft failures", cells, run, page)
