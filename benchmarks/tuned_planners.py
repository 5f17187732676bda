"""How good is `planner.tune=auto`? The planner that was chosen on the learned model against one that was made by hand.

    python -m benchmarks.tuned_planners [--tasks drone pendulum] [--episodes 20] [--seed 0] [--out FILE]

For every task a model is learned from random episodes, `tune_planner` chooses settings on it, and both planners play
the same real episodes with it. The hand-made settings of the first three are their presets in conf/planner; those of
the last two, tasks of nobody's paper, were written down before anything was tuned. Finished tasks are kept in FILE's
.jsonl and are not run again.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

import mbrl_hdp  # noqa: F401 - registers the environments
from benchmarks.planner_table import commit
from mbrl_hdp.control.planner import make_planner
from mbrl_hdp.control.planner_config import PlannerConfig
from mbrl_hdp.control.tracker import BeliefAgent, BeliefTracker
from mbrl_hdp.control.tuning import ImaginedTask, tune_planner
from mbrl_hdp.data.collect import collect
from mbrl_hdp.envs import Context, MarkovChain, SwitchingContext
from mbrl_hdp.experiments.config import check_config, load_config
from mbrl_hdp.experiments.tasks import make_env
from mbrl_hdp.hooks import load_registry
from mbrl_hdp.inference.fit import fit
from mbrl_hdp.inference.model import ContextModel
from mbrl_hdp.runtime import configure
from mbrl_hdp_planners import CemConfig

Env = gymnasium.Env[Any, Any]
EVALUATION_SEED = 2000
COLUMNS = ("task", "contexts", "by hand", "tuned", "difference", "tuned / by hand", "chosen", "tuning, CPU s")


def pendulum_reward(act: Tensor, next_obs: Tensor) -> Tensor:
    """Return how upright the pendulum is, less a little for the torque."""
    return next_obs[..., :1] - 0.01 * act**2


def car_reward(act: Tensor, next_obs: Tensor) -> Tensor:
    """Return the height of the car, less a little for the throttle."""
    return (3.0 * next_obs[..., :1]).sin() - 0.05 * act**2


def never(_act: Tensor, next_obs: Tensor) -> Tensor:
    """Return no termination."""
    return torch.zeros_like(next_obs[..., :1], dtype=torch.bool)


@dataclass(frozen=True)
class Case:
    """One task: how it is built, learned and planned for by hand."""

    make: Callable[[], Env]
    by_hand: PlannerConfig
    dynamics: str = "auto"
    num_episodes: int = 100
    reward_fn: Callable[[Tensor, Tensor], Tensor] | None = None
    num_steps: int | None = None


def preset(name: str, num_episodes: int) -> Case:
    """Return a task of the paper with its preset."""
    config = check_config(load_config([f"env={name}"]))
    return Case(
        lambda: make_env(config.env.id, config.env.kwargs),
        load_registry().build_planner(config.planner.name, None, config.planner),  # type: ignore[arg-type]
        config.dynamics.name,
        num_episodes,
    )


def reversed_motor(env_id: str) -> Callable[[], Env]:
    """Return a maker of a gymnasium task whose motor sometimes answers the wrong way round."""
    chain = MarkovChain.symmetric(2, switch=0.1, cool_off=5)
    return lambda: SwitchingContext(gymnasium.make(env_id), [Context(), Context(action_scale=-1.0)], chain)


def cases() -> dict[str, Callable[[], Case]]:
    """Return the tasks by name."""
    return {
        "cartpole": lambda: preset("cartpole_hard", 100),
        "drone": lambda: preset("drone_vector", 200),
        "intersection": lambda: preset("intersection_vector", 200),
        "pendulum": lambda: Case(
            reversed_motor("Pendulum-v1"),
            CemConfig(horizon=15, noise_color=0.5, tune="never"),
            reward_fn=pendulum_reward,
            num_steps=100,
        ),
        "mountain car": lambda: Case(
            reversed_motor("MountainCarContinuous-v0"),
            CemConfig(horizon=25, noise_color=0.9, tune="never"),
            reward_fn=car_reward,
            num_steps=100,
        ),
    }


@dataclass(frozen=True)
class Real:
    """A task with its model: where planners play."""

    env: Env
    model: ContextModel
    functions: tuple[Any, Any]
    num_steps: int | None

    def returns(self, config: PlannerConfig, num_episodes: int) -> np.ndarray[Any, Any]:
        """Play episodes with a planner; the return is that of the reward that it plans for."""
        space: Any = self.env.action_space
        planner = make_planner(config, self.model, *self.functions, space.low, space.high, EVALUATION_SEED)
        agent = BeliefAgent(planner, BeliefTracker(self.model))
        data = collect(self.env, agent, num_episodes, EVALUATION_SEED, progress=False, max_steps=self.num_steps)
        act, after = (torch.as_tensor(part, dtype=torch.float32) for part in (data.act, data.obs[:, 1:]))
        reward: Tensor = self.functions[0](act, after)[..., 0]
        return np.asarray(reward.nansum(-1).double())


def measure(case: Case, seed: int, num_episodes: int, tune_seconds: float) -> dict[str, Any]:
    """Learn, tune, play with both planners."""
    asked = CemConfig(tune_seconds=tune_seconds)
    env = case.make()
    data = collect(env, num_episodes=case.num_episodes, seed=seed, progress=False)
    dt = getattr(env.unwrapped, "dt", None) if case.dynamics != "auto" else None
    model = fit(data, dynamics=case.dynamics, seed=seed, dt=dt, duration="geometric", progress=False)
    own = case.reward_fn is not None
    functions = (case.reward_fn, never) if own else tuple(map(env.get_wrapper_attr, ("reward_fn", "termination_fn")))
    real = Real(env, model, functions, case.num_steps)  # type: ignore[arg-type]
    space: Any = env.action_space
    num_steps = case.num_steps or int(data.lengths.max())
    task = ImaginedTask(model, *functions, space.low, space.high, data.obs[:, 0], num_steps, seed)  # type: ignore[arg-type]
    began = time.process_time()
    tuning = tune_planner(asked, task)
    seconds = time.process_time() - began
    return {
        "contexts": model.num_contexts,
        "by_hand": real.returns(case.by_hand, num_episodes).tolist(),
        "tuned": real.returns(tuning.apply(asked), num_episodes).tolist(),
        "chosen": tuning.chosen,
        "settings": asdict(case.by_hand),
        "tune_s": round(seconds, 1),
        "commit": commit(),
    }


def row(name: str, found: dict[str, Any]) -> list[str]:
    """Return a task's row."""
    by_hand, tuned = (np.array(found[key]) for key in ("by_hand", "tuned"))
    change = tuned - by_hand
    error = change.std(ddof=1) / np.sqrt(len(change))
    chosen = ", ".join(f"{key} {value}" for key, value in found["chosen"].items()) or "the defaults"
    returns = [f"{each.mean():.2f} ± {each.std():.2f}" for each in (by_hand, tuned)]
    share = f"{tuned.mean() / by_hand.mean():.3f}" if by_hand.mean() > 0 else "-"
    return [name, str(found["contexts"]), *returns, f"{change.mean():+.2f} ± {error:.2f}", share, chosen,
            f"{found['tune_s']:.0f}"]  # fmt: skip


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="planner.tune=auto against settings made by hand.")
    parser.add_argument("--tasks", nargs="+", choices=list(cases()), default=list(cases()))
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tune-seconds", type=float, default=CemConfig().tune_seconds)
    parser.add_argument("--out", type=Path, default=Path("docs/results/tuned_planners.md"))
    chosen = parser.parse_args(arguments)
    configure()
    records = chosen.out.with_suffix(".jsonl")
    found = {}
    if records.is_file():
        found = {line["task"]: line for line in map(json.loads, records.read_text().splitlines())}
    for name in chosen.tasks:
        if name not in found:
            found[name] = {"task": name, **measure(cases()[name](), chosen.seed, chosen.episodes, chosen.tune_seconds)}
            with records.open("a") as file:
                file.write(json.dumps(found[name]) + "\n")
            print(*row(name, found[name]), flush=True)
    rows = [row(name, found[name]) for name in cases() if name in found]
    lines = [f"| {' | '.join(cells)} |" for cells in (COLUMNS, ["---"] * len(COLUMNS), *rows)]
    commits = ", ".join(sorted({line["commit"] for line in found.values()}))
    page = (
        "# The planner that tunes itself\n\n"
        "Settings that `planner.tune=auto` chose on the learned model alone (no real step) against settings made by "
        f"hand, with the same model (random episodes, seed {chosen.seed}) in the same real episodes. Return: mean ± "
        "standard deviation over episodes; difference: mean ± standard error, episode by episode. By hand: the presets "
        "of the first three tasks; Pendulum-v1 and MountainCarContinuous-v0 with a motor that sometimes answers the "
        "wrong way round, a dense reward and settings written down before anything was tuned (horizon 15 and colour "
        ".5; horizon 25 and colour .9).\n\n" + "\n".join(lines) + "\n\n"
        f"Written by `python -m benchmarks.tuned_planners`; commits {commits}.\n"
    )
    chosen.out.write_text(page)


if __name__ == "__main__":
    main()
