"""`durations_control`: what does it earn a planner to know how long a context has lasted? Whole runs of C-CEM."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from typing import Any

from mbrl_hdp.experiments.studies.returns_table import LEGEND, SEEDS, group_of, name_of, return_cell, returns_of
from mbrl_hdp.experiments.studies.study import CellRecord, Gate, Page, Settings, Study, table
from mbrl_hdp.experiments.studies.train_cell import SMOKE_OVERRIDES, resolve, run

AGENT, PHASES = "C-CEM", "durations"
PLACES: dict[str, dict[str, Any]] = {
    "hard": {"failure": "hard"},
    "drone": {"task": "drone"},
    "intersection": {"task": "intersection"},
}
# Smallest mean return over the seeds, and what the exact filter that knows the counter has (docs/ceilings.md).
WANTED = {"hard": 88.3, "drone": 30.5, "intersection": 565.0}
CEILINGS = {"hard": "88.45", "drone": "31.13", "intersection": "566.38"}


def cells(seeds: Sequence[int] | None, is_quick: bool) -> list[Settings]:
    """Return the runs that know durations, then the presets as they are."""
    if is_quick:
        small = {"agent": AGENT, "failure": "hard", "profile": "smoke", "variant": PHASES}
        return [small | {"overrides": [*SMOKE_OVERRIDES, "duration=minimum"], "seed": seed} for seed in seeds or (100,)]
    kinds: list[Settings] = [place | {"variant": PHASES, "overrides": ["duration=auto"]} for place in PLACES.values()]
    kinds += PLACES.values()
    return [
        {"agent": AGENT, "profile": "fast"} | kind | {"seed": seed} for kind in kinds for seed in seeds or SEEDS
    ]  # fmt: skip


def page(records: list[CellRecord]) -> Page:
    """Return the returns with and without durations, and every run."""
    names = {
        f"{AGENT}, {PHASES}": "`duration=auto`",
        AGENT: "the presets (cells of [table2](table2.md) and [table3](table3.md))",
    }
    rows = [[name, *(_returns(records, name, place) for place in PLACES), words] for name, words in names.items()]
    ceiling = ["ceiling", *CEILINGS.values(), "exact filter that knows the counter (docs/ceilings.md)"]
    body = [
        f"{LEGEND} Evaluations run on the real engines. `mbrl-hdp train experiment=cartpole_hard_c_cem seed=100 "
        "duration=auto` is the first cell. The drone's planner holds the most likely context "
        "over a plan; which one that is does not depend on how long it has lasted.",
        table(("agent", *PLACES, "settings"), [*rows, ceiling]),
        "Accuracy: share of the steps after which the filter names the context that acted. Heading error: mean in the "
        "second half of an episode, rad. **Why the intersection may fall short:** the paper's reward does not see the "
        "speed. In some runs the car comes to rest after the turn (seed 100; rollout.gif in the folder of `mbrl-hdp "
        "train experiment=intersection_c_cem seed=100 duration=auto`). No steering turns a car at rest, so what is "
        "left of its heading error stays, about twenty times that of the other runs, and knowing the context does not "
        "help (`truth_fed` of the record).",
        table(
            ("task", "agent", "seed", "return", "std", "worst", "accuracy", "heading error", "minutes"),
            [_each(record) for record in records],
        ),
    ]
    return Page("\n\n".join(body), _gates(records))


def _returns(records: list[CellRecord], name: str, place: str) -> str:
    return return_cell(returns_of(group_of(records, name, place)))


def _each(record: CellRecord) -> list[str]:
    found, settings = record.results["summary"], record.settings
    accuracy, heading = found["context_accuracy"], found.get("scores", {}).get("heading_error")
    return [
        str(settings.get("failure") or settings["task"]), name_of(record), record.seed, f"{found['return_mean']:.2f}",
        f"{found['return_std']:.2f}", f"{min(found['returns']):.1f}", "-" if accuracy is None else f"{accuracy:.3f}",
        "" if heading is None else f"{heading:.3f}", f"{found['wall_time_s'] / 60:.1f}",
    ]  # fmt: skip


def _gates(records: list[CellRecord]) -> list[Gate]:
    gates = []
    for place, least in WANTED.items():
        group = returns_of(group_of(records, f"{AGENT}, {PHASES}", place))
        if group:
            found = mean(float(own.mean()) for own in group)
            is_met = found >= least if len(group) >= len(SEEDS) else None
            gates.append(Gate(f"{place}: at least {least:g}", f"{found:.2f}, {len(group)} seeds", is_met))
    return gates


TITLE = "Control that knows how long contexts last"
STUDY = Study("durations_control", TITLE, cells, run, page, resolve, reads=("table2", "table3"))
