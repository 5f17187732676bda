"""The drone's rigid body, batched, step for step as the Bullet engine integrates it (the inner loop compiled by numba).

The engine's habits that matter, each worth far more than the tolerance of the parity test:

- Forces are applied in link frames that the engine refreshes only at the end of a step, so the thrust points along the
  body axis of the PREVIOUS physics step, while its moment arms are those of the current attitude.
- Both velocities are damped by default: `-v (c + c |v|)`, `-w (c + c |w|)`.
- Velocities first, then positions with the new velocities; the attitude by the exponential map of the new rate.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mbrl_hdp.envs.batch import BatchPhysics
from mbrl_hdp.errors import ConfigError
from mbrl_hdp.settings import check_settings, choice, setting

FloatArray = NDArray[np.float64]

OBS_DIM = 12
ACT_DIM = 4
# Propellers 0 (+x, -y), 1 (-x, -y), 2 (-x, +y), 3 (+x, +y), and the sign of the torque each leaves on the body.
PROPELLER_X = np.array([1.0, -1.0, -1.0, 1.0])
PROPELLER_Y = np.array([-1.0, -1.0, 1.0, 1.0])
PROPELLER_SPIN = np.array([-1.0, 1.0, -1.0, 1.0])
# Beyond this sine of the pitch the engine fixes the roll at zero and gives the rest to the yaw.
_GIMBAL_SINE = 0.99999


@dataclass(frozen=True)
class TakeOffConfig:
    """A Crazyflie 2 in X configuration and the take-off task; every number of both."""

    mass: float = setting(0.027, "mass of the vehicle, kg", above=0.0)
    gravity: float = setting(9.8, "gravity, m/s^2", above=0.0)
    arm: float = setting(0.028, "distance of a propeller from the centre along x and along y, m", above=0.0)
    inertia_xy: float = setting(1.4e-5, "moment of inertia about x and y, kg m^2", above=0.0)
    inertia_z: float = setting(2.17e-5, "moment of inertia about z, kg m^2", above=0.0)
    thrust_coefficient: float = setting(3.16e-10, "thrust of a propeller, N/rpm^2", above=0.0)
    torque_coefficient: float = setting(7.94e-12, "yaw torque of a propeller, N m/rpm^2", at_least=0.0)
    thrust_to_weight: float = setting(2.25, "largest thrust over weight; bounds the motor speeds", above=0.0)
    linear_damping: float = setting(0.04, "the engine's damping of the velocity", at_least=0.0)
    angular_damping: float = setting(0.04, "the engine's damping of the angular velocity", at_least=0.0)
    rpm_band: float = setting(
        0.05, "an action of 1 changes the motor speed by this share of the hover speed", above=0.0
    )
    physics_rate: int = setting(240, "physics steps per second", at_least=1)
    control_rate: int = setting(80, "control steps per second; divides physics_rate", at_least=1)
    horizon: int = setting(80, "control steps per episode", at_least=1)
    start_height: float = setting(0.1125, "height at the start, m")
    tilt_weight: float = setting(1.0, "weight of |roll| + |pitch| in the reward", at_least=0.0)
    attitude: str = choice(
        ("unwrapped", "engine"), "roll and yaw in the observation: continued beyond +-pi, or as the engine gives them"
    )

    def __post_init__(self) -> None:
        check_settings(self, "drone")
        if self.physics_rate % self.control_rate:
            raise ConfigError(
                f"drone.control_rate must divide drone.physics_rate ({self.physics_rate}), got {self.control_rate}"
            )
        if self.inertia_z > 2 * self.inertia_xy:
            raise ConfigError(
                f"drone.inertia_z must be at most twice drone.inertia_xy ({self.inertia_xy}): no body has more, "
                f"and the engine refuses it; got {self.inertia_z}"
            )

    @property
    def hover_rpm(self) -> float:
        """Motor speed at which the thrust carries the weight."""
        return math.sqrt(self.mass * self.gravity / (4 * self.thrust_coefficient))

    @property
    def max_rpm(self) -> float:
        """Largest motor speed."""
        return self.hover_rpm * math.sqrt(self.thrust_to_weight)

    @property
    def num_substeps(self) -> int:
        """Physics steps per control step."""
        return self.physics_rate // self.control_rate


class DroneState(NamedTuple):
    """States of `B` drones.

    Attributes:
        body: position 0-2, quaternion x, y, z, w 3-6, thrust axis 7-9 (the body's z axis one physics step ago, along
            which the thrust acts), velocity 10-12, angular velocity 13-15; world frame, SI units, `B 16`.
        euler: roll, pitch, yaw as observed, `B 3`.
    """

    body: FloatArray
    euler: FloatArray


class DronePhysics(BatchPhysics):
    """Take-off of `B` drones at once.

    Observation: position 0-2, roll, pitch, yaw 3-5, velocity 6-8, angular velocity 9-11, world frame, SI units.
    Action: four motors in [-1, 1]; `rpm = hover (1 + rpm_band actuation a)`, actuation one number or one per motor.

    Args:
        config: the vehicle and the task.
    """

    obs_dim = OBS_DIM
    act_dim = ACT_DIM

    def __init__(self, config: TakeOffConfig | None = None) -> None:
        self.config = config or TakeOffConfig()
        self.dt = 1.0 / self.config.control_rate
        self.horizon = self.config.horizon
        self._mixer = _mixer(self.config)
        names = ("mass", "gravity", "inertia_xy", "inertia_z", "linear_damping", "angular_damping")
        self._vehicle = np.array([*(getattr(self.config, name) for name in names), 1.0 / self.config.physics_rate])

    def start(self, num: int, rng: np.random.Generator) -> DroneState:  # noqa: ARG002 - the start has no noise
        """Return `num` drones at rest, level, at the start height."""
        body = np.zeros((num, 16))
        body[:, 2], body[:, 6], body[:, 9] = self.config.start_height, 1.0, 1.0
        return DroneState(body, np.zeros((num, 3)))

    def observe(self, state: DroneState) -> FloatArray:
        """Return the observations `B 12`."""
        return np.concatenate((state.body[:, :3], state.euler, state.body[:, 10:]), axis=1)

    def step(self, state: DroneState, act: FloatArray, params: Mapping[str, FloatArray]) -> DroneState:
        """Return the states after one control step (`num_substeps` physics steps with held motor speeds)."""
        actuation = np.asarray(params.get("actuation", 1.0))
        rpm = motor_speeds(self.config, act, actuation[:, None] if actuation.ndim == 1 else actuation)
        body = state.body.copy()
        _kernel()(body, (rpm * rpm) @ self._mixer, self._vehicle, self.config.num_substeps)
        return DroneState(body, continue_angles(self.config, state.euler, euler_angles(body[:, 3:7])))

    def reward(self, act: FloatArray, next_obs: FloatArray) -> FloatArray:  # noqa: ARG002 - the protocol's signature
        """v_z - tilt_weight (|roll| + |pitch|) of the next state, `B`."""
        tilt = np.abs(next_obs[:, 3]) + np.abs(next_obs[:, 4])
        return next_obs[:, 8] - self.config.tilt_weight * tilt


def motor_speeds(config: TakeOffConfig, act: FloatArray, actuation: FloatArray) -> FloatArray:
    """Return hover (1 + rpm_band chi a), within what the motors can do; chi must broadcast against the action."""
    rpm = config.hover_rpm * (1.0 + config.rpm_band * actuation * act)
    return np.clip(rpm, 0.0, config.max_rpm)


def euler_angles(quaternion: FloatArray) -> FloatArray:
    """Roll, pitch, yaw `B 3` of attitudes x, y, z, w, with the engine's convention at the gimbal lock."""
    x, y, z, w = quaternion.T
    sine = 2.0 * (w * y - x * z)
    roll = np.arctan2(2.0 * (y * z + w * x), w * w - x * x - y * y + z * z)
    yaw = np.arctan2(2.0 * (x * y + w * z), w * w + x * x - y * y - z * z)
    pitch = np.arcsin(np.clip(sine, -1.0, 1.0))
    is_locked = np.abs(sine) >= _GIMBAL_SINE
    if is_locked.any():
        sign = np.sign(sine)
        roll = np.where(is_locked, 0.0, roll)
        pitch = np.where(is_locked, 0.5 * np.pi * sign, pitch)
        yaw = np.where(is_locked, 2.0 * np.arctan2(-sign * x, sign * y), yaw)
    return np.stack((roll, pitch, yaw), axis=1)


def continue_angles(config: TakeOffConfig, previous: FloatArray, euler: FloatArray) -> FloatArray:
    """Return the turn of `euler` nearest to the previous angles, or the engine's own where the config says so."""
    if config.attitude == "engine":
        return euler
    turns = np.round((euler - previous) / (2.0 * np.pi))
    return euler - 2.0 * np.pi * turns


def _mixer(config: TakeOffConfig) -> FloatArray:
    """From squared motor speeds (rows) to thrust, its first moments in x and y, yaw torque (columns), `4 4`."""
    arm, thrust = config.arm, np.full(ACT_DIM, config.thrust_coefficient)
    spin = config.torque_coefficient * PROPELLER_SPIN
    return np.stack((thrust, thrust * arm * PROPELLER_X, thrust * arm * PROPELLER_Y, spin), axis=1)


def _advance(body: FloatArray, wrench: FloatArray, vehicle: FloatArray, num_substeps: int) -> None:
    """Advance every drone in place; plain loops, compiled by `_kernel`.

    Args:
        body: `B 16`: position, quaternion, thrust axis, velocity, angular velocity.
        wrench: thrust, its first moments in x and y, yaw torque, `B 4`.
        vehicle: mass, gravity, inertia_xy, inertia_z, linear_damping, angular_damping, dt.
        num_substeps: physics steps.
    """
    mass, gravity, inertia_xy, inertia_z, linear_damping, angular_damping, dt = vehicle
    for b in range(body.shape[0]):
        px, py, pz, x, y, z, w, tx, ty, tz, vx, vy, vz, ox, oy, oz = body[b]
        thrust, moment_x, moment_y, yaw_torque = wrench[b]
        for _ in range(num_substeps):
            # The body's axes in the world; the thrust still acts along the old third one, (tx, ty, tz).
            ax, ay, az = w * w + x * x - y * y - z * z, 2 * (x * y + w * z), 2 * (x * z - w * y)
            bx, by, bz = 2 * (x * y - w * z), w * w - x * x + y * y - z * z, 2 * (y * z + w * x)
            cx, cy, cz = 2 * (x * z + w * y), 2 * (y * z - w * x), w * w - x * x - y * y + z * z
            # tau = sum_i r_i x (F_i t) + yaw torque along t - o x J o, with J = I_xy 1 + (I_z - I_xy) c c'.
            mx, my, mz = moment_x * ax + moment_y * bx, moment_x * ay + moment_y * by, moment_x * az + moment_y * bz
            spin = (inertia_z - inertia_xy) * (cx * ox + cy * oy + cz * oz)
            qx = my * tz - mz * ty + yaw_torque * tx - spin * (oy * cz - oz * cy)
            qy = mz * tx - mx * tz + yaw_torque * ty - spin * (oz * cx - ox * cz)
            qz = mx * ty - my * tx + yaw_torque * tz - spin * (ox * cy - oy * cx)
            along = (1 / inertia_z - 1 / inertia_xy) * (cx * qx + cy * qy + cz * qz)
            drag = angular_damping * (1 + math.sqrt(ox * ox + oy * oy + oz * oz))
            ox += dt * (qx / inertia_xy + along * cx - drag * ox)
            oy += dt * (qy / inertia_xy + along * cy - drag * oy)
            oz += dt * (qz / inertia_xy + along * cz - drag * oz)
            drag = linear_damping * (1 + math.sqrt(vx * vx + vy * vy + vz * vz))
            vx += dt * (thrust * tx / mass - drag * vx)
            vy += dt * (thrust * ty / mass - drag * vy)
            vz += dt * (thrust * tz / mass - drag * vz - gravity)
            px, py, pz = px + dt * vx, py + dt * vy, pz + dt * vz
            tx, ty, tz = cx, cy, cz
            # The attitude turns by the new rate: exp(o dt / 2) times the quaternion.
            angle = 0.5 * dt * math.sqrt(ox * ox + oy * oy + oz * oz)
            share = 0.5 * dt * (math.sin(angle) / angle if angle > 0.0 else 1.0)
            i, j, k, r = share * ox, share * oy, share * oz, math.cos(angle)
            x, y, z, w = (
                r * x + i * w + j * z - k * y,
                r * y + j * w + k * x - i * z,
                r * z + k * w + i * y - j * x,
                r * w - i * x - j * y - k * z,
            )
            size = 1 / math.sqrt(x * x + y * y + z * z + w * w)
            x, y, z, w = size * x, size * y, size * z, size * w
        body[b] = (px, py, pz, x, y, z, w, tx, ty, tz, vx, vy, vz, ox, oy, oz)


@functools.cache
def _kernel() -> Callable[[FloatArray, FloatArray, FloatArray, int], None]:
    """Compile `_advance` on first use (numba takes a while to load)."""
    from mbrl_hdp.compiling import compiled

    return compiled("exact")(_advance)
