"""`settings`: the paper's hyper-parameters beside ours, read from the presets, and what the paper leaves open."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mbrl_hdp.experiments.studies.study import CellRecord, Page, Results, Settings, Study, table
from mbrl_hdp.experiments.studies.train_cell import resolve

Resolved = Mapping[str, Any]

# Task -> a cell of each kind whose preset is shown.
TASKS: dict[str, Settings] = {
    "cart-pole, hard": {"failure": "hard"},
    "intersection": {"task": "intersection"},
    "drone": {"task": "drone"},
}


@dataclass(frozen=True)
class Stated:
    """A number of the paper's tables of hyper-parameters.

    Attributes:
        name: what the paper calls it.
        paper: its value for cart-pole, intersection and drone.
        key: where our resolved configuration has it.
        why: why our reported run may differ.
        why_paper: why even our preset with the paper's settings may differ.
    """

    name: str
    paper: tuple[Any, Any, Any]
    key: str
    why: str = ""
    why_paper: str = ""


_SEARCH = "our fit starts from a structure search, takes three runs with schedules, and polishes"
_SOONER = "`profile=fast`: the same return with less"
_FLOOR = "default of every task: rows follow the data sooner; 1000 pulls switching rates towards equal shares"

MODEL = (
    Stated("K", (5, 10, 10), "max_contexts", "ten everywhere: the number is found whatever the bound (study robust)"),
    Stated("gamma", (2.0, 2.0, 1.0), "prior.top_concentration", "one value for all tasks"),
    Stated("alpha", (1000.0, 1000.0, 5000.0), "prior.row_concentration", _FLOOR),
    Stated("kappa", ("3 K / 5", 6.0, 3.0), "prior.stickiness", "null is 3 K / 5, on every task",
           "null is 3 K / 5"),
    Stated("std of theta", (0.1, 0.1, 0.1), "dynamics.weight_std"),
    Stated("transition cool-off", (5, 5, 5), "env.kwargs.cool_off"),
    Stated("hidden layers", ([128], [64], [128]), "dynamics.hidden_sizes"),
    Stated("learning rate of theta", (5e-3, 5e-3, 5e-3), "fit.learning_rate"),
    Stated("learning rate of rho", (1e-2, 1e-2, 1e-2), "fit.row_learning_rate"),
    Stated("learning rate of nu", (1e-2, 1e-2, 1e-2), "fit.top_learning_rate",
           "null is the recipe's own rate: .05, with recipe=literal .01",
           "null is the recipe's own rate: .05, with recipe=literal .01"),
)  # fmt: skip
_DIVERGES = (
    "with the paper's values and our budget the drone tumbled (FI-SAC, seed 100: -205) and the temperature on the "
    "intersection ran away (FI-SAC, seed 100: 342); found on seed 0"
)
_WARM_EPISODES = Stated("roll-outs at warm start", (100, 200, 200), "budget.warm_episodes")
_WARM_MODEL_STEPS = Stated("model iterations at warm start", (500, 500, 500), "budget.warm_model_steps")


def _thresholds(train: tuple[Any, Any, Any], test: tuple[Any, Any, Any]) -> Iterator[Stated]:
    for when, paper in (("train", train), ("test", test)):
        key = f"distillation.{when}_threshold"
        yield Stated(f"{when}ing distillation threshold", paper, key, "one value for all tasks")


MPC = (
    _WARM_EPISODES,
    Stated("roll-outs per iteration", (20, 20, 20), "budget.episodes_per_epoch"),
    _WARM_MODEL_STEPS,
    Stated("model iterations per epoch", (500, 50, 60), "budget.model_steps", _SOONER),
    Stated("epochs", (10, 3, 3), "budget.num_epochs", _SOONER),
    Stated("model batch size", (100, 100, 50), "budget.model_batch"),
    *_thresholds((0.1, 0.0, 0.0), (0.02, 0.0, 0.02)),
)  # fmt: skip
SAC = (
    _WARM_EPISODES,
    Stated("roll-outs per iteration", (1, 1, 1), "budget.episodes_per_epoch"),
    _WARM_MODEL_STEPS,
    Stated("model iterations per epoch", (500, 200, 200), "budget.model_steps", _SOONER),
    Stated("agent updates at warm start", (1000, 1000, 100), "budget.warm_agent_updates",
           "cart-pole's number is kept for all tasks"),
    Stated("agent updates per epoch", (200, 100, 150), "budget.agent_updates", "more updates, fewer epochs"),
    Stated("epochs", (500, 500, 500), "budget.num_epochs", _SOONER),
    Stated("model batch size", (20, 50, 50), "budget.model_batch", _SOONER),
    Stated("agent batch size", (256, 256, 256), "agent.batch_size"),
    *_thresholds((0.1, 0.05, 0.02), (0.1, 0.05, 0.02)),
    Stated("hidden layers of policy and value", ([256], [256, 256], [256]), "agent.hidden_sizes",
           "two layers turn an action round by context; with one, C-SAC's thrust on the drone stayed lower (seed 0)"),
    Stated("target entropy", (-0.05, -0.01, -0.1), "agent.target_entropy", _DIVERGES),
    Stated("initial temperature", (0.8, 0.2, 0.6), "agent.initial_temperature", _DIVERGES),
    Stated("discount factor", (0.99, 0.999, 0.999), "agent.discount", _DIVERGES),
    Stated("target value function update", (4, 4, 4), "agent.target_update_interval",
           "default of our SAC: at every update, with a rate of .005"),
    Stated("policy learning rate", (7e-4, 5e-4, 3e-4), "agent.policy_lr", "one value for intersection and drone"),
    Stated("value learning rate", (7e-4, 5e-4, 3e-4), "agent.value_lr", "the critic is to be ahead of the policy"),
    Stated("temperature learning rate", (7e-5, 1e-4, 1e-4), "agent.temperature_lr",
           "default of our SAC"),
    Stated("linear learning decay", (True, True, True), "agent.linear_decay"),
    Stated("weight decay", (1e-8, 1e-6, 1e-6), "agent.weight_decay", "default of our SAC"),
)  # fmt: skip
TABLES = (
    ("Model learning (its Table of model hyper-parameters)", "C-CEM", MODEL),
    ("C-CEM (its Table of MPC hyper-parameters)", "C-CEM", MPC),
    ("C-SAC, FI-SAC, NI-SAC (its Table of SAC hyper-parameters)", "C-SAC", SAC),
)
# What the paper does not state, where ours is, and what we took for what reason.
SILENT = (
    (
        "switch probability after the cool-off",
        "env.kwargs.switch",
        "fits the paper's returns on the drone (docs/ceilings.md)",
    ),
    (
        "whether a context may change right after a reset",
        "env.kwargs.counter_at_reset",
        "full: not before the cool-off is over",
    ),
    ("schedule of the fit, restarts", "fit.num_restarts", _SEARCH),
    ("noise floor of the transition networks", "dynamics.std_floor", "keeps spare contexts from fitting what is left"),
    ("norm at which gradients are clipped", "fit.clip", "that of Pyro's Clipped Adam"),
    ("CEM: horizon", "planner.horizon", "chosen on learned models of other seeds"),
    ("CEM: population", "planner.population_size", "chosen on learned models of other seeds"),
    ("CEM: elites", "planner.num_elites", "chosen on learned models of other seeds"),
    ("CEM: iterations", "planner.num_iterations", "chosen on learned models of other seeds"),
    ("CEM: first spread of the actions", "planner.initial_std", "chosen on learned models of other seeds"),
    ("CEM: colour of the noise", "planner.noise_color", "chosen on learned models of other seeds"),
    ("CEM: contexts in imagined futures", "planner.context_mode", "chosen on learned models of other seeds"),
    ("SAC: share of the critic that its target takes over", "agent.tau", "the usual .005"),
)
ALSO_SILENT = (
    "Also unstated, without one number of ours beside it: the seeds; what the standard deviations are taken "
    "over; the evaluation interval; the drone's reward weights, control rate and thrust band "
    "(`env.kwargs` of the preset); the intersection's traffic; everything of RNN-PPO and GPMM but the numbers of runs "
    "and episodes; the matrix of the non-Markovian chain; the second contexts of the experiment with new contexts."
)


def cells(seeds: Sequence[int] | None, is_quick: bool) -> list[Settings]:  # noqa: ARG001 - nothing is run
    """Return no cells: the page is made of the presets."""
    return []


def run(settings: Settings) -> Results:
    """Raise: there is nothing to run."""
    raise AssertionError(f"the study `settings` has no cell {settings}")


def page(records: list[CellRecord]) -> Page:  # noqa: ARG001 - there are none
    """Return the tables, one a task and table of the paper, and the list of what the paper leaves open."""
    body = [
        "Every number of the paper's three tables of hyper-parameters beside `experiment=paper/NAME` (its settings on "
        "our code) and `experiment=NAME` (what we report), read from the presets when this page was written. Optimiser "
        "(Clipped Adam for the model, Adam for SAC) and activations (ReLU) are the paper's. In every run "
        f"{_SEARCH}, and the rows of the chain take steps of the natural gradient (`fit.natural_step`), so that their "
        "learning rate only counts for `recipe=literal`, which is the paper's text.",
    ]
    for title, agent, rows in TABLES:
        body += [f"## {title}"]
        for number, (task, place) in enumerate(TASKS.items()):
            paper, ours = (
                resolve(place | {"agent": agent, "profile": kind, "seed": 100}) for kind in ("paper", "fast")
            )
            found = [_row(stated, stated.paper[number], paper, ours) for stated in rows]
            columns = ("quantity", "setting", "paper", "`experiment=paper/...`", "`experiment=...`", "why")
            body += [f"**{task}**", table(columns, found)]
    body += ["## What the paper leaves open", _silent_table(), ALSO_SILENT]
    return Page("\n\n".join(body), [])


def value_at(config: Resolved, key: str) -> Any:
    """Return the value of a dotted key.

    Example:
        >>> value_at({"prior": {"stay": 0.8}}, "prior.stay")
        0.8
    """
    found: Any = config
    for word in key.split("."):
        found = found[word]
    return found


def _row(stated: Stated, said: Any, paper: Resolved, ours: Resolved) -> list[str]:
    values = [value_at(config, stated.key) for config in (paper, ours)]
    reasons = [
        why for why, value in ((stated.why_paper, values[0]), (stated.why, values[1])) if said != value
    ]  # fmt: skip
    return [stated.name, f"`{stated.key}`", *map(_shown, (said, *values)), "; ".join(dict.fromkeys(reasons))]


def _silent_table() -> str:
    presets = {
        (agent, task): resolve(place | {"agent": agent, "profile": "fast", "seed": 100})
        for agent in ("C-CEM", "C-SAC")
        for task, place in TASKS.items()
    }
    rows = []
    for name, key, why in SILENT:
        agent = "C-SAC" if key.startswith("agent.") else "C-CEM"
        values = [_shown(value_at(presets[agent, task], key)) for task in TASKS]
        rows.append([name, f"`{key}`", *values, why])
    return table(("quantity", "setting", *TASKS, "what we took"), rows)


def _shown(value: Any) -> str:
    return json.dumps(value) if not isinstance(value, str) else value


STUDY = Study("settings", "Hyper-parameters: the paper's beside ours", cells, run, page, dict)
