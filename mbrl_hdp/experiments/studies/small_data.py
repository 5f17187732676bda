"""`small_data`: the fit of `robust` with a fifth of its data."""

from __future__ import annotations

from collections.abc import Sequence

from mbrl_hdp.experiments.studies.branches import run_cell
from mbrl_hdp.experiments.studies.cartpole_fit import fit_settings, resolve
from mbrl_hdp.experiments.studies.robust import COLUMNS, SUCCESS, row
from mbrl_hdp.experiments.studies.study import CellRecord, Page, Settings, Study, table

SIZES = (5, 10)
SEEDS = range(100, 105)
NUM_TRAJECTORIES = 100


def cells(seeds: Sequence[int] | None, is_quick: bool) -> list[Settings]:
    """Return the fits on 100 trajectories."""
    sizes, own = ((3,), range(100, 101)) if is_quick else (SIZES, SEEDS)
    return [
        fit_settings(size, seed, is_quick, num_trajectories=NUM_TRAJECTORIES) for size in sizes for seed in seeds or own
    ]


def page(records: list[CellRecord]) -> Page:
    """Report; nothing is asked for."""
    sizes = sorted({record.settings["max_contexts"] for record in records})
    groups = [[record for record in records if record.settings["max_contexts"] == size] for size in sizes]
    body = (
        f"As `robust`, with {NUM_TRAJECTORIES} trajectories instead of 500; a success has accuracy above {SUCCESS} and "
        "exactly two contexts.\n\n"
    )
    return Page(body + table(COLUMNS, [row(str(k), group) for k, group in zip(sizes, groups, strict=True)]), [])


STUDY = Study("small_data", "A hundred trajectories", cells, run_cell, page, resolve)
