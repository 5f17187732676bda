"""Attack the program and count what held.

    python -m benchmarks.attack [family ...] [--small] [--folder DIR] [--write docs/reliability.md]

Everything is seeded; every attempt runs in a process of its own with limits of time, memory and output. Exit code 1 if
anything was bad. `soak` and `kills` take long and run only when they are named.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import sys
import tempfile
from pathlib import Path

from benchmarks.attack import sandbox
from benchmarks.attack.families import FAMILIES, QUICK, run_family
from benchmarks.attack.page import write_page


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "families", nargs="*", choices=[*FAMILIES, []], help=f"what to try (default: {' '.join(QUICK)})"
    )
    parser.add_argument("--small", action="store_true", help="a few attempts of each family")
    parser.add_argument("--folder", type=Path, help="keep runs and attempts in this folder (reused if it is there)")
    parser.add_argument("--write", type=Path, help="write the outcome into the tables of this Markdown page")
    parser.add_argument("--quiet", action="store_true", help="print only what was bad")
    options = parser.parse_args()
    sandbox.warm_up()
    verdicts = []
    with tempfile.TemporaryDirectory() as temporary:
        root = options.folder or Path(temporary)
        root.mkdir(parents=True, exist_ok=True)
        for name in options.families or QUICK:
            found = []
            for verdict in run_family(name, root.resolve(), options.small):
                found.append(verdict)
                if not (options.quiet and verdict.is_good):
                    print(
                        f"{verdict.kind:9} {verdict.seconds:5.1f} s  {verdict.name}: {verdict.words[:300]}", flush=True
                    )
            verdicts += found
            good = sum(verdict.is_good for verdict in found)
            print(f"{name}: {good} of {len(found)} held: {FAMILIES[name].asks}", flush=True)
    if options.write is not None:
        write_page(options.write, verdicts)
    return 0 if all(verdict.is_good for verdict in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
