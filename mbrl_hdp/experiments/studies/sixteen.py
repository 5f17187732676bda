"""`sixteen`: sixteen contexts on a ring; which of them does the model tell apart (appendix, larger number)?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from mbrl_hdp.experiments.studies.branches import run_cell
from mbrl_hdp.experiments.studies.cartpole_fit import fit_settings, resolve
from mbrl_hdp.experiments.studies.drawings import Drawing, course_panel
from mbrl_hdp.experiments.studies.sets import accuracy_by_group, learned_sets, sets_in_words
from mbrl_hdp.experiments.studies.study import CellRecord, Gate, Page, Settings, Study, table_of

SIZE = 20
SEEDS = range(100, 110)
NAMES = [f"C{number}" for number in range(16)]
# Gravity (9.82 or 50) and mass of the cart (.5 or 5) of C0 to C15; friction and largest force differ within a group.
GROUPS = [0, 0, 1, 1, 2, 2, 3, 3] * 2
GROUP_NAMES = ("weak, light", "weak, heavy", "strong, light", "strong, heavy")
PAPER = "{C1, C9}, {C6, C7, C14, C15}, {C4, C5, C12, C13}, {C2, C3, C10, C11}, {C0, C4, C8}"
LEAST_GROUP = 0.9


def cells(seeds: Sequence[int] | None, is_quick: bool) -> list[Settings]:
    """Return one fit a seed."""
    size, own = (5, range(100, 101)) if is_quick else (SIZE, SEEDS)
    return [fit_settings(size, seed, is_quick, env="cartpole_sixteen") for seed in seeds or own]


def page(records: list[CellRecord]) -> Page:
    """Print the learned sets beside the paper's, and how well the groups are separated."""
    columns = {
        "seed": lambda record: record.seed,
        "contexts kept": lambda record: str(record.results["num_contexts"]),
        "sets": lambda record: str(len(learned_sets(record.results["confusion"]))),
        "learned sets": lambda record: sets_in_words(record.results["confusion"], NAMES),
        **{name: _group_column(number) for number, name in enumerate(GROUP_NAMES)},
    }
    body = (
        "Friction {0.1, 0}, gravity {9.82, 50}, mass of the cart {.5, 5}, largest force {40, 20}: C0 to C15 in the "
        "paper's order, on a ring (`env=cartpole_sixteen`), K=20, 500 trajectories of 100 random actions, `fit` with "
        "its defaults. The last columns: share of the steps of a group (gravity, cart) whose learned context stands "
        f"for that group.\n\nThe paper's sets: {PAPER}. It does not separate friction, and the largest force only for "
        "weak gravity and a light cart.\n\n"
    )
    return Page(body + table_of(records, columns), _gates(records), _drawings(records))


def _shares(record: CellRecord) -> list[float]:
    return accuracy_by_group(record.results["confusion"], GROUPS)


def _group_column(number: int) -> Callable[[CellRecord], str]:
    return lambda record: f"{_shares(record)[number]:.3f}"


def _gates(records: list[CellRecord]) -> list[Gate]:
    least = min(share for record in records for share in _shares(record))
    is_met = least >= LEAST_GROUP if len(records) >= len(SEEDS) else None
    return [Gate(f"every group right in at least {LEAST_GROUP:.0%} of its steps", f"least {least:.3f}", is_met)]


def _drawings(records: list[CellRecord]) -> list[Drawing]:
    first = records[0]
    panel = course_panel(f"seed {first.settings['seed']}", first.results)
    return [Drawing("sixteen_course", "True and learned contexts of a held-out episode.", [panel])]


def headline(records: list[CellRecord]) -> str:
    """Return the number of sets beside the paper's, and how well the groups are separated."""
    sets = [len(learned_sets(record.results["confusion"])) for record in records]
    least = min(share for record in records for share in _shares(record))
    return f"sets (median) {median(sets):g} / {PAPER.count('{')}; each group right in {least:.3f} of its steps or more"


STUDY = Study("sixteen", "Sixteen contexts", cells, run_cell, page, resolve, headline=headline)
