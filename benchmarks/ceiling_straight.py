"""The intersection without steering: the accelerations that bring the ego to its goal line at the right time, by LP.

Straight north the car is a double integrator, and only the distance to the goal line matters (the term of the speed is
left out: it is a thousandth of the reward). `exp(-x / scale)` is convex in the distance x, so its tangent at the last
solution is a lower bound: every linear programme (least weighted sum of distances) can only raise the return.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog

from benchmarks.ceiling_agents import Agent, View
from benchmarks.ceiling_tasks import Task
from mbrl_hdp.envs.chains import FloatArray
from mbrl_hdp.envs.intersection_vehicle import IntersectionConfig


@dataclass(frozen=True)
class Straight:
    """Makes agents that never steer.

    Attributes:
        num_programmes: linear programmes solved, each with weights from the solution before.
    """

    num_programmes: int = 5

    def __call__(self, task: Task, num: int, seed: int) -> Agent:  # noqa: ARG002 - nothing is drawn
        """Make an agent for `num` episodes."""
        ego = task.physics.start(1, np.random.default_rng(0)).ego[0]
        config = IntersectionConfig()
        accelerations = plan_accelerations(config, ego[1] - config.goal_y, ego[3], self.num_programmes)

        def act(view: View) -> FloatArray:
            return np.tile((accelerations[view.step], 0.0), (num, 1))

        return act


def plan_accelerations(config: IntersectionConfig, distance: float, speed: float, num_programmes: int) -> FloatArray:
    """Return the actions `T` that make `sum_t exp(-|distance_t| / scale)` large.

    Args:
        config: numbers of the task.
        distance: from the goal line at the start, m.
        speed: towards the goal line at the start, m/s.
        num_programmes: linear programmes solved.
    """
    num, dt = config.horizon, config.dt
    # distance_t = distance - dt sum_{k<t} v_k, v_k = speed + dt a_max sum_{j<k} u_j, for t = 1 ... T.
    coasting = distance - dt * speed * np.arange(1, num + 1)
    lag = np.arange(num)[:, None] - np.arange(num)
    response = -(dt**2) * config.max_acceleration * np.maximum(lag, 0)
    identity = np.eye(num)
    # Minimise sum_t w_t x_t with x_t >= |distance_t|.
    rows = np.block([[response, -identity], [-response, -identity]])
    limits = np.concatenate((-coasting, coasting))
    bounds = [(-1.0, 1.0)] * num + [(0.0, None)] * num
    weights = np.ones(num)
    actions = np.zeros(num)
    for _ in range(num_programmes):
        cost = np.concatenate((np.zeros(num), weights))
        solution = linprog(cost, A_ub=rows, b_ub=limits, bounds=bounds, method="highs").x
        assert solution is not None, "some distances always exist"
        actions = solution[:num]
        weights = np.exp(-np.abs(coasting + response @ actions) / config.lane_scale)
    return np.clip(actions, -1.0, 1.0)
