"""Progress of fits: a bar on a terminal, plain lines now and then elsewhere."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from mbrl_hdp.inference.search.stages import heard_by

# The last part of a fit, which is not one of the runs that are compared.
POLISH = "polish"
_SECONDS_BETWEEN_LINES = 10.0
_NUMBERS = re.compile(r"[-+]?\d[\d.,e+-]*|\s")


class PlainLines:
    """Progress where there is no terminal (a file, a pipe, a batch job): lines on stdout.

    A line comes when a new part of the work begins, and every ten seconds within a part. Lines of one part differ in
    their numbers only.
    """

    def __init__(self, is_wanted: bool, console: Console) -> None:
        self._is_on = is_wanted and not console.is_terminal
        self._last = time.monotonic()
        self._part = ""

    def says(self, words: str, is_due: bool = False) -> None:
        """Print a line if a part begins, if the last line is old enough, or if this one is due in any case."""
        part = _NUMBERS.sub("", words)
        is_new, self._part = part != self._part, part
        if self._is_on and (is_due or is_new or time.monotonic() - self._last >= _SECONDS_BETWEEN_LINES):
            self._last = time.monotonic()
            print(words, flush=True)


@contextmanager
def search_progress(
    name: str, progress: bool | Callable[[str], None], console: Console | None = None
) -> Iterator[None]:
    """Show the stages of the searches inside: a bar without an end on a terminal, plain lines elsewhere.

    Args:
        name: what every line begins with.
        progress: whether to show them; a function is called with every line instead.
        console: where the bar goes; stderr by default.
    """
    console, is_wanted = console or Console(stderr=True), progress is True
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    bar = Progress(*columns, console=console, disable=not (is_wanted and console.is_terminal), transient=True)
    task, lines, started = bar.add_task(name, total=None), PlainLines(is_wanted, console), time.monotonic()

    def says(stage: str) -> None:
        words = f"{name}: {stage}"
        bar.update(task, description=words)
        lines.says(f"{words}  {time.monotonic() - started:.0f} s")
        if callable(progress):
            progress(words)

    with bar, heard_by(says):
        yield


class FitProgress:
    """Shows which run is under way, its loss and how many contexts are still open."""

    def __init__(
        self,
        num_runs: int,
        num_steps: int,
        is_wanted: bool,
        console: Console | None = None,
        tell: bool | Callable[[str], None] | None = None,
    ) -> None:
        console = console or Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, console=console, disable=not (is_wanted and console.is_terminal))
        self._lines = PlainLines(is_wanted, console)
        self._task = self._bar.add_task("fit", total=num_steps)
        self._num_runs, self._run, self._planned = num_runs, 0, 0
        self._words = "fit"
        self._tell = tell if callable(tell) else lambda _: None

    def __enter__(self) -> FitProgress:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._bar.stop()
        if kind is None:
            self._lines.says("last checks: halves of the episodes, and fewer contexts", is_due=True)
            self._tell("last checks")

    @property
    def num_done(self) -> int:
        """Steps that the bar shows as done."""
        return int(self._bar.tasks[0].completed)

    def searches(self, stage: str) -> None:
        """Show the stage of a search between two runs."""
        self._shows(f"search: {stage}")

    def tries(self, what: str) -> Callable[[int, float, int], None]:
        """Return the function that a short training reports every step to, whose result only decides something."""
        return lambda step, _loss, _num_open: self._shows(f"trial: {what}, step {step + 1}")

    def _shows(self, line: str) -> None:
        self._bar.update(self._task, description=line)
        self._lines.says(line)
        self._tell(line)

    def start_run(self, schedule: str, num_steps: int) -> Callable[[int, float, int], None]:
        """Return the function that a run of at most `num_steps` reports every step to."""
        self._run += 1
        self._planned += num_steps
        is_one_of_the_runs = self._run <= self._num_runs and schedule != POLISH
        self._words = words = f"run {self._run}/{self._num_runs} ({schedule})" if is_one_of_the_runs else schedule

        def report(step: int, loss: float, num_open: int) -> None:
            line = f"{words}  loss {loss:8.3f}  contexts open {num_open}"
            self._bar.update(self._task, advance=1, description=line, refresh=step % 10 == 0)
            self._lines.says(f"{line}  step {step + 1}/{num_steps}")
            self._tell(f"{words} step {step + 1}/{num_steps}")

        return report

    def end_run(self, num_contexts: int, num_steps: int, is_stopped: bool) -> None:
        """Show what a run found; the steps that it did not need count as done."""
        line = f"{self._words}  contexts found {num_contexts}"
        if is_stopped:
            line += f"  settled after {num_steps} steps"
        self._bar.update(self._task, completed=self._planned, description=line, refresh=True)
        self._lines.says(line, is_due=True)
