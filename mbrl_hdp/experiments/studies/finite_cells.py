"""A cell of `theorem3`: solve small C-MDPs exactly, with the context known and with a belief."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mbrl_hdp.control.finite import FiniteCmdp, history_value, known_context_values, performance_gap
from mbrl_hdp.experiments.studies.finite_problems import FAMILIES, guessing_problem, revealed_problem, shelter_problem

if TYPE_CHECKING:
    from mbrl_hdp.experiments.studies.study import Results, Settings

_WITH_HISTORIES = ("random", "sticky")
_COLUMNS = (
    *("gap", "switch_bound", "misidentified_steps", "all_steps", "switch_bound_known"),
    *("num_switches", "num_misidentified"),
)


def run(settings: Settings) -> Results:
    """Solve the problems of one cell."""
    results: dict[str, list[float]] = {
        name: [] for name in (*_COLUMNS, "undiscounted_bound", "history_error", "is_clear")
    }
    for number in range(settings["num_problems"]):
        problem = _problem(settings, number)
        found = performance_gap(problem)
        for name in _COLUMNS:
            results[name].append(float(getattr(found, name)))
        results["undiscounted_bound"].append(performance_gap(problem, loss_discount=1.0).switch_bound)
        if settings["family"] == "revealed":
            results["is_clear"].append(float(is_clear(problem, settings["switch"])))
        if settings["family"] in _WITH_HISTORIES:
            results["history_error"].append(abs(history_value(problem) - found.belief_value))
    return results


def is_clear(problem: FiniteCmdp, switch: float) -> bool:
    """Return whether a revealed problem is certain to have no hedging, so that gap and bound are equal.

    Let the best act of Q_gt be better than the second by at least `margin`, and any two acts differ by `spread` at
    most. Acting by the last context loses at most `spread` at each switch. So after context z the act of Q_gt(., z) is
    also the belief policy's if (1 - switch) margin > switch spread (1 + discount + ... + discount^(H-1)).
    """
    values = np.sort(known_context_values(problem), axis=-1)
    margin = float((values[..., -1] - values[..., -2]).min())
    spread = float((values[..., -1] - values[..., 0]).max())
    steps = sum(problem.discount**step for step in range(problem.horizon))
    return (1.0 - switch) * margin > switch * spread * steps


def _problem(settings: Settings, number: int) -> FiniteCmdp:
    rng = np.random.default_rng([settings["seed"], number])
    if settings["family"] == "revealed":
        return revealed_problem(rng, settings["switch"])
    if settings["family"] == "guessing":
        return guessing_problem(settings["switch"])
    return shelter_problem() if settings["family"] == "shelter" else FAMILIES[settings["family"]](rng)
