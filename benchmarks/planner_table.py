"""The table of planners on cart-pole: the return and the time of every planner and context mode with the same models.

    python -m benchmarks.planner_table [--tasks hard soft01] [--episodes 15] [--model-seeds 99 98] [--out FILE]

Models are learned first, from 100 random episodes each. The first planner is run in every context mode, the others in
the first mode.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
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
from mbrl_hdp.report.tables import print_table
from mbrl_hdp.runtime import configure

ENV_ID = "mbrl_hdp/CartPoleSwingUp-v0"
# The same settings as in conf/env/cartpole_hard.yaml and cartpole_soft01.yaml.
TASKS: dict[str, dict[str, Any]] = {"hard": {}, "soft01": {"actuation": (1.0, 0.1), "force": 40.0}}
NAMES = ("cem", "mbrl_cem", "icem", "mppi", "random_shooting")
COLUMNS = ["planner", "contexts", "plans x iterations", "return", "worst", "difference", "ms per action"]
WARM_UP_EPISODES = 100
EVALUATION_SEED = 1000


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
    """A planner's row.

    Attributes:
        task: key of `TASKS`.
        name: the planner.
        config: its settings.
        returns: one number an episode; the episodes are the same for every row.
        milliseconds: median time of an action.
    """

    task: str
    name: str
    config: PlannerConfig
    returns: NDArray[np.float64]
    milliseconds: float

    def cells(self, first: Result) -> list[str]:
        """Return the row of the table, with the mean difference to the first row of its task."""
        ours = vars(self.config)
        size = f"{ours['population_size']} x {ours.get('num_iterations', 1)}"
        spread = f"{self.returns.mean():.2f} ± {self.returns.std():.2f}"
        change = self.returns - first.returns
        error = change.std(ddof=1) / np.sqrt(len(change)) if len(change) > 1 else float("nan")
        difference = "" if self is first else f"{change.mean():+.2f} ± {error:.2f}"
        numbers = [f"{self.returns.min():.1f}", difference, f"{self.milliseconds:.1f}"]
        return [self.name, self.config.context_mode, size, spread, *numbers]


def play(task: str, name: str, mode: str, models: list[ContextModel], num_episodes: int) -> Result:
    """Let one planner control fresh episodes with every model."""
    env = gymnasium.make(ENV_ID, **TASKS[task])
    config = load_registry().get("planner", name).spec.config(context_mode=mode)
    returns, times = [], []
    functions = env.get_wrapper_attr("reward_fn"), env.get_wrapper_attr("termination_fn")
    space: Any = env.action_space
    for number, model in enumerate(models):
        seed = EVALUATION_SEED + number
        planner = TimedPlanner(make_planner(config, model, *functions, space.low, space.high, seed))
        data = collect(env, BeliefAgent(planner, BeliefTracker(model)), num_episodes, seed, progress=False)
        returns.append(np.nansum(data.reward, axis=1))
        times += planner.times
    return Result(task, name, config, np.concatenate(returns), statistics.median(times))


def learn(task: str, seed: int) -> ContextModel:
    """Learn a model from random episodes."""
    data = collect(gymnasium.make(ENV_ID, **TASKS[task]), num_episodes=WARM_UP_EPISODES, seed=seed, progress=False)
    return fit(data, dynamics="cartpole", seed=seed, duration="geometric")


def commit() -> str:
    """Name the commit that is checked out."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parent).stdout.strip()


def table(results: list[Result]) -> list[str]:
    """Return one task's table as lines of a page."""
    rows = [" | ".join(result.cells(results[0])) for result in results]
    return [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|", *[f"| {row} |" for row in rows]]


def markdown(results: list[Result], contexts: dict[str, list[int]], chosen: argparse.Namespace) -> str:
    """Return the page."""
    seeds = ", ".join(str(seed) for seed in chosen.model_seeds)
    lines = [
        "# Planners and context modes on cart-pole",
        "",
        f"For each task one model for each of the seeds {seeds}, learned from {WARM_UP_EPISODES} random episodes "
        f"(`mbrl_hdp.fit`), and {chosen.episodes} episodes with each model, the same ones for every row. Horizon 10, 6 "
        "particles, expected transitions; every other setting is the planner's default (`planner=NAME`). Contexts: "
        "`planner.context_mode`. Return: mean ± standard deviation over all episodes, and the worst. Difference: mean "
        "± standard error of the return's difference to the first row, episode by episode. Time: median milliseconds "
        "of one processor per action.",
    ]
    for task in chosen.tasks:
        found = " and ".join(str(count) for count in contexts[task])
        rows = table([result for result in results if result.task == task])
        lines += ["", f"## cartpole_{task}", "", f"The models found {found} contexts.", "", *rows]
    words = f"--tasks {' '.join(chosen.tasks)} --episodes {chosen.episodes} --model-seeds {seeds.replace(',', '')}"
    planners = f"--planners {' '.join(chosen.planners)} --context-modes {' '.join(chosen.context_modes)}"
    written = f"Written by `python -m benchmarks.planner_table {words} {planners}` at commit {commit()}."
    return "\n".join([*lines, "", *MEANING, "", written, ""])


# Theory, which the numbers above can only agree with within their errors.
MEANING = [
    "## What the modes are worth",
    "",
    "A plan is a sequence of actions that is fixed before it begins. With `belief` every particle draws the acting "
    "context from its belief, draws where that leads, and learns from it by Bayes' rule. Averaged over what the "
    "particles may see, the states are distributed as with `paths`, where contexts are drawn from the chain: the "
    "belief is a martingale, and a fixed sequence of actions cannot use what it learns. So both modes estimate the "
    "same expected return of a plan (exactly with `planner.has_noise=true`; with expected transitions the imagined "
    "evidence is a little too clear), and `belief` pays for every head at every imagined step. It is there for "
    "rewards and optimisers that look at the belief, and because mbrl-lib's own `ModelEnv` and planners run on the "
    "same model (`FilteringBeliefModel`). Knowledge that will be gained is used by `feedback`, whose plans have one "
    "action for each context that may be known by then, and by replanning at every step, which all modes do. `held` "
    "plans as if the most likely context stayed for ever.",
]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="The table of planners and context modes on cart-pole.")
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--episodes", type=int, default=15)
    parser.add_argument("--model-seeds", type=int, nargs="+", default=[99, 98])
    parser.add_argument("--planners", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--context-modes", nargs="+", choices=CONTEXT_MODES, default=list(CONTEXT_MODES))
    parser.add_argument("--out", type=Path, default=Path("docs/results/planners.md"))
    chosen = parser.parse_args(arguments)
    configure()
    results: list[Result] = []
    contexts: dict[str, list[int]] = {}
    for task in chosen.tasks:
        models = [learn(task, seed) for seed in chosen.model_seeds]
        contexts[task] = [model.num_contexts for model in models]
        rows = [(chosen.planners[0], mode) for mode in chosen.context_modes]
        rows += [(name, chosen.context_modes[0]) for name in chosen.planners[1:]]
        played: list[Result] = []
        for name, mode in rows:
            played.append(play(task, name, mode, models, chosen.episodes))
            print(task, *played[-1].cells(played[0]), flush=True)
        print_table(f"Planners on cartpole_{task}", COLUMNS, [result.cells(played[0]) for result in played])
        results += played
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_text(markdown(results, contexts, chosen))


if __name__ == "__main__":
    main()
