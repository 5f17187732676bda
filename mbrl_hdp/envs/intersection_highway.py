"""The left turn on highway-env itself: its road, its rules, its IDM driver; cars of either model.

Cars do not bounce: an overlap is reported and has no effect on the motion, as the reward ignores it too. The social car
is never removed; at the end of its exit it goes straight on.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from highway_env.envs.intersection_env import IntersectionEnv
from highway_env.vehicle.behavior import IDMVehicle
from highway_env.vehicle.kinematics import Vehicle

from mbrl_hdp.envs.intersection_physics import ego_controls
from mbrl_hdp.envs.intersection_road import CORNERS, FloatArray
from mbrl_hdp.envs.intersection_vehicle import IntersectionConfig


class _NoSlip:
    """Moves a highway-env vehicle as the package did in 2020: a kinematic bicycle without slip angle."""

    def step(self: Any, dt: float) -> None:
        """Move by the speed and heading of before the step, then change both."""
        self.clip_actions()
        heading, speed = self.heading, self.speed
        self.position = self.position + speed * np.array([np.cos(heading), np.sin(heading)]) * dt
        self.heading = heading + speed * np.tan(self.action["steering"]) / self.LENGTH * dt
        self.speed = speed + self.action["acceleration"] * dt
        self.on_state_update()


class _SocialCar(IDMVehicle):
    def follow_road(self) -> None:
        """Keep to the route's last lane beyond its end; the package would turn round and drive back."""
        if len(self.route) > 1:
            super().follow_road()


class _NoSlipCar(_NoSlip, Vehicle):
    pass


class _NoSlipSocialCar(_NoSlip, _SocialCar):
    pass


_CARS = {"bicycle_2020": (_NoSlipCar, _NoSlipSocialCar), "slip": (Vehicle, _SocialCar)}


class HighwayBackend:
    """One left turn on highway-env's road.

    Args:
        config: the task.
    """

    def __init__(self, config: IntersectionConfig) -> None:
        self._config = config
        self._road = _make_road()
        self._ego: Any = None
        self._social: Any = None

    def reset(self) -> tuple[FloatArray, FloatArray]:
        """Put both cars at their starts; return their poses x, y, heading, speed."""
        config = self._config
        ego_class, social_class = _CARS[config.vehicle]
        start, end = CORNERS[config.social_from], CORNERS[config.social_to]
        first = (f"o{start}", f"ir{start}", 0)
        self._road.steps = 0
        self._ego = ego_class.make_on_lane(self._road, ("o0", "ir0", 0), config.ego_longitudinal, config.ego_speed)
        self._social = social_class.make_on_lane(self._road, first, config.social_longitudinal, config.social_speed)
        self._social.target_lane_index = first
        self._social.route = [first, (f"ir{start}", f"il{end}", 0), (f"il{end}", f"o{end}", 0)]
        self._social.enable_lane_change = False
        _set_driver(self._social, config)
        for car in (self._ego, self._social):
            car.collidable = False
            car.MAX_SPEED, car.MIN_SPEED = config.max_speed, -config.max_speed
        self._road.vehicles = [self._social, self._ego]
        return _pose(self._ego), _pose(self._social)

    def step(self, act: FloatArray, actuation: float) -> tuple[FloatArray, FloatArray]:
        """Apply the action `2` for one step; return both poses."""
        acceleration, steering = ego_controls(self._config, act[None], actuation)
        self._ego.act({"acceleration": float(acceleration[0]), "steering": float(steering[0])})
        self._road.act()
        self._road.step(self._config.dt)
        return _pose(self._ego), _pose(self._social)


def _make_road() -> Any:
    """Let the package's intersection build its road, without the rest of that environment."""
    settings = {"show_trajectories": False, "neighbour_vehicles_connected_lanes": False}
    scene = SimpleNamespace(np_random=np.random.default_rng(0), config=settings, road=None)
    IntersectionEnv._make_road(scene)
    return scene.road


def _set_driver(car: Any, config: IntersectionConfig) -> None:
    car.ACC_MAX = config.idm_max_acceleration
    car.COMFORT_ACC_MAX = config.idm_comfort_acceleration
    car.COMFORT_ACC_MIN = -config.idm_comfort_braking
    car.DISTANCE_WANTED = config.idm_jam_distance
    car.TIME_WANTED = config.idm_time_gap
    car.DELTA = config.idm_exponent


def _pose(car: Any) -> FloatArray:
    return np.array((*car.position, car.heading, car.speed), dtype=np.float64)
