"""The drone and the intersection with random starts: `start_noise` beside the settings of each task, 0 by default.

    mbrl-hdp train experiment=drone_c_cem env.id=mbrl_hdp.envs.noisy_starts:NoisyTakeOff-v0 +env.kwargs.start_noise=0.05

Importing this module registers both ids. It is a module of its own because the code of an environment identifies the
results that were measured on it: those without noise stay valid.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np

from mbrl_hdp.envs.drone import DroneTakeOff
from mbrl_hdp.envs.drone_backends import DroneBackend, VectorBackend
from mbrl_hdp.envs.drone_physics import DronePhysics, DroneState, TakeOffConfig
from mbrl_hdp.envs.intersection import IntersectionBackend, IntersectionLeftTurn, VectorCarsBackend
from mbrl_hdp.envs.intersection_physics import IntersectionPhysics, IntersectionState
from mbrl_hdp.envs.intersection_vehicle import IntersectionConfig, cars_overlap, center_distance
from mbrl_hdp.envs.task import FloatArray
from mbrl_hdp.errors import ConfigError

# x, y, heading, speed of the ego: m, m, tenths of a rad, m/s.
_CAR_SCALES = np.array([1.0, 1.0, 0.1, 1.0])


class NoisyDronePhysics(DronePhysics):
    """Take-off from a random attitude and turn rate.

    Args:
        config: the vehicle and the task.
        start_noise: standard deviation of roll, pitch and yaw in rad, and of the three angular velocities in rad/s. The
            drone does not move at the start: a velocity would be part of every agent's return alike.
    """

    def __init__(self, config: TakeOffConfig | None = None, start_noise: float = 0.0) -> None:
        super().__init__(config)
        self.start_noise = _checked(start_noise, "drone")

    def start(self, num: int, rng: np.random.Generator) -> DroneState:
        """Draw `num` drones at the start height, without velocity."""
        level = super().start(num, rng)
        euler, rate = np.split(self.start_noise * rng.standard_normal((num, 6)), 2, axis=1)
        body = level.body.copy()
        body[:, 3:7] = _quaternions(euler)
        body[:, 7:10] = _thrust_axes(body[:, 3:7])
        body[:, 13:16] = rate
        return DroneState(body, euler)


class NoisyTakeOff(DroneTakeOff):
    """`DroneTakeOff` from random starts.

    Args:
        config: all numbers; None takes the paper's.
        backend: `pybullet`, `gym_pybullet_drones` or `vector`.
        render_mode: `rgb_array` or None.
        start_noise: see `NoisyDronePhysics`.
    """

    settings = (*DroneTakeOff.settings, "start_noise")

    def __init__(
        self,
        config: TakeOffConfig | None = None,
        backend: str = "pybullet",
        render_mode: str | None = None,
        start_noise: float = 0.0,
    ) -> None:
        self._noisy = NoisyDronePhysics(config, start_noise)
        super().__init__(self._noisy.config, backend, render_mode)
        self.physics = self._noisy

    @classmethod
    def _build(cls, settings: dict[str, Any], render_mode: str | None) -> NoisyTakeOff:
        numbers = {name: value for name, value in settings.items() if name not in ("backend", "start_noise")}
        backend, noise = settings.get("backend", "pybullet"), settings.get("start_noise", 0.0)
        return cls(TakeOffConfig(**numbers), backend, render_mode, noise)

    def _start(self, options: Mapping[str, Any]) -> FloatArray:
        obs = super()._start(options)
        if not self._noisy.start_noise:
            return obs
        start = self._noisy.start(1, self.np_random)
        _place_drone(self._drone, start)
        self._obs = self._noisy.observe(start)[0]
        return self._obs.copy()


class NoisyIntersectionPhysics(IntersectionPhysics):
    """Left turn from a random pose of the ego.

    Args:
        config: the task.
        start_noise: standard deviation of the ego's x and y in m, of its speed in m/s and of its heading in tenths of a
            rad. The social car starts as always.
    """

    def __init__(self, config: IntersectionConfig | None = None, start_noise: float = 0.0) -> None:
        super().__init__(config)
        self.start_noise = _checked(start_noise, "intersection")

    def start(self, num: int, rng: np.random.Generator) -> IntersectionState:
        """Draw `num` starts."""
        state = super().start(num, rng)
        ego = state.ego + self.start_noise * _CAR_SCALES * rng.standard_normal((num, 4))
        is_crashed, closest = cars_overlap(ego, state.social), center_distance(ego, state.social)
        return state._replace(ego=ego, is_crashed=is_crashed, closest=closest)


class NoisyLeftTurn(IntersectionLeftTurn):
    """`IntersectionLeftTurn` from random starts.

    Args:
        config: all numbers; None takes the paper's.
        backend: `highway_env` or `vector`.
        render_mode: `rgb_array` or None.
        start_noise: see `NoisyIntersectionPhysics`.
    """

    settings = (*IntersectionLeftTurn.settings, "start_noise")

    def __init__(
        self,
        config: IntersectionConfig | None = None,
        backend: str = "highway_env",
        render_mode: str | None = None,
        start_noise: float = 0.0,
    ) -> None:
        self._noisy = NoisyIntersectionPhysics(config, start_noise)
        super().__init__(self._noisy.config, backend, render_mode)
        self.physics = self._noisy

    @classmethod
    def _build(cls, settings: dict[str, Any], render_mode: str | None) -> NoisyLeftTurn:
        numbers = {name: value for name, value in settings.items() if name not in ("backend", "start_noise")}
        backend, noise = settings.get("backend", "highway_env"), settings.get("start_noise", 0.0)
        return cls(IntersectionConfig(**numbers), backend, render_mode, noise)

    def _start(self, options: Mapping[str, Any]) -> FloatArray:
        obs = super()._start(options)
        if not self._noisy.start_noise:
            return obs  # the package's own, which differs from ours in the last digits
        start = self._noisy.start(1, self.np_random)
        _place_car(self._cars, start)
        self._ego = start.ego[0]
        return self._obs()


def _place_drone(drone: DroneBackend, start: DroneState) -> None:
    """Put the drone of a backend where a start of one drone says."""
    if isinstance(drone, VectorBackend):
        drone._state = start
        return
    engine: Any = drone  # both other backends hold the Bullet engine
    place, attitude, velocity, rate = (start.body[0, part].tolist() for part in _BODY_PARTS)
    engine._bullet.resetBasePositionAndOrientation(engine._body, place, attitude, **engine._world)
    engine._bullet.resetBaseVelocity(engine._body, velocity, rate, **engine._world)


_BODY_PARTS = (slice(0, 3), slice(3, 7), slice(10, 13), slice(13, 16))


def _place_car(cars: IntersectionBackend, start: IntersectionState) -> None:
    """Put the ego of a backend where a start of one episode says."""
    if isinstance(cars, VectorCarsBackend):
        cars._state = start
        return
    package: Any = cars
    x, y, heading, speed = start.ego[0].tolist()
    package._ego.position, package._ego.heading, package._ego.speed = np.array([x, y]), heading, speed
    package._ego.on_state_update()


def _quaternions(euler: FloatArray) -> FloatArray:
    """Return the attitudes x, y, z, w, `B 4`, of roll, pitch, yaw `B 3`: yaw is applied last."""
    (cr, cp, cy), (sr, sp, sy) = np.cos(0.5 * euler).T, np.sin(0.5 * euler).T
    parts = (sr * cp * cy - cr * sp * sy, cr * sp * cy + sr * cp * sy, cr * cp * sy - sr * sp * cy)
    return np.stack((*parts, cr * cp * cy + sr * sp * sy), axis=1)


def _thrust_axes(quaternion: FloatArray) -> FloatArray:
    """Return the body's z axis in the world, `B 3`."""
    x, y, z, w = quaternion.T
    return np.stack((2 * (x * z + w * y), 2 * (y * z - w * x), w * w - x * x - y * y + z * z), axis=1)


def _checked(start_noise: float, task: str) -> float:
    if not (np.isfinite(start_noise) and start_noise >= 0.0):
        raise ConfigError(f"{task}.start_noise must be at least 0 and finite, got {start_noise}")
    return float(start_noise)


make_take_off, make_left_turn = NoisyTakeOff.make, NoisyLeftTurn.make

gymnasium.register(id="NoisyTakeOff-v0", entry_point=f"{__name__}:make_take_off")
gymnasium.register(id="NoisyLeftTurn-v0", entry_point=f"{__name__}:make_left_turn")
