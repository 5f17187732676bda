"""Run every benchmark: `python -m benchmarks [--write] [name ...]`. Exit code 1 if a target is missed.

`--write` also records the table in docs/results/benchmarks.md, with the machine's load and the commit; with names, only
the rows of these benchmarks are written anew.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import importlib
import pkgutil
import platform
import sys
from pathlib import Path

import benchmarks
from benchmarks.report import Row
from mbrl_hdp.report.tables import print_table
from mbrl_hdp.runtime import configure


def main(words: list[str]) -> int:
    configure()
    names = [word for word in words if word != "--write"]
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
    columns = ["", "what", "ours", "peer", "theirs", "ratio", "target"]
    print_table("Benchmarks (one thread)", columns, cells)
    if "--write" in words:
        write(PAGE, columns[1:], [row[1:] for row in cells], names)
    return 0 if all(row.is_met for row in rows) else 1


def write(path: Path, columns: list[str], rows: list[list[str]], names: list[str]) -> None:
    """Write the page; with names, replace their rows in the page that is there and say so."""
    from mbrl_hdp.experiments.summary import git_commit

    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    source = f"commit {git_commit()}, load average at the end {load}."
    notes = [
        f"All rows but those below: Python {platform.python_version()} on {platform.system()} {platform.machine()}, "
        f"{os.cpu_count()} cores, {source}"
    ]
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    if names:
        before = path.read_text().splitlines()
        lines = _joined([line for line in before if line.startswith("| ")][2:], lines)
        begin = f"Rows of `{' '.join(names)}`: "
        notes = [line for line in before if line.startswith(NOTES) and not line.startswith(begin)] + [begin + source]
    head = ["# Benchmarks", "", *WORDS, "", *(f"{note}\n" for note in notes)]
    table = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns), *lines, ""]
    path.write_text("\n".join(head + table))


def _joined(before: list[str], lines: list[str]) -> list[str]:
    """Return the rows of the page with these in the place of those about the same, new ones last."""
    found = {_about(line): line for line in before}
    return list((found | {_about(line): line for line in lines}).values())


def _about(line: str) -> tuple[str, str]:
    """Return what a row of the page is about: what was measured, and the peer."""
    cells = line.strip("| ").split(" | ")
    return cells[0], cells[2]


PAGE = Path(__file__).resolve().parents[1] / "docs" / "results" / "benchmarks.md"
WORDS = (
    "Written by `python -m benchmarks --write`; do not edit. One thread, ours and the peer in turns: read",
    "the ratios (peer / ours), not the times.",
)
NOTES = ("Commit ", "All rows", "Rows of ")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
