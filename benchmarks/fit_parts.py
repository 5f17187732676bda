"""How much faster would one fit be if its candidates ran side by side? Where the time of `fit` goes.

    python -m benchmarks.fit_parts [--episodes 100] [--dynamics auto cartpole] [--write docs/results/fit_parts.md]

Candidates are chosen one after the other: one that the others have made needless is not run. Side by side all must be
begun; at best the time of all but the longest is saved. Only ratios within a fit are reported.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import gymnasium

import mbrl_hdp
from mbrl_hdp.experiments.reproduce import code_version
from mbrl_hdp.experiments.studies.study import table
from mbrl_hdp.runtime import configure

COLUMNS = (
    *("dynamics", "candidates run", "left out as needless", "share of the time in candidates", "in the longest"),
    "speed-up at most",
)


def row(dynamics: str, data: mbrl_hdp.Trajectories) -> list[str]:
    """Fit with defaults; return the line of the table."""
    model = mbrl_hdp.fit(data, dynamics=dynamics, max_contexts=10, seed=0, progress=False)
    found: Any = model.report
    assert found is not None
    seconds = [run["time_s"] for run in found.runs]
    whole = found.fit_time_s
    return [
        dynamics,
        ", ".join(f"{run['dynamics']} ({run['schedule']})" for run in found.runs),
        str(len(found.search.get("skipped", []))),
        f"{sum(seconds) / whole:.0%}",
        f"{max(seconds) / whole:.0%}",
        f"{whole / (whole - sum(seconds) + max(seconds)):.2f}",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=100, help="episodes of cart-pole hard (default 100)")
    parser.add_argument("--dynamics", nargs="+", default=["auto", "cartpole"], help="transition models")
    parser.add_argument("--write", type=Path, help="also write the outcome to this Markdown file")
    options = parser.parse_args()
    configure()
    cart = gymnasium.make("mbrl_hdp/CartPoleSwingUp-v0", actuation=(1.0, -1.0)).get_wrapper_attr("as_batch")(100)
    data = mbrl_hdp.collect(cart, num_episodes=options.episodes, seed=0)
    rows = []
    for dynamics in options.dynamics:
        rows.append(row(dynamics, data))
        print(rows[-1], flush=True)
    text = "\n\n".join([
        "# Candidates of one fit side by side: what it could save",
        f"Written by `python -m benchmarks.fit_parts --episodes {options.episodes} --dynamics "
        f"{' '.join(options.dynamics)}` at commit {code_version()}; do not edit.",
        "Cart-pole with hard failures, random actions, defaults of `fit` with `max_contexts=10`. *Speed-up at most*: "
        "all candidates on free cores of their own, nothing lost by starting them and sending models about. The rest "
        "of the time is the structure search, its repetition on halves of the data, and polishing.",
        table(COLUMNS, rows),
    ]) + "\n"  # fmt: skip
    print(text)
    if options.write is not None:
        options.write.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
