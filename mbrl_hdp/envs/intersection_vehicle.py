"""The left-turn task's numbers, and the two car models: how a pose moves, and when two cars touch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mbrl_hdp.envs.intersection_road import CORNERS, FloatArray
from mbrl_hdp.errors import ConfigError
from mbrl_hdp.settings import check_settings, setting

CAR_LENGTH, CAR_WIDTH = 5.0, 2.0
VEHICLES = ("bicycle_2020", "slip")


@dataclass(frozen=True)
class IntersectionConfig:
    """The left-turn task; every number of it. The road itself is highway-env's."""

    vehicle: str = setting(
        "bicycle_2020",
        "car model of both cars: the bicycle of highway-env in 2020 (no slip angle), or the slip model of today's",
        choices=VEHICLES,
    )
    dt: float = setting(0.1, "seconds per step", above=0.0, at_most=0.5)
    horizon: int = setting(100, "steps per episode", at_least=1)
    max_acceleration: float = setting(5.0, "acceleration of an action of 1, m/s^2", above=0.0)
    max_steering: float = setting(math.pi / 4, "steering angle of an action of 1, rad", above=0.0, below=math.pi / 2)
    max_speed: float = setting(40.0, "speed, forwards or backwards, beyond which the car is slowed down", above=0.0)
    ego_longitudinal: float = setting(100.0, "start of the ego along its lane from the south, m", at_least=0.0)
    ego_speed: float = setting(10.0, "speed of the ego at the start, m/s")
    social_from: str = setting("north", "where the social car comes from", choices=tuple(CORNERS))
    social_to: str = setting("west", "where the social car goes", choices=tuple(CORNERS))
    social_longitudinal: float = setting(99.0, "start of the social car along its first lane, m", at_least=0.0)
    social_speed: float = setting(11.0, "speed of the social car at the start, also its target speed, m/s", above=0.0)
    idm_max_acceleration: float = setting(6.0, "largest acceleration and braking of the social car, m/s^2", above=0.0)
    idm_comfort_acceleration: float = setting(6.0, "its comfortable acceleration, m/s^2", above=0.0)
    idm_comfort_braking: float = setting(3.0, "its comfortable braking, m/s^2", above=0.0)
    idm_jam_distance: float = setting(2.0, "distance it keeps at rest, centre to centre, m", at_least=0.0)
    idm_time_gap: float = setting(1.5, "time gap it keeps, s", at_least=0.0)
    idm_exponent: float = setting(4.0, "exponent of its speed term", above=0.0)
    goal_y: float = setting(-2.0, "y of the exit lane, m")
    lane_weight: float = setting(5.0, "weight of exp(-|y - goal_y| / lane_scale) in the reward", at_least=0.0)
    lane_scale: float = setting(8.0, "distance over which that term falls, m", above=0.0)
    heading_weight: float = setting(1.0, "weight of exp(-|1 + cos h|) in the reward", at_least=0.0)
    speed_weight: float = setting(0.1, "weight of |v| / speed_scale in the reward", at_least=0.0)
    speed_scale: float = setting(70.0, "speed of one unit of that term, m/s", above=0.0)
    steering_weight: float = setting(0.05, "weight of the squared steering action in the reward", at_least=0.0)
    collision_cost: float = setting(0.0, "reward lost on every step on which the cars overlap", at_least=0.0)

    def __post_init__(self) -> None:
        check_settings(self, "intersection")
        if self.social_from == self.social_to:
            raise ConfigError(f"intersection.social_to must differ from social_from, both are {self.social_to!r}")


def advance(
    config: IntersectionConfig, pose: FloatArray, steering: FloatArray, acceleration: FloatArray, dt: float
) -> FloatArray:
    """Move cars for one explicit Euler step; all updates from the old pose.

    bicycle_2020: p += v (cos h, sin h) dt, h += v tan(delta) / L dt, v += a dt.
    slip: with beta = atan(tan(delta) / 2), p += v (cos(h + beta), sin(h + beta)) dt, h += v sin(beta) / (L / 2) dt.

    Args:
        config: names the model and the soft speed limit.
        pose: x, y, heading, speed, `B 4`.
        steering: angles delta in rad, `B`.
        acceleration: m/s^2, `B`.
        dt: seconds.
    """
    x, y, heading, speed = pose.T
    slip, turn = _bend(config, steering)
    course = heading + slip
    moved = np.empty_like(pose)
    moved[:, 0] = x + speed * np.cos(course) * dt
    moved[:, 1] = y + speed * np.sin(course) * dt
    moved[:, 2] = heading + speed * turn * dt
    moved[:, 3] = speed + _limited(config, speed, acceleration) * dt
    return moved


def coast(config: IntersectionConfig, pose: FloatArray, steering: FloatArray, dt: float, num_steps: int) -> FloatArray:
    """Return the poses `num_steps B 4` of cars that hold steering and speed: `advance` again and again."""
    _, _, heading, speed = pose.T
    speeds = [speed]
    for _ in range(num_steps):
        speeds.append(speeds[-1] + _limited(config, speeds[-1], np.zeros_like(speed)) * dt)
    travelled = np.stack(speeds[:-1]) * dt
    slip, turn = _bend(config, steering)
    headings = heading + np.concatenate((np.zeros((1, len(pose))), np.cumsum(travelled * turn, axis=0)))
    course = headings[:-1] + slip
    x = pose[:, 0] + np.cumsum(travelled * np.cos(course), axis=0)
    y = pose[:, 1] + np.cumsum(travelled * np.sin(course), axis=0)
    return np.stack((x, y, headings[1:], np.stack(speeds[1:])), axis=-1)


def _bend(config: IntersectionConfig, steering: FloatArray) -> tuple[FloatArray | float, FloatArray]:
    """Return the angle between course and heading, and the turn per metre travelled."""
    if config.vehicle == "slip":
        slip = np.arctan(0.5 * np.tan(steering))
        return slip, np.sin(slip) / (0.5 * CAR_LENGTH)
    return 0.0, np.tan(steering) / CAR_LENGTH


def _limited(config: IntersectionConfig, speed: FloatArray, acceleration: FloatArray) -> FloatArray:
    """Pull speeds beyond the limit back to it; the rest accelerate as they wish."""
    excess = np.clip(speed, -config.max_speed, config.max_speed) - speed
    if not excess.any():
        return acceleration
    slowed = np.where(excess < 0.0, np.minimum(acceleration, excess), np.maximum(acceleration, excess))
    return np.where(excess == 0.0, acceleration, slowed)


def observation(ego: FloatArray, social: FloatArray) -> FloatArray:
    """Return x, y, vx, vy, cos h, sin h of the ego, then of the social car, `B 12`: absolute, raw units."""
    rows = [_kinematics(pose) for pose in (ego, social)]
    return np.concatenate(rows, axis=1)


def _kinematics(pose: FloatArray) -> FloatArray:
    cos, sin = np.cos(pose[:, 2]), np.sin(pose[:, 2])
    return np.stack((pose[:, 0], pose[:, 1], pose[:, 3] * cos, pose[:, 3] * sin, cos, sin), axis=1)


def center_distance(first: FloatArray, second: FloatArray) -> FloatArray:
    """Return the distances `B` between the centres of cars with poses `B 4`."""
    return np.hypot(first[:, 0] - second[:, 0], first[:, 1] - second[:, 1])


def cars_overlap(first: FloatArray, second: FloatArray) -> NDArray[np.bool_]:
    """Return whether two 5 x 2 m rectangles overlap, `B`: no side of either separates them."""
    is_overlap = center_distance(first, second) <= np.hypot(CAR_LENGTH, CAR_WIDTH)
    near = np.flatnonzero(is_overlap)
    if near.size:
        is_overlap[near] = observed_overlap(observation(first[near], second[near]))
    return is_overlap


def observed_overlap(obs: Any) -> Any:
    """Return whether the two cars of observations `... 12` overlap, `...`; numpy arrays and torch tensors alike."""
    apart_x, apart_y = obs[..., 6] - obs[..., 0], obs[..., 7] - obs[..., 1]
    first, second = (obs[..., 4], obs[..., 5]), (obs[..., 10], obs[..., 11])
    cos = abs(first[0] * second[0] + first[1] * second[1])
    sin = abs(first[1] * second[0] - first[0] * second[1])
    reach_along = 0.5 * (CAR_LENGTH + CAR_LENGTH * cos + CAR_WIDTH * sin)
    reach_across = 0.5 * (CAR_WIDTH + CAR_LENGTH * sin + CAR_WIDTH * cos)
    separated = [
        (abs(c * apart_x + s * apart_y) > reach_along) | (abs(c * apart_y - s * apart_x) > reach_across)
        for c, s in (first, second)
    ]
    return ~(separated[0] | separated[1])
