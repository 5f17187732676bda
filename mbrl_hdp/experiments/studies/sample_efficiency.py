"""`sample_efficiency`: C-CEM's return from the first real episodes on, by the length of the warm start."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from mbrl_hdp.experiments.studies.drawings import CurvePanel, Drawing
from mbrl_hdp.experiments.studies.result_c import mean_curve
from mbrl_hdp.experiments.studies.returns_table import LEGEND, SEEDS, episodes_to, return_cell, returns_of
from mbrl_hdp.experiments.studies.study import CellRecord, Gate, Page, Settings, Study, table
from mbrl_hdp.experiments.studies.train_cell import SMOKE_OVERRIDES, resolve, run

WARM = (3, 5, 10, 20, 50, 100)
# Real episodes after the warm start, one an epoch.
LATER = 10
# Transition model -> the words that choose it, and the warm starts that it is tried with.
CHOSEN, NETWORK = "chosen by the data", "network"
MODELS = {CHOSEN: (["dynamics=auto"], WARM), NETWORK: ([], (5, 20))}
LEVEL, WITHIN = 85.0, 10
# The paper's C-CEM: 100 random episodes, then ten epochs of 20; its table has the return after all of them.
PAPER_EPISODES = 300


def cells(seeds: Sequence[int] | None, is_quick: bool) -> list[Settings]:
    """Return every warm start with the model that the data chooses, then some with networks, short ones first."""
    if is_quick:
        return [_cell(NETWORK, 3, seed, "smoke") for seed in seeds or SEEDS[:1]]
    return [
        _cell(model, number, seed, "fast")
        for model, (_, warm) in MODELS.items()
        for seed in seeds or SEEDS
        for number in warm
    ]


def _cell(model: str, warm: int, seed: int, profile: str) -> Settings:
    overrides = [*MODELS[model][0], f"budget.warm_episodes={warm}", "budget.episodes_per_epoch=1"]
    overrides += (
        list(SMOKE_OVERRIDES) if profile == "smoke" else [f"budget.num_epochs={LATER + 1}", "budget.eval_every=1"]
    )
    name = {"agent": "C-CEM", "failure": "hard", "model": model, "warm_episodes": warm, "profile": profile}
    return name | {"seed": seed, "overrides": overrides}


def page(records: list[CellRecord]) -> Page:
    """Return the curve of every warm start."""
    groups = _groups(records)
    body = [
        f"C-CEM on the hard failure: so many random episodes, then {LATER} of its own, one at a time; the model goes "
        "on learning after each (`mbrl-hdp train experiment=cartpole_hard_c_cem dynamics=auto budget.warm_episodes=5 "
        f"budget.episodes_per_epoch=1 budget.num_epochs={LATER + 1} budget.eval_every=1`). With `dynamics=auto` the "
        "data chooses the transition model; the task names the column that is an angle. Network: the default of "
        "`env=cartpole_hard`, as in the paper. The paper has no such "
        f"figure; its C-CEM takes {PAPER_EPISODES} episodes. {LEGEND} At once: the first evaluation (10 episodes), "
        f"after random episodes alone. To {LEVEL:g}: real episodes in all, the random ones included, after which an "
        "evaluation first had it, by seed.",
        table(
            ("model", "random episodes", "return at once", "return at the end", f"to {LEVEL:g}", "contexts at the end"),
            [_row(model, number, group) for (model, number), group in groups.items()],
        ),
    ]
    return Page("\n\n".join(body), [_gate(groups)], _drawings(groups))


def _groups(records: list[CellRecord]) -> dict[tuple[str, int], list[CellRecord]]:
    found: dict[tuple[str, int], list[CellRecord]] = {}
    for record in records:
        found.setdefault((record.settings["model"], record.settings["warm_episodes"]), []).append(record)
    return {key: found[key] for key in sorted(found)}


def _row(model: str, number: int, group: list[CellRecord]) -> list[str]:
    soon = [episodes_to(record.results["curve"], LEVEL) for record in group]
    first = mean(record.results["curve"][0][1] for record in group)
    return [
        model,
        str(number),
        f"{first:.2f}, n={len(group)}x10",
        return_cell(returns_of(group)),
        ", ".join("never" if each is None else str(each) for each in soon),
        ", ".join(str(record.results["summary"]["num_contexts"]) for record in group),
    ]


def _gate(groups: dict[tuple[str, int], list[CellRecord]]) -> Gate:
    """Require one short warm start with which every seed is good enough soon enough."""
    words, is_met = [], False
    short = {number: group for (model, number), group in groups.items() if model == CHOSEN and number <= WITHIN}
    for number, group in short.items():
        soon = [episodes_to(record.results["curve"], LEVEL) for record in group]
        good = sum(each is not None and each <= WITHIN for each in soon)
        words.append(f"{number}: {good} of {len(group)}")
        is_met = is_met or good == len(group) >= len(SEEDS)
    is_whole = {number for number in WARM if number <= WITHIN} <= set(short) and all(
        len(group) >= len(SEEDS) for group in short.values()
    )
    name = f"{LEVEL:g} within {WITHIN} real episodes in all on {len(SEEDS)} of {len(SEEDS)} seeds, for some warm start"
    return Gate(name, "; ".join(words) or "none run", is_met if is_whole or is_met else None)


def _drawings(groups: dict[tuple[str, int], list[CellRecord]]) -> list[Drawing]:
    labels, level = ("real episodes", "return of an evaluation"), ((f"{LEVEL:g}", LEVEL),)
    names = {key: f"{key[1]} random episodes{', network' if key[0] == NETWORK else ''}" for key in groups}
    means = [(names[key], mean_curve(group)) for key, group in groups.items()]
    every = [
        (names[key], [(point[0], point[1]) for point in record.results["curve"]])
        for key, group in groups.items()
        for record in group
    ]
    panels = [
        CurvePanel("every seed", *labels, every, level, has_log_x=True),
        CurvePanel("mean over seeds", *labels, means, level, has_log_x=True),
    ]
    return [Drawing("sample_efficiency", "Return against real episodes, by the length of the warm start.", panels)]


def headline(records: list[CellRecord]) -> str:
    """Return the real episodes to the level by warm start, worst seed; the paper has no such figure."""
    found = []
    for (model, number), group in _groups(records).items():
        soon = [episodes_to(record.results["curve"], LEVEL) for record in group]
        reached = [each for each in soon if each is not None]
        name = f"{number}{', network' if model == NETWORK else ''}"
        found.append(f"{name}: {max(reached) if len(reached) == len(soon) else 'never on some seed'}")
    return (
        f"real episodes to {LEVEL:g} (worst seed) by random ones: {', '.join(found)}; the paper takes {PAPER_EPISODES}"
    )


TITLE = "How many real episodes C-CEM needs"
STUDY = Study("sample_efficiency", TITLE, cells, run, page, resolve, headline=headline)
