"""`scaling`: how does the time of the structure search grow with transitions and with contexts?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mbrl_hdp.experiments.studies.scaling_cell import run_cell
from mbrl_hdp.experiments.studies.study import CellRecord, Gate, Page, Settings, Study, table_of

SEED = 100
EPISODES = (100, 1000, 10_000)
CONTEXTS = (2, 4, 8)
DIM = 6
# Largest exponents of growth, with room for the scatter of single measurements.
MOST_BY_TRANSITIONS = 1.1
MOST_BY_CONTEXTS = 2.1


def cells(seeds: Sequence[int] | None, is_quick: bool) -> list[Settings]:
    """Return pendulums with 10^4 to 10^6 transitions, then linear systems with 2 to 8 contexts."""
    episodes, contexts = ((3, 4), (2,)) if is_quick else (EPISODES, CONTEXTS)
    plan = []
    for seed in seeds or (SEED,):
        plan += [_settings("pendulum", seed, count) for count in episodes]
        plan += [
            _settings(f"linear_{DIM}d", seed, episodes[0]) | {"dim": DIM, "num_contexts": number} for number in contexts
        ]
    return plan


def _settings(system: str, seed: int, num_episodes: int) -> Settings:
    return {"system": system, "seed": seed, "num_episodes": num_episodes}


def resolve(settings: Settings) -> Settings:
    """Return a cell's settings: nothing is left to presets."""
    return dict(settings)


def page(records: list[CellRecord]) -> Page:
    """Show every cell and the exponents of growth."""
    columns = {
        "system": lambda record: record.settings["system"],
        "seed": lambda record: record.seed,
        "transitions": lambda record: f"{record.results['num_transitions']:,}",
        "found/true": lambda record: f"{record.results['found']}/{record.results['true']}",
        "accuracy": lambda record: f"{record.results['accuracy']:.4f}",
        "CPU s": lambda record: f"{record.results['cpu_s']:.1f}",
        "ms a transition": lambda r: f"{1e3 * r.results['cpu_s'] / r.results['num_transitions']:.3f}",
    }
    body = (
        "`find_contexts` with defaults on a pendulum whose motor is reversed, with up to 10,000 episodes of 100 steps, "
        f"and on switching linear systems in {DIM} dimensions with 2 to 8 contexts (100 episodes). Of more than 12,000 "
        "transitions a part is searched; all are labelled. Seconds are processor time of one core.\n\n"
    )
    return Page(body + table_of(records, columns), _gates(records))


def _gates(records: list[CellRecord]) -> list[Gate]:
    large = [record for record in records if "num_contexts" not in record.settings]
    many = [record for record in records if "num_contexts" in record.settings]
    sizes = [record.results["num_transitions"] for record in large]
    numbers = [record.results["found"] for record in many]
    gates = []
    for name, x, group, wanted, most in (
        ("growth at most linear in transitions", sizes, large, len(EPISODES), MOST_BY_TRANSITIONS),
        ("growth at most quadratic in contexts found", numbers, many, len(CONTEXTS), MOST_BY_CONTEXTS),
    ):
        if len(set(x)) > 1:
            power = exponent(x, [record.results["cpu_s"] for record in group])
            is_met = power <= most if len(set(x)) >= wanted else None
            gates.append(Gate(name, f"seconds ~ n^{power:.2f}", is_met))
    return gates


def exponent(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """Return p of the best fit seconds ~ size^p (least squares in logarithms)."""
    return float(np.polyfit(np.log(sizes), np.log(np.maximum(seconds, 0.1)), 1)[0])


STUDY = Study("scaling", "How the structure search scales", cells, run_cell, page, resolve)
