"""Run the cells of a study where there are workers, within a budget of time; the records are written here only."""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from mbrl_hdp.errors import ConfigError
from mbrl_hdp.experiments.studies import load_study
from mbrl_hdp.experiments.studies.records import append_record, last_records, records_path
from mbrl_hdp.experiments.studies.study import CellRecord, Settings, Study, cell_key, cell_words
from mbrl_hdp.runtime import configure
from mbrl_hdp.workers import ThisProcess, Workers, run_side_by_side

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_FEW = 5


class TimeBudget:
    """What is left of the time that somebody has.

    Attributes:
        seconds: all of it, from now on; None if it does not matter.
    """

    def __init__(self, seconds: float | None = None) -> None:
        self.seconds = seconds
        self._ends = None if seconds is None else time.monotonic() + seconds

    def holds(self, seconds: float) -> bool:
        """Return whether work that takes this long ends in time."""
        return self._ends is None or time.monotonic() + seconds <= self._ends


def seconds_of(words: str | None) -> float | None:
    """Read a time such as 90m, 2h or 45s.

    Example:
        >>> seconds_of("1.5h")
        5400.0
    """
    if words is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", words.strip())
    if found is None:
        raise ConfigError(f"--budget takes a number and s, m or h, as in 90m, got {words!r}")
    return float(found[1]) * _UNITS[found[2]]


def run_cells(
    study: Study, cells: Sequence[Settings], folder: Path, commit: str, workers: Workers, budget: TimeBudget
) -> int:
    """Run cells and append each to the records as it finishes; return how many were run.

    Args:
        study: whose cells they are.
        cells: most important first.
        folder: where the records are.
        commit: version of the code.
        workers: who runs them; each cell goes on from its checkpoint if it has any.
        budget: cells that would end too late, judged by those that were run before, are left for the next time.
    """
    is_here = isinstance(workers, ThisProcess)
    run = partial(run_cell, study, commit) if is_here else partial(_run_named_cell, study.name, commit)
    expected = _CellTimes(study.name, folder)
    left = list(cells)
    for cell, record in run_side_by_side(workers, run, cells, lambda cell: budget.holds(expected.seconds(cell))):
        append_record(record, records_path(study.name, folder))
        expected.add(record)
        left.remove(cell)
        print(
            f"{study.name} {len(cells) - len(left)}/{len(cells)}: {cell_words(cell)}, {record.time_s:.0f} s", flush=True
        )
    if left:
        _say_what_remains(study.name, left, budget)
    return len(cells) - len(left)


def run_cell(study: Study, commit: str, cell: Settings) -> CellRecord:
    """Run one cell."""
    started = time.perf_counter()
    identity = study.identity(cell)  # before the cell runs: a file that is edited meanwhile must not count
    results = study.run(cell)
    return CellRecord(cell, results, commit, time.perf_counter() - started, identity)


def _run_named_cell(name: str, commit: str, cell: Settings) -> CellRecord:
    """Run one cell in another process, which gets no more than names."""
    configure()
    return run_cell(load_study(name), commit, cell)


class _CellTimes:
    """Seconds that cells took, to expect from them what others will take."""

    def __init__(self, name: str, folder: Path) -> None:
        self._by_kind: dict[str, list[float]] = {}
        for record in last_records(records_path(name, folder)).values():
            self.add(record)

    def add(self, record: CellRecord) -> None:
        """Note how long a cell took."""
        for kind in (_kind(record.settings), ""):
            self._by_kind.setdefault(kind, []).append(record.time_s)

    def seconds(self, cell: Settings) -> float:
        """Return the median of the same cell with other seeds, else of all cells, else 0: it must be tried."""
        found = self._by_kind.get(_kind(cell)) or self._by_kind.get("") or [0.0]
        return statistics.median(found)


def _kind(cell: Settings) -> str:
    return cell_key({key: value for key, value in cell.items() if key != "seed"})


def _say_what_remains(name: str, left: Sequence[Settings], budget: TimeBudget) -> None:
    shown = "; ".join(cell_words(cell) for cell in left[:_FEW]) + ("; ..." if len(left) > _FEW else "")
    minutes = (budget.seconds or 0.0) / 60.0
    print(f"{name}: {len(left)} cells remain that do not fit into {minutes:g} minutes ({shown}); run it again for them")
