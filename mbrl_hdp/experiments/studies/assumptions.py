"""`nonmarkov` and `statedependent`: are contexts found that are no Markov chain (appendix, broken assumptions)?"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mbrl_hdp.experiments.studies.branches import run_cell
from mbrl_hdp.experiments.studies.cartpole_fit import fit_settings, resolve
from mbrl_hdp.experiments.studies.drawings import Drawing, chain_panel, course_panel
from mbrl_hdp.experiments.studies.robust import EACH
from mbrl_hdp.experiments.studies.study import CellRecord, Gate, Page, Settings, Study, table_of

SIZE = 10
SEEDS = range(100, 110)
LEAST = 0.95
_WORDS = {
    "nonmarkov": (
        "The next context depends on the one before the current. Three contexts (actuation 1, -1, 0.3), because with "
        "two the one before the current is always the other; the matrix is ours, the paper states none "
        "(`env=cartpole_non_markovian`)."
    ),
    "statedependent": (
        "The context is a function of the cart's position, in stripes of 0.1 m (`env=cartpole_stripes`, actuation 1 "
        "and -1)."
    ),
}


def study(name: str, title: str, env: str) -> Study:
    """Return the study of one broken assumption."""

    def cells(seeds: Sequence[int] | None, is_quick: bool) -> list[Settings]:
        size, own = (3, range(100, 101)) if is_quick else (SIZE, SEEDS)
        return [fit_settings(size, seed, is_quick, env=env) for seed in seeds or own]

    return Study(name, title, cells, run_cell, _page_of(name), resolve, headline=headline)


def headline(records: list[CellRecord]) -> str:
    """Return the accuracy; the paper has none."""
    accuracy = [record.results["accuracy"] for record in records]
    return f"least accuracy {min(accuracy):.3f} of {len(accuracy)} seeds; the paper shows one episode"


def _page_of(name: str) -> Callable[[list[CellRecord]], Page]:
    def page(records: list[CellRecord]) -> Page:
        accuracy = [record.results["accuracy"] for record in records]
        body = (
            f"{_WORDS[name]} `fit` with its defaults, dynamics=cartpole, K={SIZE}, 500 trajectories of 100 random "
            "actions, scored on 100 held-out ones. The chain itself is wrong by construction; what matters is whether "
            "the contexts of the steps are found. The paper shows one episode.\n\n"
        )
        is_met = min(accuracy) > LEAST if len(records) >= len(SEEDS) else None
        gate = Gate(f"accuracy above {LEAST} on every seed", f"least {min(accuracy):.4f}, {len(records)} seeds", is_met)
        first = records[0]
        words = f"seed {first.settings['seed']}"
        panels = [chain_panel(f"learned chain, {words}", first.results)]
        course = [course_panel(f"a held-out episode, {words}", first.results)]
        drawings = [
            Drawing(f"{name}_chain", "The learned chain over all slots.", panels),
            Drawing(f"{name}_course", "True and learned contexts of a held-out episode.", course),
        ]
        return Page(body + table_of(records, EACH), [gate], drawings)

    return page


NONMARKOV = study("nonmarkov", "Contexts that depend on the one before", "cartpole_non_markovian")
STATEDEPENDENT = study("statedependent", "Contexts that depend on the position", "cartpole_stripes")
