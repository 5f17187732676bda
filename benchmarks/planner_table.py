"""The table of planners on cart-pole hard: the return and the time of every planner with one and the same model.

    python -m benchmarks.planner_table [MODEL_DIR] [--episodes 50] [--seeds 100 101 102] [--out FILE]

Without a folder a model is learned first from 100 random episodes.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import itertools
import statistics
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

import mbrl_hdp  # noqa: F401 - registers the environments
from mbrl_hdp.control.planner import Planner, make_planner
from mbrl_hdp.control.planner_config import CONTEXT_MODES, PlannerConfig
from mbrl_hdp.control.tracker import BeliefAgent, BeliefTracker
from mbrl_hdp.data.collect import collect
from mbrl_hdp.hooks import load_registry
from mbrl_hdp.inference.fit import fit
from mbrl_hdp.inference.model import ContextModel
from mbrl_hdp.inference.saving import load
from mbrl_hdp.report.tables import print_table
from mbrl_hdp.runtime import configure

ENV_ID = "mbrl_hdp/CartPoleSwingUp-v0"
NAMES = ("cem", "mbrl_cem", "icem", "mppi", "random_shooting")
MODES = ("paths", "feedback")
COLUMNS = ["planner", "contexts", "plans x iterations", "return", "worst", "ms per action"]
WARM_UP_EPISODES, WARM_UP_SEED = 100, 99


class TimedPlanner:
    """Remembers the processor time of every action, in milliseconds: other programs do not count."""

    def __init__(self, planner: Planner) -> None:
        self.planner = planner
        self.times: list[float] = []

    def reset(self) -> None:
        """Begin an episode."""
        self.planner.reset()

    def act(self, obs: NDArray[Any]) -> NDArray[Any]:
        """Choose an action."""
        start = time.process_time()
        act: NDArray[Any] = self.planner.act(obs)
        self.times.append(1e3 * (time.process_time() - start))
        return act


@dataclass(frozen=True)
class Result:
    """A planner's row."""

    name: str
    config: PlannerConfig
    returns: NDArray[np.float64]
    milliseconds: float

    def cells(self) -> list[str]:
        """Return the row of the table."""
        ours = vars(self.config)
        size = f"{ours['population_size']} x {ours.get('num_iterations', 1)}"
        spread = f"{self.returns.mean():.2f} ± {self.returns.std():.2f}"
        numbers = [f"{self.returns.min():.1f}", f"{self.milliseconds:.1f}"]
        return [self.name, self.config.context_mode, size, spread, *numbers]


def play(name: str, mode: str, model: ContextModel, seeds: list[int], num_episodes: int) -> Result:
    """Let one planner control fresh episodes."""
    config = load_registry().get("planner", name).spec.config(context_mode=mode)
    env, returns, times = gymnasium.make(ENV_ID), [], []
    functions = env.get_wrapper_attr("reward_fn"), env.get_wrapper_attr("termination_fn")
    space: Any = env.action_space
    for seed in seeds:
        planner = TimedPlanner(make_planner(config, model, *functions, space.low, space.high, seed))
        data = collect(env, BeliefAgent(planner, BeliefTracker(model)), num_episodes, seed, progress=False)
        returns.append(np.nansum(data.reward, axis=1))
        times += planner.times
    return Result(name, config, np.concatenate(returns), statistics.median(times))


def commit() -> str:
    """Name the commit that is checked out."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parent).stdout.strip()


def markdown(results: list[Result], source: str, seeds: list[int], num_episodes: int) -> str:
    """Return the table as a page."""
    rows = [" | ".join(result.cells()) for result in results]
    listing = ", ".join(str(seed) for seed in seeds)
    return "\n".join(
        [
            "# Planners on cart-pole hard",
            "",
            f"Model: {source}. {num_episodes} episodes for each of the seeds {listing}; horizon 10, 6 context paths, "
            "expected transitions; every other setting is the planner's default (`planner=NAME`). Contexts: "
            "`planner.context_mode`. Return: mean ± standard deviation and worst over all episodes. Time: median "
            "milliseconds of one processor per action.",
            "",
            f"| {' | '.join(COLUMNS)} |",
            "|---" * len(COLUMNS) + "|",
            *[f"| {row} |" for row in rows],
            "",
            f"Written by `python -m benchmarks.planner_table` at commit {commit()}.",
            "",
        ]
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="The table of planners on cart-pole hard.")
    parser.add_argument("model", nargs="?", help="folder of a saved model; learned afresh by default")
    parser.add_argument("--episodes", type=int, default=50)
    parser.add_argument("--seeds", type=int, nargs="+", default=[100, 101, 102])
    parser.add_argument("--planners", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--context-modes", nargs="+", choices=CONTEXT_MODES, default=list(MODES))
    parser.add_argument("--out", type=Path, default=Path("docs/results/planners.md"))
    chosen = parser.parse_args(arguments)
    configure()
    if chosen.model:
        model = load(chosen.model)
    else:
        data = collect(gymnasium.make(ENV_ID), num_episodes=WARM_UP_EPISODES, seed=WARM_UP_SEED)
        model = fit(data, dynamics="cartpole", seed=WARM_UP_SEED)
    results = []
    for mode, name in itertools.product(chosen.context_modes, chosen.planners):
        results.append(play(name, mode, model, chosen.seeds, chosen.episodes))
        print(*results[-1].cells(), flush=True)
    print_table(
        "Planners on cart-pole hard",
        COLUMNS,
        [result.cells() for result in results],
    )
    source = f"learned from {model.report.num_episodes} random episodes (`mbrl_hdp.fit`, seed {model.report.seed})"
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_text(markdown(results, source, chosen.seeds, chosen.episodes))


if __name__ == "__main__":
    main()
