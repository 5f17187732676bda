"""How long a user waits before anything happens: the import, and the refusal of a wrong command line."""

from __future__ import annotations

import contextlib
import io
import statistics
import subprocess
import sys
import time

from benchmarks.report import Row


def _import_ms(statement: str, repeats: int = 7) -> float:
    code = f"import time; s = time.perf_counter(); {statement}; print(time.perf_counter() - s)"
    times = []
    for _ in range(repeats):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        times.append(1e3 * float(done.stdout))
    return statistics.median(times)


def _refusal_ms() -> float:
    """A wrong key, in a process that has imported everything already."""
    from mbrl_hdp.cli import main

    times = []
    for _ in range(3):
        start = time.perf_counter()
        with contextlib.redirect_stderr(io.StringIO()):
            code = main(["train", "prior.row_concentratoin=3"])
        times.append(1e3 * (time.perf_counter() - start))
        assert code == 2
    return min(times)


def run() -> list[Row]:
    return [
        Row("import mbrl_hdp", _import_ms("import mbrl_hdp"), "import torch", _import_ms("import torch"), 1 / 1.5),
        Row("refuse a wrong key (after imports)", _refusal_ms(), "2 seconds", 2000.0, 1.0),
    ]
