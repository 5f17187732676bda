"""What a run writes while it is running: metrics.csv, the rows for its tracker and the progress bar."""

from __future__ import annotations

import csv
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn

from mbrl_hdp.data.atomic import atomic_path, clear_leftovers
from mbrl_hdp.experiments.trackers import TENSORBOARD, open_tracker
from mbrl_hdp.inference.progress import PlainLines


def read_metrics(folder: Path) -> list[dict[str, str]]:
    """Return the rows of a run's metrics.csv as written."""
    with (folder / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


_LOG = logging.getLogger("mbrl_hdp")  # Hydra writes it to app.log


def _bar(is_wanted: bool, *columns: ProgressColumn) -> tuple[Progress, PlainLines]:
    """Return a progress bar with a description and further columns for a terminal, and plain lines for elsewhere."""
    console = Console(stderr=True)
    shown = TextColumn("{task.description}"), BarColumn(), *columns
    bar = Progress(*shown, console=console, disable=not (is_wanted and console.is_terminal))
    return bar, PlainLines(is_wanted, console)


class SilentLog:
    """A log that only shows progress, for work outside a run."""

    def __init__(self, num_steps: int, is_wanted: bool = True) -> None:
        self._bar, self._lines = _bar(is_wanted)
        self._task = self._bar.add_task("starting", total=num_steps)

    def __enter__(self) -> SilentLog:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def says(self, words: str) -> None:
        """Show the present step of the work."""
        self._bar.update(self._task, description=words, advance=1)
        self._lines.says(words)

    def warns(self, words: str) -> None:
        """Print a message for the user."""
        self._bar.console.print(f"warning: {words}", highlight=False, markup=False, soft_wrap=True)

    def phase(self, num_steps: int) -> None:
        """Begin a part of the work with so many steps."""
        self._bar.reset(self._task, total=num_steps)


class RunLog:
    """The log of a run.

    Attributes:
        rows: rows of metrics.csv, one per epoch; columns that hold times end in `_s`.
        started: when this process began to work on the run.
    """

    def __init__(
        self,
        folder: Path,
        num_epochs: int,
        is_wanted: bool,
        tracker: str = TENSORBOARD,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.rows: list[dict[str, Any]] = []
        self.started = time.perf_counter()
        self._bar, self._lines = _bar(is_wanted, TextColumn("{task.fields[last]}"), TimeRemainingColumn())
        self._task = self._bar.add_task("starting", total=num_epochs, last="")
        self._num_epochs, self._is_in_phase = num_epochs, False
        self._tracker = open_tracker(tracker, folder, settings or {})

    def __enter__(self) -> RunLog:
        self._bar.start()
        clear_leftovers(self.folder)
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
        self._tracker.close()

    def says(self, words: str) -> None:
        """Show the present step of the work."""
        self._bar.update(self._task, description=words, advance=int(self._is_in_phase))
        self._lines.says(words)

    def warns(self, words: str) -> None:
        """Print a message for the user and write it to app.log."""
        _LOG.warning(words)
        self._bar.console.print(f"warning: {words}", highlight=False, markup=False, soft_wrap=True)

    def phase(self, num_steps: int) -> None:
        """Begin the work after the last epoch: the bar and the time left are now those of `num_steps` episodes."""
        self._is_in_phase = True
        self._bar.reset(self._task, total=num_steps)

    def restore(self, rows: list[dict[str, Any]]) -> None:
        """Continue after the rows of a checkpoint."""
        self.rows = list(rows)
        self._write()
        self._bar.update(self._task, completed=len(rows))

    def epoch(self, row: dict[str, Any]) -> None:
        """Write the row of a finished epoch."""
        self.rows.append(row)
        self._write()
        self._tracker.log(row)
        shown = [f"{name} {row[key]:.4g}" for name, key in (("return", "return_mean"), ("contexts", "num_contexts"))
                 if row.get(key) is not None]  # fmt: skip
        self._bar.update(self._task, advance=1, last="  ".join(shown))
        words = f"epoch {len(self.rows)}/{self._num_epochs} done after {time.perf_counter() - self.started:.0f} s"
        line = "  ".join([words, *shown])
        _LOG.info(line)
        self._lines.says(line, is_due=True)

    def _write(self) -> None:
        columns = list(dict.fromkeys(name for row in self.rows for name in row))
        columns.sort(key=lambda name: name.endswith("_s"))
        with atomic_path(self.folder / "metrics.csv") as path, path.open("w", newline="") as file:
            writer = csv.DictWriter(file, columns, restval="")
            writer.writeheader()
            writer.writerows(self.rows)
