"""A progress bar for fits, only where there is a terminal to show it."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn


class FitProgress:
    """Shows which run is under way, its loss and how many contexts are still open."""

    def __init__(self, num_runs: int, num_steps: int, is_wanted: bool) -> None:
        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, console=console, disable=not (is_wanted and console.is_terminal))
        self._task = self._bar.add_task("fit", total=num_steps)
        self._num_runs, self._run = num_runs, 0
        self._found: list[int] = []

    def __enter__(self) -> FitProgress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def start_run(self, schedule: str) -> Callable[[int, float, int], None]:
        """Give the function that a run reports every step to."""
        self._run += 1
        number = self._run

        def report(step: int, loss: float, num_open: int) -> None:
            words = f"run {number}/{self._num_runs} ({schedule})  loss {loss:8.3f}  contexts open {num_open}"
            self._bar.update(self._task, advance=1, description=words, refresh=step % 10 == 0)

        return report

    def end_run(self, num_contexts: int) -> None:
        """Note what a run found."""
        self._found.append(num_contexts)
