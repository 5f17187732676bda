"""Run every benchmark: `python -m benchmarks [name ...]`. Exit code 1 if a target is missed."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import importlib
import pkgutil
import sys

import benchmarks
from benchmarks.report import Row
from mbrl_hdp.report.tables import print_table
from mbrl_hdp.runtime import configure


def main(names: list[str]) -> int:
    configure()
    known = [module.name for module in pkgutil.iter_modules(benchmarks.__path__) if module.name.startswith("bench_")]
    chosen = [name for name in known if not names or name.removeprefix("bench_") in names]
    if names and len(chosen) < len(names):
        print(f"unknown benchmark; known: {', '.join(name.removeprefix('bench_') for name in known)}", file=sys.stderr)
        return 2
    rows: list[Row] = []
    for name in chosen:
        rows += importlib.import_module(f"benchmarks.{name}").run()
    cells = [
        [
            "ok" if row.is_met else "missing",
            row.name,
            f"{row.ours:.3g} {row.unit}",
            row.peer,
            f"{row.theirs:.3g} {row.unit}",
            f"{row.ratio:.3g}",
            "" if row.target is None else f">= {row.target:.3g}",
        ]
        for row in rows
    ]
    print_table("Benchmarks (one thread)", ["", "what", "ours", "peer", "theirs", "ratio", "target"], cells)
    return 0 if all(row.is_met for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
