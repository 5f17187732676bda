"""Run one attempt in a forked process with limits, in a folder of its own, and see what it left behind.

The parent imports the slow libraries once (`warm_up`); a fork then starts in milliseconds, and the time that an attempt
takes is the time after start-up.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

MEMORY = 3 << 30
"""Address space that an attempt may take beyond that of the parent, in bytes."""
OUTPUT = 256 << 20
"""Largest file that an attempt may write."""
SECRET = "hunter2-of-the-victim"
"""Value of the environment variable SECRET in every attempt: it must never be written or printed."""

State = dict[str, tuple[int, int, str]]


@dataclass(frozen=True)
class Outcome:
    """What an attempt did.

    Attributes:
        code: exit code; negative if a signal ended it, None if it was stopped at the limit of time.
        out: what it wrote to stdout.
        err: what it wrote to stderr.
        seconds: processor time that it took: what the wall clock shows on an idle machine.
    """

    code: int | None
    out: str
    err: str
    seconds: float

    @property
    def lines(self) -> list[str]:
        """Lines on stderr, warnings of plugins left out."""
        return [line for line in self.err.splitlines() if line.strip() and not line.startswith("warning:")]

    @property
    def is_one_line(self) -> bool:
        """Whether stderr holds one line of ours, short enough to read, and no traceback."""
        lines = self.lines
        return len(lines) == 1 and lines[0].startswith("mbrl-hdp: ") and len(lines[0]) < 3000


def warm_up() -> None:
    """Import what the commands import, so that forks do not have to."""
    from mbrl_hdp.runtime import configure

    configure()
    import matplotlib as mpl

    mpl.use("Agg")
    import mbrl_hdp.cli
    import mbrl_hdp.experiments.app
    import mbrl_hdp.experiments.fit_command
    import mbrl_hdp.experiments.label_command
    import mbrl_hdp.experiments.loop
    import mbrl_hdp.experiments.reproduce
    import mbrl_hdp.experiments.runs
    import mbrl_hdp.report.curves
    import mbrl_hdp.report.fit_report  # noqa: F401


def run_command(
    words: Sequence[str], folder: Path, limit: float = 300.0, end: tuple[signal.Signals, float] | None = None
) -> Outcome:
    """Run `mbrl-hdp WORDS` in a folder; `end` is a signal and after how many seconds to send it."""

    def job() -> int:
        from mbrl_hdp.cli import main

        return main(list(words))

    return run_job(job, folder, limit, end)


def run_job(
    job: Callable[[], int], folder: Path, limit: float = 300.0, end: tuple[signal.Signals, float] | None = None
) -> Outcome:
    """Run a function in a forked process, within limits of time, memory and output."""
    sys.stdout.flush()
    sys.stderr.flush()
    logs = [folder.parent / f".{folder.name}.{name}" for name in ("out", "err")]
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        _child(job, folder, logs)
    if end is not None and not _is_over_within(child, end[1]):
        os.kill(child, end[0])
    code, seconds = _wait(child, started + limit)
    out, err = (path.read_text(errors="replace") if path.is_file() else "" for path in logs)
    for path in logs:
        path.unlink(missing_ok=True)
    return Outcome(code, out, err, seconds)


def _is_over_within(child: int, seconds: float) -> bool:
    """Wait some seconds for the end; the child stays to be waited for."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return True
        time.sleep(0.002)
    return False


def _child(job: Callable[[], int], folder: Path, logs: Sequence[Path]) -> None:
    """Do the job as a program of its own would; never return."""
    code = 1
    try:
        for number, path in enumerate(logs, start=1):
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            os.dup2(handle, number)
        # Not the parent's: a test runner that captures output has put objects of its own there.
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
        os.setsid()
        _limit(resource.RLIMIT_AS, _address_space() + MEMORY)
        _limit(resource.RLIMIT_FSIZE, OUTPUT)
        _limit(resource.RLIMIT_CORE, 0)
        os.environ.update({"SECRET": SECRET, "HYDRA_FULL_ERROR": "1", "TERM": "dumb"})
        os.chdir(folder)
        code = job()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    except BaseException:  # noqa: BLE001 - whatever it is, it is the attempt's outcome
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)


def _limit(what: int, value: int) -> None:
    hard = resource.getrlimit(what)[1]
    resource.setrlimit(what, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


def _address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _wait(child: int, until: float) -> tuple[int | None, float]:
    """Wait for the end, or make one at the limit; return the exit code and the processor time."""
    while True:
        found, status, usage = os.wait4(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime
        if time.monotonic() > until:
            os.killpg(child, signal.SIGKILL) if _is_leader(child) else os.kill(child, signal.SIGKILL)
            _, _, usage = os.wait4(child, 0)
            return None, usage.ru_utime + usage.ru_stime
        time.sleep(0.002)


def _is_leader(child: int) -> bool:
    try:
        return os.getpgid(child) == child
    except ProcessLookupError:
        return False


def state_of(folder: Path) -> State:
    """Return every file, folder and link below a folder with size, time of change and target."""
    found: State = {}
    for path in folder.rglob("*"):
        stat = path.lstat()
        is_folder = path.is_dir() and not path.is_symlink()
        target = os.readlink(path) if path.is_symlink() else ""
        found[path.relative_to(folder).as_posix()] = (
            (0, 0, "/") if is_folder else (stat.st_size, stat.st_mtime_ns, target)
        )
    return found


def changes(before: State, after: State) -> list[str]:
    """Return the paths that were made, changed or removed."""
    return sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
