"""C-CEM against a context-blind CEM on the switching pendulum, with the reward as a formula and learned.

    python run.py                         # three seeds, prints a table
    python run.py --seeds 0 --out /tmp/x  # one seed, runs kept elsewhere

Every run is one `mbrl-hdp train`; runs that are finished are not run again.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mbrl_hdp.cli import main as mbrl_hdp
from mbrl_hdp.errors import MbrlHdpError

ENV = ["env=gymnasium", "env.id=switching_pendulum:SwitchingPendulum-v0"]
BUDGET = [
    "planner.horizon=12",
    *("budget.warm_episodes=60", "budget.warm_model_steps=300", "budget.num_epochs=2", "budget.episodes_per_epoch=5"),
    *("budget.eval_episodes=2", "budget.final_eval_episodes=20"),
]
QUICK = [
    "profile=smoke",
    "planner.horizon=2",
    "dynamics=delta_mlp",
    "dynamics.hidden_sizes=[8]",
    "+env.kwargs.max_episode_steps=6",
]
AGENTS = {"C-CEM": ["max_contexts=4"], "context-blind CEM": ["max_contexts=1"]}
REWARDS = {"formula": ["env.reward=switching_pendulum:reward"], "learned": ["env.reward=learned"]}


def main(words: Sequence[str] | None = None) -> list[str]:
    """Run what is missing and print the table; return its lines."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder of the runs (default: runs)")
    parser.add_argument("--quick", action="store_true", help="tiny runs that learn nothing, to see that it works")
    options = parser.parse_args(words)
    lines = ["| agent | reward | return | each seed | random actions | contexts |", "|---|---|---|---|---|---|"]
    for agent, its_words in AGENTS.items():
        for reward, more_words in REWARDS.items():
            settings = [*ENV, *its_words, *more_words, *(QUICK if options.quick else BUDGET)]
            folder = options.out / f"{agent.replace(' ', '_')}_{reward}"
            runs = [train(settings, folder / f"seed{seed}", seed) for seed in options.seeds]
            lines.append(row(agent, reward, runs))
    print("\n".join(lines))
    return lines


def train(settings: list[str], folder: Path, seed: int) -> dict[str, Any]:
    """Run `mbrl-hdp train` unless that is done; return its summary and the return of its random episodes."""
    if not (folder / "summary.json").is_file() and mbrl_hdp(
        ["train", *settings, f"seed={seed}", f"hydra.run.dir={folder}"]
    ):
        raise MbrlHdpError(f"the run in {folder} failed; what it said stands above")
    with (folder / "metrics.csv").open() as file:
        first = next(csv.DictReader(file))
    return {**json.loads((folder / "summary.json").read_text()), "random": float(first["train_return"])}


def row(agent: str, reward: str, runs: list[dict[str, Any]]) -> str:
    """Return the table's row of several seeds."""
    returns = [run["return_mean"] for run in runs]
    each = ", ".join(f"{value:.0f}" for value in returns)
    random = np.mean([run["random"] for run in runs])
    contexts = ", ".join(str(run["num_contexts"]) for run in runs)
    return f"| {agent} | {reward} | {np.mean(returns):.0f} | {each} | {random:.0f} | {contexts} |"


if __name__ == "__main__":
    main()
