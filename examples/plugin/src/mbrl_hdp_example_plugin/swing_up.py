"""A controller for cart-pole swing-up that finds out which way the actuator pushes and tunes its own gains.

It pumps energy into the pole until it is nearly upright, then balances it. Two things adapt:

- Within an episode: the effect of the action on the cart's velocity, by exponentially weighted least squares. With a
  hidden failure that reverses the actuator its sign flips, and so does the controller's.
- Over episodes: the four gains, by a (1+1) evolution strategy on the return of training episodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mbrl_hdp.control.baseline import Baseline
from mbrl_hdp.errors import ConfigError
from mbrl_hdp.settings import check_settings, setting
from mbrl_hdp.types import TaskSpec

Vector = NDArray[np.floating[Any]]
_START = (8.0, 1.0, 2.0, 0.1)


@dataclass
class SwingUpConfig:
    """Settings of the `swing_up` agent."""

    memory: float = setting(0.6, "weight of the past in the actuator's estimate, per step", at_least=0.0, below=1.0)
    step: float = setting(0.2, "relative size of the changes of the gains that are tried", above=0.0)


class SwingUp(Baseline):
    """Energy pumping and balancing with gains for the angle, its rate, pumping and the cart's velocity."""

    def __init__(self, config: SwingUpConfig, seed: int) -> None:
        self.config, self.rng = config, np.random.default_rng(seed)
        self.best, self.best_return = np.array(_START), -np.inf
        self.tried = self.best.copy()
        self.episode_return = 0.0
        self.reset()

    def reset(self) -> None:
        """Begin an episode: the actuator is believed to push as it should."""
        self.products, self.squares = 1.0, 1.0
        self.last: tuple[float, float] | None = None
        self.labels: list[int] = []

    def act(self, obs: Vector, explore: bool = False) -> Vector:
        """Estimate the actuator from the last step, then pump or balance."""
        _, velocity, angle, rate = map(float, obs)
        if self.last is not None:
            before, act = self.last
            self.products = self.config.memory * self.products + act * (velocity - before)
            self.squares = self.config.memory * self.squares + act * act
        sign = 1.0 if self.products >= 0.0 else -1.0
        self.labels.append(int(sign < 0.0))
        gains = self.tried if explore else self.best
        angle = (angle + np.pi) % (2 * np.pi) - np.pi
        if abs(angle) < 0.6:
            push = -gains[0] * angle - gains[1] * rate
        else:
            energy = 0.5 * rate * rate + 24.0 * (np.cos(angle) - 1.0)  # zero at rest upright
            push = -gains[2] * np.sign(energy) * rate * np.cos(angle)
        act = float(np.clip(sign * (push - gains[3] * velocity), -1.0, 1.0))
        self.last = (velocity, act)
        return np.array([act])

    def observe(self, obs: Vector, act: Vector, reward: float, next_obs: Vector, terminated: bool) -> None:  # noqa: ARG002
        """Add up the return."""
        self.episode_return += reward

    def end_episode(self) -> Mapping[str, float]:
        """Keep the gains that were tried if they did better; try a change of the best ones next."""
        if self.episode_return > self.best_return:
            self.best, self.best_return = self.tried, self.episode_return
        self.episode_return = 0.0
        self.tried = self.best * np.exp(self.config.step * self.rng.normal(size=len(self.best)))
        return {"best_return": self.best_return}

    def context_labels(self) -> NDArray[np.integer[Any]] | None:
        """Return 1 for every step at which the actuator was believed to be reversed."""
        return np.array(self.labels, dtype=np.int64)

    def state_dict(self) -> Mapping[str, Any]:
        """Return the gains, the best return and the generator; what `reset` makes is left out."""
        return {
            "best": self.best,
            "tried": self.tried,
            "best_return": self.best_return,
            "generator": self.rng.bit_generator.state,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.best, self.tried, self.best_return = state["best"], state["tried"], state["best_return"]
        self.rng.bit_generator.state = state["generator"]


def build_swing_up(config: SwingUpConfig, task: TaskSpec) -> Baseline:
    """Build the controller for cart-pole's observation x, v, theta, omega and its one action."""
    check_settings(config, "agent")
    if (task.obs_dim, task.act_dim) != (4, 1):
        raise ConfigError("agent=swing_up is a controller for cart-pole: choose env=cartpole_hard or a relative of it")
    return SwingUp(config, task.seed)
