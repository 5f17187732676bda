"""Batched numpy left turn: the ego's bicycle and the social car on highway-env's road, many episodes at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mbrl_hdp.envs import intersection_driver as driver
from mbrl_hdp.envs import intersection_road as road
from mbrl_hdp.envs.batch import BatchPhysics
from mbrl_hdp.envs.intersection_road import FloatArray, IntArray
from mbrl_hdp.envs.intersection_vehicle import (
    IntersectionConfig,
    advance,
    cars_overlap,
    center_distance,
    observation,
    observed_overlap,
)

OBS_DIM, ACT_DIM = 12, 2


class IntersectionState(NamedTuple):
    """States of `B` left turns.

    Attributes:
        ego: x, y, heading, speed, `B 4`.
        social: the same of the social car.
        driver: what the social car's driver keeps in mind.
        is_crashed: the cars have overlapped since the start, `B`.
        closest: smallest distance of their centres since the start, m, `B`.
    """

    ego: FloatArray
    social: FloatArray
    driver: driver.DriverState
    is_crashed: NDArray[np.bool_]
    closest: FloatArray


class IntersectionPhysics(BatchPhysics):
    """Left turn of `B` egos at once.

    Observation: x, y, vx, vy, cos h, sin h of the ego 0-5 and of the social car 6-11, absolute, SI units; y points
    south. Action: acceleration and steering in [-1, 1], in this order; `actuation` multiplies the steering.

    Args:
        config: the task.
    """

    obs_dim = OBS_DIM
    act_dim = ACT_DIM

    def __init__(self, config: IntersectionConfig | None = None) -> None:
        self.config = config or IntersectionConfig()
        self.dt = self.config.dt
        self.horizon = self.config.horizon
        self._route = road.route_lanes(self.config.social_from, self.config.social_to)

    def start(self, num: int, rng: np.random.Generator) -> IntersectionState:  # noqa: ARG002 - the start has no noise
        """Return `num` copies of the start."""
        config, south = self.config, road.route_lanes("south", "west")[0]
        ego = _on_lane(num, south, config.ego_longitudinal, config.ego_speed)
        social = _on_lane(num, self._route[0], config.social_longitudinal, config.social_speed)
        minds = driver.DriverState(
            np.zeros(num, dtype=np.int64),
            np.full(num, config.social_speed),
            np.zeros(num, dtype=np.bool_),
            np.zeros(num, dtype=np.int64),
        )
        return IntersectionState(ego, social, minds, cars_overlap(ego, social), center_distance(ego, social))

    def observe(self, state: IntersectionState) -> FloatArray:
        """Return the observations `B 12`."""
        return observation(state.ego, state.social)

    def step(self, state: IntersectionState, act: FloatArray, params: Mapping[str, FloatArray]) -> IntersectionState:
        """Return the states after one step: both drivers decide on what they see, then both cars move."""
        config = self.config
        ego_acceleration, ego_steering = ego_controls(config, act, params.get("actuation", 1.0))
        view = driver.look(state.ego, state.social)
        minds = state.driver._replace(stage=driver.next_stage(self._route, state.driver.stage, view))
        lane = self._route[minds.stage]
        steering = driver.steering(lane, view)
        acceleration = driver.acceleration(config, lane, minds.target_speed, view)
        minds = driver.obey_rules(config, self._route, minds, view, ego_steering)
        ego = advance(config, state.ego, ego_steering, ego_acceleration, config.dt)
        social = advance(config, state.social, steering, acceleration, config.dt)
        is_crashed = state.is_crashed | cars_overlap(ego, social)
        closest = np.minimum(state.closest, center_distance(ego, social))
        return IntersectionState(ego, social, minds, is_crashed, closest)

    def reward(self, act: FloatArray, next_obs: FloatArray) -> FloatArray:
        """Return the rewards `B`: on the exit lane, heading west, moving, steering little; collisions at their cost."""
        config = self.config
        lane = config.lane_weight * np.exp(-np.abs(next_obs[:, 1] - config.goal_y) / config.lane_scale)
        heading = config.heading_weight * np.exp(-np.abs(1.0 + next_obs[:, 4]))
        speed = config.speed_weight * np.hypot(next_obs[:, 2], next_obs[:, 3]) / config.speed_scale
        reward: FloatArray = lane + heading + speed - config.steering_weight * act[:, 1] ** 2
        return reward - config.collision_cost * observed_overlap(next_obs) if config.collision_cost else reward

    def info(self, state: IntersectionState) -> dict[str, NDArray[np.bool_] | FloatArray]:
        """`crashed`: the cars have overlapped; `distance`: the closest their centres have been, m; since the start."""
        return {"crashed": state.is_crashed, "distance": state.closest}


def ego_controls(
    config: IntersectionConfig, act: FloatArray, actuation: float | FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return acceleration in m/s^2 and steering angle in rad of actions `B 2`."""
    return config.max_acceleration * act[:, 0], config.max_steering * actuation * act[:, 1]


def _on_lane(num: int, lane: np.int64, along: float, speed: float) -> FloatArray:
    index: IntArray = np.array([lane])
    distance = np.array([along])
    heading = road.lane_heading(index, distance)
    pose = np.concatenate((road.lane_position(index, distance)[0], heading, [speed]))
    return np.tile(pose, (num, 1))
