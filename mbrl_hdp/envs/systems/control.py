"""Systems of the suite as control tasks: gymnasium environments with a goal, for agents that get no preset.

    mbrl-hdp train env=gymnasium env.id=mbrl_hdp.envs.systems.control:SuiteSystem-v0 +env.kwargs.system=unicycle

Importing this module registers the id, as a module of one's own would.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box
from torch import Tensor

from mbrl_hdp.envs.chains import FloatArray, MarkovChain
from mbrl_hdp.envs.switching import Context, SwitchingContext
from mbrl_hdp.envs.systems import build_system
from mbrl_hdp.envs.systems.system import System
from mbrl_hdp.errors import ConfigError, did_you_mean

ENV_ID = "SuiteSystem-v0"
HORIZON = 100


@dataclass(frozen=True)
class Goal:
    """Where a system should be: the reward of a step is 1 / (1 + sum_i ((obs_i - target_i) / scale_i)^2).

    Attributes:
        scales: for every column that counts, the distance at which the reward has fallen to one half.
        targets: where these columns should be; 0 by default.
        angle_columns: columns whose distance is that of angles, 2 (1 - cos(obs_i - target_i)) in place of the square.
    """

    scales: Mapping[int, float]
    targets: Mapping[int, float] | None = None
    angle_columns: tuple[int, ...] = ()

    def reward(self, next_obs: Tensor) -> Tensor:
        """Return the rewards `B 1` of next observations `B S`, in (0, 1]."""
        cost = torch.zeros_like(next_obs[..., :1])
        for column, scale in self.scales.items():
            away = next_obs[..., column : column + 1] - (self.targets or {}).get(column, 0.0)
            square = 2.0 * (1.0 - away.cos()) if column in self.angle_columns else away.square()
            cost = cost + square / scale**2
        return 1.0 / (1.0 + cost)


# Written down before anything was tried on them.
GOALS: dict[str, Goal] = {
    "pendulum": Goal({0: 0.5, 1: 4.0}, angle_columns=(0,)),
    "two_tanks": Goal({1: 0.3}, {1: 1.5}),
    "unicycle": Goal({0: 0.5, 1: 0.5}),
    "quadrotor_planar": Goal({0: 0.5, 1: 0.5, 2: 0.5}),
    "windy_point": Goal({0: 0.5, 1: 0.5}),
}


class SystemEnv(gymnasium.Env[FloatArray, FloatArray]):
    """One episode of a system; it is truncated at the horizon and never terminates.

    Attributes:
        acting: the context that acts on the next step; `SwitchingContext` sets it.
        dt: seconds per step.
    """

    def __init__(self, system: System, goal: Goal, horizon: int) -> None:
        self.system, self.goal, self.horizon, self.dt = system, goal, horizon, system.dt
        self.acting = 0
        self._state = system.start(np.random.default_rng(0), 1)
        self.observation_space = Box(-np.inf, np.inf, self._observe().shape, np.float64)
        self.action_space = Box(-1.0, 1.0, (system.act_dim,), np.float64)
        self._num_steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[FloatArray, dict[str, Any]]:
        """Start an episode where the system's random data starts."""
        super().reset(seed=seed, options=options)
        self._state, self._num_steps = self.system.start(self.np_random, 1), 0
        return self._observe(), {}

    def step(self, action: FloatArray) -> tuple[FloatArray, float, bool, bool, dict[str, Any]]:
        """Apply the clipped action in the acting context."""
        act = np.clip(np.asarray(action, dtype=np.float64), -1.0, 1.0)[None]
        self._state = self.system.step(self._state, act, np.array([self.acting]), np.zeros(1), self.np_random)
        self._num_steps += 1
        obs = self._observe()
        reward = float(self.goal.reward(torch.as_tensor(obs[None])))
        return obs, reward, False, self._num_steps >= self.horizon, {}

    def reward_fn(self, act: Tensor, next_obs: Tensor) -> Tensor:  # noqa: ARG002 - mbrl-lib's signature
        """Return the rewards `B 1` of imagined steps."""
        return self.goal.reward(next_obs)

    def _observe(self) -> FloatArray:
        return self._state[0].copy()


def make_system(system: str, horizon: int = HORIZON) -> SwitchingContext:
    """Make a system of the suite that has a goal, with its hidden contexts.

    Raises:
        ConfigError: if there is no such system, or it has no goal.
    """
    if system not in GOALS:
        raise ConfigError(f"env.kwargs.system={system}: no goal is defined for it; {did_you_mean(system, GOALS)}")
    built = build_system(system)
    contexts = [Context(attributes={"acting": number}) for number in range(built.num_contexts)]
    chain = MarkovChain.symmetric(built.num_contexts, built.switch, built.cool_off)
    return SwitchingContext(SystemEnv(built, GOALS[system], horizon), contexts, chain)


gymnasium.register(id=ENV_ID, entry_point=f"{__name__}:make_system")
