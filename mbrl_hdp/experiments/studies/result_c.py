"""`resultC`: learning curves of all agents, and what GPMM and RNN-PPO take for the context (Figure of Result C)."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

import numpy as np

from mbrl_hdp.experiments.studies import baselines, table2
from mbrl_hdp.experiments.studies.drawings import BeliefPanel, CoursePanel, CurvePanel, Drawing, Panel
from mbrl_hdp.experiments.studies.returns_table import (
    LEGEND,
    SEEDS,
    episodes_to,
    group_of,
    improvement_table,
    name_of,
    return_cell,
    returns_of,
)
from mbrl_hdp.experiments.studies.study import CellRecord, Gate, Page, Settings, Study, table
from mbrl_hdp.experiments.studies.train_cell import resolve, run
from mbrl_hdp.inference.scoring import align

PLACE = "hard"
# Agents of the paper's learning curves.
PAPER_AGENTS = ("FI-SAC", "C-SAC", "C-CEM")
# The other failure on which the paper shows GPMM's contexts.
COURSES = (("GPMM", PLACE), ("GPMM", "soft .5"), ("RNN-PPO", PLACE))
LEVEL = baselines.LEVEL
MOST_LOST = 2.0

Point = tuple[float, float]


def cells(seeds: Sequence[int] | None, is_quick: bool) -> list[Settings]:
    """Return the cells of `table2` and `baselines` on the hard failure, and GPMM's on soft .5."""
    shown = [cell for cell in table2.cells(seeds, is_quick) if cell["profile"] != "paper"]
    return [cell for cell in shown if cell["failure"] == PLACE or (cell["agent"], cell["failure"]) in COURSES]


def page(records: list[CellRecord]) -> Page:
    """Return curves, statistics and time courses."""
    hard = [record for record in records if record.settings["failure"] == PLACE]
    names = list(dict.fromkeys(map(name_of, hard)))
    body = [
        f"The hard failure (chi = -1), cells of [table2](table2.md) and [baselines](baselines.md). {LEGEND} Episodes: "
        f"real ones in all, and those after which an evaluation (10 episodes) first had {LEVEL:g}, by seed.",
        table(("agent", "return", "real episodes", f"to {LEVEL:g}"), [_row(name, hard) for name in names]),
        improvement_table(hard, PAPER_AGENTS[::-1], [PLACE]),
        "What the agents take for the context, in the first evaluation episode of a seed. The paper: GPMM adapts too "
        "slowly for contexts that change within an episode, and the output of the RNN is an average signal, not a "
        "belief. Accuracy: steps whose label is right after the best matching of labels to contexts, which is at "
        "least the share of the most frequent context. Movement: standard deviation of the belief within the episode; "
        "a belief that follows two equally likely contexts has about .5, a constant one 0.",
        table(
            ("agent", "failure", "seed", "labels used", "accuracy", "most frequent context", "mean belief", "movement"),
            [row for record in _with_course(records) for row in [_course_row(record)]],
        ),
    ]
    return Page("\n\n".join(body), _gates(hard), [*_curve_drawing(hard, names), *_course_drawing(records)])


def _row(name: str, records: list[CellRecord]) -> list[str]:
    group = group_of(records, name, PLACE)
    soon = [episodes_to(record.results["curve"], LEVEL) for record in group]
    total = sorted({record.results["summary"]["num_real_episodes"] for record in group})
    words = ", ".join("never" if each is None else str(each) for each in soon)
    return [name, return_cell(returns_of(group)), ", ".join(map(str, total)), words]


def mean_curve(records: list[CellRecord]) -> list[Point]:
    """Return the mean over seeds of the learning curves, at the numbers of episodes that all of them have."""
    curves = [{point[0]: point[1] for point in record.results["curve"]} for record in records]
    shared = sorted(set.intersection(*(set(curve) for curve in curves))) if curves else []
    return [(episodes, mean(curve[episodes] for curve in curves)) for episodes in shared]


def _curve_drawing(records: list[CellRecord], names: list[str]) -> list[Drawing]:
    """Draw the paper's three agents seed by seed, and the mean curves of all agents over a logarithmic axis."""
    own = [
        (name, [(point[0], point[1]) for point in record.results["curve"]])
        for name in names
        for record in group_of(records, name, PLACE)
        if name in PAPER_AGENTS and record.results["curve"]
    ]
    means = [(name, curve) for name in names if (curve := mean_curve(group_of(records, name, PLACE)))]
    labels = ("real episodes", "return of an evaluation")
    level = ((f"{LEVEL:g}", LEVEL),)
    panels = [CurvePanel("the paper's agents, every seed", *labels, own, level)] if own else []
    panels += [CurvePanel("all agents, mean over seeds", *labels, means, level, has_log_x=True)] if means else []
    caption = "Learning curves on the hard failure (the paper's Figure of Result C, left, has FI-SAC, C-SAC and C-CEM)."
    return [Drawing("resultC_curves", caption, panels)] if panels else []


def _with_course(records: list[CellRecord]) -> list[CellRecord]:
    """Return the cells of `COURSES` that hold a time course, first seeds first."""
    return [
        record
        for agent, place in COURSES
        for record in group_of(records, agent, place)
        if record.results.get("course") is not None
    ]


def _course_row(record: CellRecord) -> list[str]:
    course = record.results["course"]
    truth, labels = np.array(course["truth"]), np.array(course["labels"])
    frequent = np.bincount(truth).max() / len(truth)
    belief = None if course["belief"] is None else np.array(course["belief"])
    return [
        name_of(record), record.settings["failure"], record.seed, str(len(set(course["labels"]))),
        f"{align(labels[None], truth[None]).accuracy:.3f}", f"{frequent:.3f}",
        "-" if belief is None else ", ".join(f"{value:.2f}" for value in belief.mean(0)),
        "-" if belief is None else f"{belief.std(0).mean():.3f}",
    ]  # fmt: skip


def _course_drawing(records: list[CellRecord]) -> list[Drawing]:
    """Draw the first seed of every time course, as in the paper."""
    panels: list[Panel] = []
    for agent, place in COURSES:
        found = [record for record in _with_course(records) if (record.settings["agent"], record.settings["failure"])
                 == (agent, place)]  # fmt: skip
        if found:
            panels.append(_course_panel(found[0]))
    caption = "Contexts of GPMM and beliefs of RNN-PPO beside the truth, first evaluation episode."
    return [Drawing("resultC_courses", caption, panels)] if panels else []


def _course_panel(record: CellRecord) -> Panel:
    course = record.results["course"]
    title = f"{name_of(record)}, {record.settings['failure']}, seed {record.settings['seed']}"
    if course["belief"] is not None:
        return BeliefPanel(f"{title}: belief", course["truth"], course["belief"])
    labels, truth = (np.array(course[name])[None] for name in ("labels", "truth"))
    return CoursePanel(title, course["truth"], course["labels"], align(labels, truth).to_true.tolist())


def _gates(records: list[CellRecord]) -> list[Gate]:
    groups = {name: group_of(records, name, PLACE) for name in PAPER_AGENTS}
    if not all(groups.values()):
        return []
    is_whole = all(len(group) >= len(SEEDS) for group in groups.values())
    means = {name: mean(r.results["summary"]["return_mean"] for r in group) for name, group in groups.items()}
    lost = means["FI-SAC"] - means["C-SAC"]
    slow, soon = (_most_episodes(groups[name]) for name in ("C-SAC", "C-CEM"))
    found = (
        (f"C-SAC loses at most {MOST_LOST:g} against FI-SAC", f"{lost:+.2f}", lost <= MOST_LOST),
        (f"C-CEM is at {LEVEL:g} after fewer real episodes than C-SAC (mean)", f"{soon:g} against {slow:g}",
         soon < slow),
    )  # fmt: skip
    return [Gate(name, words, is_met if is_whole else None) for name, words, is_met in found]


def _most_episodes(group: list[CellRecord]) -> float:
    """Return the mean number of real episodes to the level; infinite if a seed never got there."""
    found = [episodes_to(record.results["curve"], LEVEL) for record in group]
    return float("inf") if None in found else mean(each for each in found if each is not None)


def headline(records: list[CellRecord]) -> str:
    """Return the real episodes that every agent needs; the paper shows curves."""
    hard = [record for record in records if record.settings["failure"] == PLACE]
    found = []
    for name in dict.fromkeys(map(name_of, hard)):
        needed = _most_episodes(group_of(hard, name, PLACE))
        found.append(f"{name} {'never on some seed' if needed == float('inf') else f'{needed:.0f}'}")
    return f"mean real episodes to {LEVEL:g} on hard: {', '.join(found)}"


TITLE = "Result C: learning curves, and what the baselines believe"
STUDY = Study("resultC", TITLE, cells, run, page, resolve, reads=("table2", "baselines"), headline=headline)
