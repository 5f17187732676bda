"""Cross-entropy planning on true dynamics, many episodes at once.

With actuation +-1 a plan is best written in *controls* u, what the agent wants the actuator to do; it sends
`a = guess * u`, where the guess is the sign of an actuation, and the plant does `gain * u` with `gain = guess *
actuation of the context that acts`. An agent that knows the context has gain 1; one that sees it a step late has gain
-1 on the step of a switch only. Where the actuation is not +-1, the gain is not either, and plans allow for it.
(Entries of the action that the contexts leave alone are sent as they are.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.ceiling_tasks import Task, repeat_state
from mbrl_hdp.envs.chains import FloatArray


@dataclass(frozen=True)
class CemConfig:
    """Settings of the planner.

    Attributes:
        horizon: steps that a plan looks ahead.
        population: candidate plans an iteration.
        num_elites: candidates that the next mean and spread are made of.
        num_iterations: iterations an action.
        num_paths: futures of the gain that every candidate is scored on (one where the context is known).
        noise_color: coefficient of the AR(1) noise over the steps of a plan.
        initial_std: spread of the first iteration.
        min_std: smallest spread.
        update_rate: share of the new mean and spread.
    """

    horizon: int
    population: int
    num_elites: int
    num_iterations: int
    num_paths: int
    noise_color: float
    initial_std: float = 1.0
    min_std: float = 0.02
    update_rate: float = 0.9


class CemPlanner:
    """Receding-horizon planner with a shifted warm start.

    Args:
        task: gives model and bounds.
        config: settings.
        num: number of episodes E.
        seed: of the planner's noise.
        free: 1 for the entries of the action that are planned, 0 for those kept at zero, `A`; None plans all.
    """

    def __init__(self, task: Task, config: CemConfig, num: int, seed: int, free: Sequence[float] | None = None) -> None:
        self.task, self.config = task, config
        is_free = np.ones(task.physics.act_dim) if free is None else np.asarray(free)
        self._bounds = (task.physics.act_low * is_free, task.physics.act_high * is_free)
        self._rng = np.random.default_rng(seed)
        self._mean = np.zeros((num, config.horizon, task.physics.act_dim))

    def plan(self, state: Any, gains: FloatArray, num_left: int) -> FloatArray:
        """Return the first controls `E A` of the best plans.

        Args:
            state: states of the E episodes.
            gains: futures of the gain, `E P H` with H at least the steps looked ahead.
            num_left: steps until the end of the episode.
        """
        config = self.config
        horizon = min(config.horizon, num_left)
        mean, std = self._mean[:, :horizon], np.full_like(self._mean[:, :horizon], config.initial_std)
        for _ in range(config.num_iterations):
            plans = self._candidates(mean, std)
            scores = score_plans(self.task, state, plans, gains[:, :, :horizon])
            elites = _best(plans, scores, config.num_elites)
            mean = mean + config.update_rate * (elites.mean(axis=1) - mean)
            std = std + config.update_rate * (elites.std(axis=1) - std)
            std = np.maximum(std, config.min_std)
        self._mean = np.zeros_like(self._mean)
        self._mean[:, : horizon - 1] = mean[:, 1:]
        return mean[:, 0]

    def _candidates(self, mean: FloatArray, std: FloatArray) -> FloatArray:
        """Draw plans `E N H A` around the mean; the mean itself is the first."""
        num, horizon, act_dim = mean.shape
        noise = self._rng.standard_normal((num, self.config.population, horizon, act_dim))
        color = self.config.noise_color
        for step in range(1, horizon):
            noise[:, :, step] = color * noise[:, :, step - 1] + np.sqrt(1.0 - color**2) * noise[:, :, step]
        noise[:, 0] = 0.0
        plans = mean[:, None] + std[:, None] * noise
        return np.clip(plans, *self._bounds)


def score_plans(task: Task, state: Any, plans: FloatArray, gains: FloatArray) -> FloatArray:
    """Return the mean return `E N` of plans `E N H A` over the futures `E P H` of the gain."""
    num, population, horizon, act_dim = plans.shape
    num_paths = gains.shape[1]
    shape = (num, population, num_paths)
    rows = repeat_state(task.planning_state(state), population * num_paths)
    total = np.zeros(num * population * num_paths)
    for step in range(horizon):
        act = np.broadcast_to(plans[:, :, None, step], (*shape, act_dim)).reshape(-1, act_dim)
        gain = np.broadcast_to(gains[:, None, :, step], shape).reshape(-1)
        rows = task.model.step(rows, act, {"actuation": gain})
        total += task.model.reward(act, task.model.observe(rows))
    return total.reshape(shape).mean(axis=-1)


def _best(plans: FloatArray, scores: FloatArray, num: int) -> FloatArray:
    """Return the `num` plans with the highest scores of every episode, `E num H A`."""
    order = np.argpartition(-scores, num - 1, axis=1)[:, :num]
    return np.take_along_axis(plans, order[:, :, None, None], axis=1)
