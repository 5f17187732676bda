"""`raw_angles`: are the contexts of cart-pole hard found with a raw, unwrapped angle and `dynamics=auto`?"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from mbrl_hdp.experiments.studies.cartpole_fit import fit_settings, resolve, run_fit
from mbrl_hdp.experiments.studies.robust import EACH, NO_HALVES
from mbrl_hdp.experiments.studies.study import CellRecord, Gate, Page, Settings, Study, table_of

SEEDS = range(100, 120)
MAX_CONTEXTS = 10
ACCURACY = 0.98


def cells(seeds: Sequence[int] | None, is_quick: bool) -> list[Settings]:
    """Return the fits of `robust` with at most ten contexts, without the transition model made for cart-poles."""
    own = SEEDS[:1] if is_quick else SEEDS
    return [fit_settings(MAX_CONTEXTS, seed, is_quick, dynamics={"name": "auto"}) for seed in seeds or own]


def is_success(record: CellRecord) -> bool:
    """Whether exactly two contexts were found and the labels are right."""
    return bool(record.results["num_contexts"] == 2 and record.results["accuracy"] >= ACCURACY)


def page(records: list[CellRecord]) -> Page:
    """Show every fit."""
    seconds = median(record.results["fit_time_s"] for record in records)
    body = (
        "The data of [robust](robust.md), 500 trajectories of 100 random actions, as a log that nobody prepared: the "
        "angle is a plain number that grows beyond a turn, nothing says that it is one, and `dynamics=auto` chooses "
        f"the transition model; at most {MAX_CONTEXTS} contexts. Accuracy: smoothed and aligned, on 100 trajectories "
        f"of another seed. Median time of a fit: {seconds:.0f} s on a shared machine. {NO_HALVES}\n\n"
    )
    each = EACH | {"dynamics": _taken, "s": lambda record: f"{record.results['fit_time_s']:.0f}"}
    good = sum(map(is_success, records))
    is_met = good == len(records) if len(records) >= len(SEEDS) or good < len(records) else None
    words = f"two contexts, accuracy at least {ACCURACY}, {len(SEEDS)} of {len(SEEDS)} seeds"
    return Page(body + table_of(records, each), [Gate(words, f"{good} of {len(records)} run", is_met)])


def _taken(record: CellRecord) -> str:
    return next(f"{run['dynamics']}, {run['schedule']}" for run in record.results["runs"] if run["taken"])


STUDY = Study("raw_angles", "Cart-pole hard with a raw angle and dynamics=auto", cells, run_fit, page, resolve)
