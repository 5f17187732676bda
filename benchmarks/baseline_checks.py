"""Is each baseline good at what it is good at? `python -m benchmarks.baseline_checks [name ...]`, minutes to hours.

A baseline that fails here is not a fair one. Runs go to outputs/baseline_checks/ and are continued where they stopped;
every finished check is kept in docs/results/baseline_checks.json and shown on the page beside it.

- gpmm: 90 % of its planner's return on the true dynamics within 15 episodes of one context; labels of two contexts that
  hold for whole episodes at least .9 right.
- rnn_ppo, rnn_ppo_plain: return of at least 80 with one context, after 300,000 steps.
- pets: the last episodes on mbrl-lib's own cart-pole are as good as those of mbrl-lib's own script (its interval).
- dnnmm, anpmm: one-step error on one context at most twice that of a single network.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import copy
import csv
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import pets_script
from mbrl_hdp.control.agent import Epoch
from mbrl_hdp.data.collect import collect
from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.envs.cartpole import CartPolePhysics
from mbrl_hdp.experiments.config import check_config, load_config
from mbrl_hdp.experiments.loop import Run, start_run, train
from mbrl_hdp.experiments.summary import bootstrap_interval, git_commit
from mbrl_hdp.hooks import load_registry
from mbrl_hdp.report.tables import print_table
from mbrl_hdp.runtime import configure

ROOT = Path("outputs") / "baseline_checks"
RESULTS = Path(__file__).parents[1] / "docs" / "results"
ONE = ["env=cartpole_hard", "env.kwargs.actuation=[1.0]"]
_PETS_SEEDS, _PETS_LAST = 3, 4
HELD = ["env=cartpole_hard", "env.kwargs.switch=0.0"]
Check = Callable[[], list[list[str]]]


def _run(name: str, words: list[str]) -> Path:
    """Train to the end, or go on; return the run's folder."""
    registry = load_registry()
    config = check_config(load_config(words, registry))
    configure(config.runtime)
    train(config, registry, ROOT / name, progress=False)
    return ROOT / name


def _start(words: list[str]) -> Run:
    registry = load_registry()
    return start_run(check_config(load_config(words, registry)), registry)


def _row(name: str, found: float, words: str, is_met: bool, commit: str | None = None) -> list[str]:
    """Return a line of the table; `commit` is that in a run's summary, by default the present one."""
    return ["ok" if is_met else "missing", name, f"{found:.4g}", words, (commit or git_commit() or "unknown")[:12]]


def check_gpmm() -> list[list[str]]:
    known = planner_on_truth(10)
    folder = _run("gpmm_one", ["agent=gpmm", *ONE])
    with (folder / "metrics.csv").open() as file:
        best = max(float(row["train_return"]) for row in csv.DictReader(file))
    summary = json.loads((_run("gpmm_held", ["agent=gpmm", *HELD]) / "summary.json").read_text())
    held, commit = summary["context_accuracy"], summary["git_commit"]
    return [
        _row(
            "gpmm, one context, best of 15 episodes",
            best,
            f">= .9 of {known:.4g} on true dynamics",
            best >= 0.9 * known,
            commit,
        ),
        _row("gpmm, context held for an episode, accuracy", held, ">= .9", held >= 0.9, commit),
    ]


def planner_on_truth(num_episodes: int) -> float:
    """Return the mean return of gpmm's planner on the true dynamics of one context."""
    from mbrl_hdp_baselines.features import AngleFeatures
    from mbrl_hdp_baselines.imagination import MeanRollouts, make_mean_planner

    run = _start(["agent=gpmm", *ONE])
    task = run.agent.agent.baseline.task
    features, physics = AngleFeatures(4, [2]), CartPolePhysics()
    rollouts = MeanRollouts(task, features, torch.float64)

    def predict(inputs: torch.Tensor) -> torch.Tensor:
        before, act = inputs[:, :-1], inputs[:, -1:].numpy()
        return features.encode(torch.from_numpy(physics.step(features.decode(before).numpy(), act, {}))) - before

    rollouts.predict = predict
    planner, returns = make_mean_planner(task, rollouts), []
    for seed in range(num_episodes):
        obs, _ = run.task.env.reset(seed=seed)
        planner.reset()
        total, is_over = 0.0, False
        while not is_over:
            obs, reward, terminated, truncated, _ = run.task.env.step(planner.act(obs))
            total, is_over = total + float(reward), terminated or truncated
        returns.append(total)
    return float(np.mean(returns))


def _check_ppo(agent: str) -> Check:
    def check() -> list[list[str]]:
        summary = json.loads(
            (_run(f"{agent}_one", [f"agent={agent}", "budget.num_epochs=30", *ONE]) / "summary.json").read_text()
        )
        found = summary["return_mean"]
        name = f"{agent}, one context, {summary['env_steps']} steps"
        return [_row(name, found, ">= 80", found >= 80.0, summary["git_commit"])]

    return check


def check_pets() -> list[list[str]]:
    """Compare the last episodes of three short runs with those of mbrl-lib's script."""
    script, ours = [], []
    for seed in range(_PETS_SEEDS):
        script.append(np.array(pets_script.script_returns(seed)[-_PETS_LAST:]))
        folder = _run(f"pets_plain_{seed}", [*pets_script.words(), f"seed={seed}"])
        with (folder / "metrics.csv").open() as file:
            ours.append([float(row["train_return"]) for row in csv.DictReader(file)][-_PETS_LAST:])
    low, high = bootstrap_interval(script)
    found = float(np.mean(ours))
    name = f"pets, mbrl-lib's cart-pole, last {_PETS_LAST} of {pets_script.TRIALS} episodes, {_PETS_SEEDS} seeds"
    return [_row(name, found, f">= {low:.4g} (mbrl-lib's script: {np.mean(script):.4g} [{low:.4g}, {high:.4g}])",
                 found >= low)]  # fmt: skip


def _check_chunks(agent: str) -> Check:
    """Compare the largest component's one-step error with that of one network that is trained on the same episodes."""

    def check() -> list[list[str]]:
        run = _start([f"agent={agent}", *ONE])
        mixture = run.agent.agent
        data, other = (collect(run.task.env, num_episodes=20, seed=seed, progress=False) for seed in (0, 1))
        mixture.learn(Epoch(data, None, None, False, 0))
        for obs, act in zip(data.obs, data.act, strict=True):
            for t in range(len(act)):
                mixture.observe(obs[t], act[t], 0.0, obs[t + 1], False)
        largest = max(mixture.components, key=lambda component: len(component.inputs))
        inputs, targets = _pairs(mixture, other)
        error = _error(largest.predict_mean(inputs), targets)
        single = _error(single_network(*_pairs(mixture, data))(inputs), targets)
        return [_row(f"{agent}, one-step RMSE", error, f"<= 2 x {single:.4g}", error <= 2.0 * single)]

    return check


def single_network(inputs: torch.Tensor, targets: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a plain regression network, least squares by Adam, the weights best on a tenth of the rows."""
    torch.manual_seed(0)
    centre, spread, middle, scale = inputs.mean(0), inputs.std(0), targets.mean(0), targets.std(0)
    x, y, order = (inputs - centre) / spread, (targets - middle) / scale, torch.randperm(len(inputs))
    held, rest = order[: len(order) // 10], order[len(order) // 10 :]
    layers = [torch.nn.Linear(x.shape[1], 256), torch.nn.ReLU(), torch.nn.Linear(256, 256), torch.nn.ReLU()]
    network = torch.nn.Sequential(*layers, torch.nn.Linear(256, y.shape[1]))
    optimizer, best, kept = torch.optim.Adam(network.parameters(), lr=1e-3), np.inf, network.state_dict()
    for _ in range(200):
        for batch in rest[torch.randperm(len(rest))].split(64):
            optimizer.zero_grad()
            (network(x[batch]) - y[batch]).square().mean().backward()
            optimizer.step()
        with torch.no_grad():
            loss = float((network(x[held]) - y[held]).square().mean())
        if loss < best:
            best, kept = loss, copy.deepcopy(network.state_dict())
    network.load_state_dict(kept)
    return lambda rows: network((rows - centre) / spread).detach() * scale + middle


def _pairs(mixture: Any, data: Trajectories) -> tuple[torch.Tensor, torch.Tensor]:
    pairs = [
        mixture._pair(obs[t], act[t], obs[t + 1])
        for obs, act in zip(data.obs, data.act, strict=True)
        for t in range(len(act))
    ]
    inputs, targets = zip(*pairs, strict=True)
    return torch.stack(inputs), torch.stack(targets)


def _error(predicted: torch.Tensor, targets: torch.Tensor) -> float:
    return float(((predicted - targets) / targets.std(0)).square().mean().sqrt())


CHECKS: dict[str, Check] = {
    "gpmm": check_gpmm,
    "rnn_ppo_plain": _check_ppo("rnn_ppo_plain"),
    "rnn_ppo": _check_ppo("rnn_ppo"),
    "pets": check_pets,
    "dnnmm": _check_chunks("dnnmm"),
    "anpmm": _check_chunks("anpmm"),
}


def keep(name: str, rows: list[list[str]], folder: Path = RESULTS) -> None:
    """Add a finished check to those that are kept, in the place of an earlier one, and write the page."""
    path = folder / "baseline_checks.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    found[name] = rows
    path.write_text(json.dumps(found, indent=1) + "\n")
    (folder / "baseline_checks.md").write_text(page(found))


def page(found: Mapping[str, Any]) -> str:
    """Return the page of the checks that are kept; those that were never run are named."""
    lines = [
        "# Is each baseline good at what it is good at?",
        "",
        "Written by `python -m benchmarks.baseline_checks [NAME ...]`; do not edit. A baseline that fails would not "
        "be a fair comparison. Cart-pole, seed 0; `one context`: nothing ever switches. Commit: of the last "
        "evaluation; a run that is in `outputs/baseline_checks` is not trained anew.",
        "",
        "| | check | found | wanted | commit |",
        "|---|---|---|---|---|",
    ]
    for name in CHECKS:
        if name in found:
            lines += [f"| {' | '.join(row)} |" for row in found[name]]
        else:
            lines.append(f"| not run | {name} | - | - | - |")
    return "\n".join(lines) + "\n"


def main(names: list[str]) -> int:
    unknown = set(names) - set(CHECKS)
    if unknown:
        print(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(CHECKS)}", file=sys.stderr)
        return 2
    rows = []
    for name in names or CHECKS:
        found = CHECKS[name]()
        keep(name, found)
        rows += found
    print_table("Baselines at what they are good at", ["", "what", "found", "wanted", "commit"], rows)
    return 0 if all(row[0] == "ok" for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
