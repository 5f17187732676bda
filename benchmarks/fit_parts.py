"""How much faster is one fit if its candidates run side by side? Where the time of `fit` goes, and what workers save.

    python -m benchmarks.fit_parts [--episodes 100] [--dynamics auto cartpole] [--jobs 2] [--write PAGE]

Whether a candidate is needed depends on those before it. Side by side some are begun that turn out to be needless; at
best the time of all but the longest is saved. Every fit is made twice, in one process and with workers (the start of
their processes included); the two models are compared bit by bit.
"""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import torch

import mbrl_hdp
from mbrl_hdp.experiments.reproduce import code_version
from mbrl_hdp.experiments.studies.study import table
from mbrl_hdp.inference.schedule import FitConfig
from mbrl_hdp.runtime import configure
from mbrl_hdp.workers import open_workers

COLUMNS = (
    *("dynamics", "start", "candidates run", "left out as needless", "share of the time in candidates"),
    *("in the longest", "speed-up of candidates at most", "found, halves included", "models"),
)


def row(dynamics: str, start: str, data: mbrl_hdp.Trajectories, jobs: int) -> list[str]:
    """Fit alone and with workers; return the line of the table."""
    settings: dict[str, Any] = {
        "dynamics": dynamics, "max_contexts": 10, "seed": 0, "config": FitConfig(start=start), "progress": False
    }  # fmt: skip
    alone = mbrl_hdp.fit(data, **settings)
    together = mbrl_hdp.fit(data, **settings, workers=partial(open_workers, jobs=jobs))
    found = alone.report
    seconds = [run["time_s"] for run in found.runs]
    whole = found.fit_time_s
    is_same = all(map(torch.equal, alone.state_dict().values(), together.state_dict().values()))
    return [
        dynamics,
        start,
        ", ".join(f"{run['dynamics']} ({run['schedule']})" for run in found.runs),
        str(len(found.search.get("skipped", []))),
        f"{sum(seconds) / whole:.0%}",
        f"{max(seconds) / whole:.0%}",
        f"{whole / (whole - sum(seconds) + max(seconds)):.2f}",
        f"{whole / together.report.fit_time_s:.2f} ({whole:.0f} s, {together.report.fit_time_s:.0f} s)",
        "the same" if is_same else "different",
    ]


def main() -> int:
    """Run the fits and print the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=100, help="episodes of cart-pole hard (default 100)")
    parser.add_argument("--dynamics", nargs="+", default=["auto", "cartpole"], help="transition models")
    parser.add_argument("--jobs", type=int, default=2, help="processes side by side (default 2)")
    parser.add_argument("--write", type=Path, help="also write the outcome to this Markdown file")
    options = parser.parse_args()
    configure()
    cart = gymnasium.make("mbrl_hdp/CartPoleSwingUp-v0", actuation=(1.0, -1.0)).get_wrapper_attr("as_batch")(100)
    data = mbrl_hdp.collect(cart, num_episodes=options.episodes, seed=0)
    rows = []
    for dynamics, start in [*((each, "search") for each in options.dynamics), (options.dynamics[-1], "random")]:
        rows.append(row(dynamics, start, data, options.jobs))
        print(rows[-1], flush=True)
    text = "\n\n".join([
        "# Candidates of one fit side by side: what it saves",
        f"Written by `python -m benchmarks.fit_parts --episodes {options.episodes} --dynamics "
        f"{' '.join(options.dynamics)} --jobs {options.jobs}` at commit {code_version()}; do not edit.",
        "Cart-pole with hard failures, random actions, defaults of `fit` but for its start, `max_contexts=10`. "
        "*Speed-up of candidates at most*: all on free cores of their own, nothing lost by starting processes and "
        "sending models about. The rest of the time is the structure search, its repetition on halves of the data, and "
        f"polishing. *Found*: `jobs={options.jobs}` against one process, on {os.cpu_count()} cores, load average "
        f"{os.getloadavg()[2]:.1f} over the last 15 minutes (about 1.5 if nothing else runs).",
        table(COLUMNS, rows),
    ]) + "\n"  # fmt: skip
    print(text)
    if options.write is not None:
        options.write.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
