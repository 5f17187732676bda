"""Does a policy earn the same on the real engines (pybullet, highway-env) as on the batched physics it trained on?

    python -m benchmarks.engines [--tasks drone intersection] [--agents c_cem fi_sac] [--episodes 50] [--seed 100]

For every task and agent a short run is trained on the batched physics; its policy then plays the same episodes on both
backends. C-CEM learns from 200 random episodes, FI-SAC for 60 epochs: how good they are is not the question here.
Finished rows are kept in the page's .jsonl and are not run again.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.planner_table import commit
from mbrl_hdp.experiments.checkpoint import latest_snapshot
from mbrl_hdp.experiments.config import check_config, load_config
from mbrl_hdp.experiments.loop import Run, play_evaluation, reported, start_run
from mbrl_hdp.experiments.metrics import SilentLog
from mbrl_hdp.experiments.studies import train_cell
from mbrl_hdp.experiments.summary import bootstrap_interval
from mbrl_hdp.hooks import load_registry
from mbrl_hdp.runtime import configure

ENGINES = {"drone": "pybullet", "intersection": "highway-env"}
BUDGETS = {"c_cem": ["budget.num_epochs=1"], "fi_sac": ["budget.num_epochs=60"]}
COLUMNS = ("task", "agent", "batched physics", "engine", "difference", "largest in an episode", "same within interval")
Found = dict[str, Any]


def measure(task: str, agent: str, seed: int, num_episodes: int, overrides: list[str]) -> Found:
    """Train on the batched physics, then play the same episodes on both backends."""
    words = [f"experiment={task}_{agent}", f"env={task}_vector", *BUDGETS[agent], *overrides]
    config = replace(check_config(load_config(words)), seed=seed)
    resolved = train_cell.resolved_run(config) | {"seed": seed}
    with train_cell.trained(config, f"engines_{task}_{agent}", train_cell.__name__, resolved) as (run, folder):
        batched = returns(run, num_episodes)
        # From the same checkpoint again: a planner's own randomness has moved on.
        again, read = start_run(config, load_registry()), latest_snapshot(folder)
        assert read is not None
        read(again)
        with reported(again):
            real = returns(again, num_episodes)
        again.task.close()
    return {"task": task, "agent": agent, "seed": seed, "batched": batched, "real": real, "commit": commit()}


def returns(run: Run, num_episodes: int) -> list[float]:
    """Play the evaluation episodes of a run."""
    with SilentLog(num_episodes) as log:
        records = play_evaluation(run, num_episodes, "engines", log)
    return [record.episode_return for record in records]


def is_same(found: Found) -> bool:
    """Return whether zero lies in the 95 % interval of the mean difference, or the difference is rounding."""
    change = np.subtract(found["real"], found["batched"])
    low, high = bootstrap_interval([change])
    return bool(low <= 0.0 <= high or np.abs(change).max() < 1e-3 * np.abs(found["batched"]).max())


def row(found: Found) -> list[str]:
    """Return the row of one task and agent."""
    batched, real = (np.array(found[name]) for name in ("batched", "real"))
    change = real - batched
    low, high = bootstrap_interval([change])
    spread = [f"{each.mean():.3f} ± {each.std(ddof=1):.3f}" for each in (batched, real)]
    return [found["task"], found["agent"], spread[0], f"{spread[1]} ({ENGINES[found['task']]})",
            f"{change.mean():+.2g} [{low:+.2g}, {high:+.2g}]", f"{np.abs(change).max():.2g}",
            "yes" if is_same(found) else "**no**"]  # fmt: skip


def page(rows: list[Found]) -> str:
    """Return the page."""
    lines = [f"| {' | '.join(cells)} |" for cells in (COLUMNS, ["---"] * len(COLUMNS), *map(row, rows))]
    number = " or ".join(sorted({str(len(found["real"])) for found in rows}))
    commits = ", ".join(sorted({found["commit"] for found in rows}))
    seeds = ", ".join(sorted({str(found["seed"]) for found in rows}))
    return (
        "# The same policy on the real engines and on the batched physics\n\n"
        "For every task and agent a short run is trained on the batched physics; its policy then plays the same "
        "episodes on both backends. C-CEM learns from 200 random episodes, FI-SAC for 60 epochs: how good they are is "
        f"not the question here. Return: mean ± standard deviation over {number} "
        "episodes; difference: real engine less batched physics, episode by episode, with its 95 % interval "
        "(bootstrap). Reported evaluations of `drone_vector` and `intersection_vector` run on the real engines "
        "(`env.report_kwargs`).\n\n" + "\n".join(lines) + "\n\n"
        f"Written by `python -m benchmarks.engines`; seed {seeds}, commits {commits}.\n"
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engines", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--tasks", nargs="+", choices=list(ENGINES), default=list(ENGINES))
    parser.add_argument("--agents", nargs="+", choices=list(BUDGETS), default=list(BUDGETS))
    parser.add_argument("--episodes", type=int, default=50)
    parser.add_argument("--seed", type=int, default=100)
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="further words of `mbrl-hdp train`")
    parser.add_argument("--out", type=Path, default=Path("docs/results/engines.md"))
    chosen = parser.parse_args(arguments)
    configure()
    records, found = chosen.out.with_suffix(".jsonl"), {}
    if records.is_file():
        found = {(line["task"], line["agent"]): line for line in map(json.loads, records.read_text().splitlines())}
    for key in [(task, agent) for task in chosen.tasks for agent in chosen.agents]:
        if key not in found:
            found[key] = measure(*key, chosen.seed, chosen.episodes, chosen.set)
            with records.open("a") as file:
                file.write(json.dumps(found[key]) + "\n")
            print(*row(found[key]), flush=True)
    chosen.out.write_text(page(list(found.values())))


if __name__ == "__main__":
    main()
