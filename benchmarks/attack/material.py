"""What is attacked: small finished runs, models and data files, made once by the program itself."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.attack.sandbox import run_command

SMALL = (
    *("profile=smoke", "max_contexts=3", "env.kwargs.horizon=12", "dynamics.hidden_sizes=[16]", "planner.horizon=3"),
    *("budget.num_epochs=2", "budget.warm_episodes=4", "budget.eval_episodes=1", "budget.final_eval_episodes=1"),
)
"""Settings of a run that takes seconds; everything else is the program's default."""
QUICK_FIT = ("dynamics=linear", "max_contexts=3", "fit.num_steps=20", "fit.num_restarts=1", "fit.polish_steps=5")


@dataclass(frozen=True)
class Material:
    """Where everything is.

    Attributes:
        root: folder of it all.
    """

    root: Path

    def run(self, agent: str, seed: int = 0) -> Path:
        """Return a finished run, trained on first use."""
        return self._made(f"run_{agent}_{seed}", ["train", *SMALL, f"agent={agent}", f"seed={seed}"], "hydra.run.dir")

    def fit(self, seed: int = 0) -> Path:
        """Return a folder that `mbrl-hdp fit` wrote."""
        words = ["fit", str(self.data(seed)), *QUICK_FIT, "fit.halves_within_s=0", f"seed={seed}"]
        return self._made(f"fit_{seed}", words, "out")

    def data(self, seed: int = 0) -> Path:
        """Return a CSV file of a machine with two regimes."""
        path = self.root / f"machine_{seed}.csv"
        if not path.is_file():
            path.write_text(machine_csv(seed))
        return path

    def copy(self, source: Path, name: str) -> Path:
        """Copy a run, a model or a file to a fresh place, which an attempt may spoil."""
        target = self.root / "attempts" / name / source.name
        if target.parent.exists():
            shutil.rmtree(target.parent)
        target.parent.mkdir(parents=True)
        if source.is_dir():
            shutil.copytree(source, target, symlinks=True)
        else:
            shutil.copy2(source, target)
        return target

    def _made(self, name: str, words: Sequence[str], key: str) -> Path:
        folder = self.root / name
        if not folder.is_dir():
            outcome = run_command([*words, "--no-report", f"{key}={folder}"], self.root, limit=600.0)
            if outcome.code != 0:
                raise SystemExit(f"{name} could not be made\n{outcome.err}")
        return folder


def machine_csv(seed: int, num_episodes: int = 6, num_steps: int = 40) -> str:
    """Return logs of a machine whose drift changes its sign now and then."""
    rng = np.random.default_rng(seed)
    lines = ["episode,step,obs_level,obs_flow,act_valve,context"]
    for episode in range(num_episodes):
        state, context = rng.normal(size=2), 0
        for step in range(num_steps):
            act = rng.uniform(-1.0, 1.0)
            lines.append(f"{episode},{step},{state[0]:.6f},{state[1]:.6f},{act:.6f},{context}")
            push = 0.5 if context == 0 else -0.5
            state = 0.9 * state + np.array([push * act, 0.1]) + 0.01 * rng.normal(size=2)
            context = 1 - context if rng.uniform() < 0.1 else context
        lines.append(f"{episode},{num_steps},{state[0]:.6f},{state[1]:.6f},,")
    return "\n".join(lines) + "\n"
