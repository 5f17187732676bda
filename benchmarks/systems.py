"""Cells of the study `systems` on chosen systems, variants and seeds, for tuning: `python -m benchmarks.systems`.

One JSON line a cell; what is there with the present code is not run again.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path
from types import FrameType

from mbrl_hdp.envs.systems import SYSTEMS, VARIANTS
from mbrl_hdp.experiments.fingerprint import code_fingerprint
from mbrl_hdp.experiments.studies.system_cell import run_cell


def _stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    raise TimeoutError


def main(words: list[str] | None = None) -> int:
    """Run the cells that are not there and print them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--systems", nargs="+", default=list(SYSTEMS), choices=list(SYSTEMS))
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--limit", type=float, default=300.0, help="processor seconds of a cell")
    parser.add_argument("--out", type=Path, required=True, help="file of the finished cells")
    options = parser.parse_args(words)
    code = code_fingerprint(frozenset({run_cell.__module__}))
    lines = options.out.read_text().splitlines() if options.out.is_file() else []
    done = {(line["system"], line["variant"], line["seed"], line["code"]) for line in map(json.loads, lines)}
    signal.signal(signal.SIGVTALRM, _stop)
    for seed in options.seeds:
        for variant in options.variants:
            for name in options.systems:
                if (name, variant, seed, code) not in done:
                    _run(name, variant, seed, code, options)
    return 0


def _run(name: str, variant: str, seed: int, code: str, options: argparse.Namespace) -> None:
    settings = {"system": name, "variant": variant, "seed": seed, "num_episodes": 100}
    signal.setitimer(signal.ITIMER_VIRTUAL, options.limit)
    try:
        results = run_cell(settings)
    except TimeoutError:
        results = {"found": None, "true": None, "accuracy": None, "cpu_s": options.limit}
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
    with options.out.open("a") as file:
        file.write(json.dumps(settings | results | {"code": code}) + "\n")
    mark = "" if results["found"] == results["true"] else "  WRONG"
    print(name, variant, seed, *(results[key] for key in ("found", "true", "accuracy", "cpu_s")), mark, flush=True)


if __name__ == "__main__":
    sys.exit(main())
