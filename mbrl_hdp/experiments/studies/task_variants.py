"""Variants of the drone and the intersection: what each one changes, and what can be reached in it.

`python -m benchmarks.ceiling_variants` computes the ceilings and writes `variant_ceilings.json` beside this file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

DEFAULT = "switch 0.2"
CEILINGS = Path(__file__).with_name("variant_ceilings.json")
# Ids of the tasks with random starts.
_NOISY = {"drone": "NoisyTakeOff-v0", "intersection": "NoisyLeftTurn-v0"}
# Drone: rad and rad/s. Intersection: m, m/s and tenths of a rad.
START_NOISE = {"drone": 0.05, "intersection": 1.0}
# Reward lost on every step on which the cars overlap; a step on the exit lane earns about 6.
COLLISION_COST = 10.0


@dataclass(frozen=True)
class TaskVariant:
    """What a variant changes of a task.

    Attributes:
        switch: switch probability after the cool-off.
        actuation: one context per factor on the actuator.
        has_noise: whether episodes start at random (`START_NOISE`).
        collision_cost: reward lost on every step on which the cars overlap; None on the drone, which meets nobody.
    """

    switch: float = 0.2
    actuation: tuple[float, ...] = (1.0, -1.0)
    has_noise: bool = False
    collision_cost: float | None = None

    def start_noise(self, task: str) -> float:
        """Return the standard deviation of the start, see `mbrl_hdp.envs.noisy_starts`."""
        return START_NOISE[task] if self.has_noise else 0.0

    def overrides(self, task: str) -> list[str]:
        """Return the words of `mbrl-hdp train` that make this variant of a task's preset; none for the default."""
        words, plain = [], TaskVariant()
        if self.switch != plain.switch:
            words.append(f"env.kwargs.switch={self.switch}")
        if self.actuation != plain.actuation:
            words.append(f"env.kwargs.actuation={list(self.actuation)}")
        if self.has_noise:
            words.append(f"env.id=mbrl_hdp.envs.noisy_starts:{_NOISY[task]}")
            words.append(f"+env.kwargs.start_noise={START_NOISE[task]}")
        if self.collision_cost:
            words.append(f"+env.kwargs.collision_cost={self.collision_cost}")
        return words


COSTLY = f"collision cost {COLLISION_COST:g}"
SWITCHES = (0.05, 0.1, 0.15, 0.2, 0.3, 0.5)
VARIANTS: Mapping[str, TaskVariant] = {
    **{f"switch {switch:g}": TaskVariant(switch) for switch in SWITCHES},
    "start noise": TaskVariant(has_noise=True),
    "actuation 1, 0.3": TaskVariant(actuation=(1.0, 0.3)),
    "actuation 1, -1, 0.3": TaskVariant(actuation=(1.0, -1.0, 0.3)),
    COSTLY: TaskVariant(collision_cost=COLLISION_COST),
}


def variants_of(task: str) -> list[str]:
    """Return the names of the variants of a task, the default among them."""
    return [name for name, variant in VARIANTS.items() if task == "intersection" or not variant.collision_cost]


@dataclass(frozen=True)
class VariantCeiling:
    """Mean return with the true dynamics and the exact filter; see docs/ceilings.md."""

    mean: float
    standard_error: float
    num_episodes: int
    agent: str


@lru_cache
def variant_ceilings() -> Mapping[tuple[str, str], VariantCeiling]:
    """Read the ceilings by task and variant."""
    cells = json.loads(CEILINGS.read_text())["cells"].values()
    names = ("mean", "standard_error", "num_episodes", "agent")
    return {(cell["task"], cell["variant"]): VariantCeiling(*(cell[name] for name in names)) for cell in cells}
