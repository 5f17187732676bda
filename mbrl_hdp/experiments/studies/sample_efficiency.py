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
LATER = 15
LEVEL, WITHIN = 85.0, 10
# The paper's C-CEM: 100 random episodes, then ten epochs of 20; its table has the return after all of them.
PAPER_EPISODES = 300


def cells(seeds: Sequence[int] | None, is_quick: bool) -> list[Settings]:
    """Return every warm start, short ones first, seed by seed."""
    warm, profile = ((3,), "smoke") if is_quick else (WARM, "fast")
    return [_cell(number, seed, profile) for seed in seeds or (SEEDS[:1] if is_quick else SEEDS) for number in warm]


def _cell(warm: int, seed: int, profile: str) -> Settings:
    overrides = [f"budget.warm_episodes={warm}", "budget.episodes_per_epoch=1"]
    overrides += (
        list(SMOKE_OVERRIDES) if profile == "smoke" else [f"budget.num_epochs={LATER + 1}", "budget.eval_every=1"]
    )
    name = {"agent": "C-CEM", "failure": "hard", "warm_episodes": warm, "profile": profile, "seed": seed}
    return name | {"overrides": overrides}


def page(records: list[CellRecord]) -> Page:
    """Return the curve of every warm start."""
    warm = sorted({record.settings["warm_episodes"] for record in records})
    groups = {number: [r for r in records if r.settings["warm_episodes"] == number] for number in warm}
    body = [
        f"C-CEM on the hard failure: so many random episodes, then {LATER} of its own, one at a time; the model goes "
        "on learning after each (`mbrl-hdp train experiment=cartpole_hard_c_cem budget.warm_episodes=5 "
        f"budget.episodes_per_epoch=1 budget.num_epochs={LATER + 1} budget.eval_every=1`). The paper has no such "
        f"figure; its C-CEM takes {PAPER_EPISODES} episodes. {LEGEND} At once: the first evaluation (10 episodes), "
        f"after random episodes alone. To {LEVEL:g}: real episodes in all, the random ones included, after which an "
        "evaluation first had it, by seed.",
        table(
            ("random episodes", "return at once", "return at the end", f"to {LEVEL:g}", "contexts at the end"),
            [_row(number, group) for number, group in groups.items()],
        ),
    ]
    return Page("\n\n".join(body), [_gate(groups)], _drawings(groups))


def _row(number: int, group: list[CellRecord]) -> list[str]:
    soon = [episodes_to(record.results["curve"], LEVEL) for record in group]
    first = mean(record.results["curve"][0][1] for record in group)
    return [
        str(number),
        f"{first:.2f}, n={len(group)}x10",
        return_cell(returns_of(group)),
        ", ".join("never" if each is None else str(each) for each in soon),
        ", ".join(str(record.results["summary"]["num_contexts"]) for record in group),
    ]


def _gate(groups: dict[int, list[CellRecord]]) -> Gate:
    """Require one short warm start with which every seed is good enough soon enough."""
    words, is_met = [], False
    short = {number: group for number, group in groups.items() if number <= WITHIN}
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


def _drawings(groups: dict[int, list[CellRecord]]) -> list[Drawing]:
    labels, level = ("real episodes", "return of an evaluation"), ((f"{LEVEL:g}", LEVEL),)
    means = [(f"{number} random episodes", mean_curve(group)) for number, group in groups.items()]
    every = [
        (f"{number} random episodes", [(point[0], point[1]) for point in record.results["curve"]])
        for number, group in groups.items()
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
    for number in sorted({record.settings["warm_episodes"] for record in records}):
        group = [record for record in records if record.settings["warm_episodes"] == number]
        soon = [episodes_to(record.results["curve"], LEVEL) for record in group]
        reached = [each for each in soon if each is not None]
        found.append(f"{number}: {max(reached) if len(reached) == len(soon) else 'never on some seed'}")
    return (
        f"real episodes to {LEVEL:g} (worst seed) by random ones: {', '.join(found)}; the paper takes {PAPER_EPISODES}"
    )


TITLE = "How many real episodes C-CEM needs"
STUDY = Study("sample_efficiency", TITLE, cells, run, page, resolve, headline=headline)
