"""The drone's rigid body in batched numpy, step for step as the Bullet engine integrates it.

The engine's habits that matter, each worth far more than the tolerance of the parity test:

- Forces are applied in link frames that the engine refreshes only at the end of a step, so the thrust points along the
  body axis of the PREVIOUS physics step, while its moment arms are those of the current attitude.
- Both velocities are damped by default: `-v (c + c |v|)`, `-w (c + c |w|)`.
- Velocities first, then positions with the new velocities; the attitude by the exponential map of the new rate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mbrl_hdp.errors import ConfigError
from mbrl_hdp.settings import check_settings, setting

FloatArray = NDArray[np.float64]
Pose = tuple[FloatArray, ...]

OBS_DIM = 12
ACT_DIM = 4
# Propellers 0 (+x, -y), 1 (-x, -y), 2 (-x, +y), 3 (+x, +y), and the sign of the torque each leaves on the body.
PROPELLER_X = np.array([1.0, -1.0, -1.0, 1.0])
PROPELLER_Y = np.array([-1.0, -1.0, 1.0, 1.0])
PROPELLER_SPIN = np.array([-1.0, 1.0, -1.0, 1.0])
# Beyond this sine of the pitch the engine fixes the roll at zero and gives the rest to the yaw.
_GIMBAL_SINE = 0.99999


@dataclass(frozen=True)
class DroneConfig:
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
    angles: str = setting(
        "unwrapped",
        "roll and yaw in the observation: continued beyond +-pi, or as the engine gives them",
        choices=("unwrapped", "engine"),
    )

    def __post_init__(self) -> None:
        check_settings(self, "drone")
        if self.physics_rate % self.control_rate:
            raise ConfigError(
                f"drone.control_rate must divide drone.physics_rate ({self.physics_rate}), got {self.control_rate}"
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
    """States of `B` drones, world frame.

    Attributes:
        position: m, `B 3`.
        quaternion: attitude x, y, z, w, `B 4`.
        thrust_axis: body z axis at the previous physics step, along which the thrust acts, `B 3`.
        velocity: m/s, `B 3`.
        angular_velocity: rad/s, `B 3`.
        euler: roll, pitch, yaw as observed, `B 3`.
    """

    position: FloatArray
    quaternion: FloatArray
    thrust_axis: FloatArray
    velocity: FloatArray
    angular_velocity: FloatArray
    euler: FloatArray


class DronePhysics:
    """Take-off of `B` drones at once (a `BatchPhysics`).

    Observation: position 0-2, roll, pitch, yaw 3-5, velocity 6-8, angular velocity 9-11, world frame, SI units.
    Action: four motors in [-1, 1]; `rpm = hover (1 + rpm_band actuation a)`.

    Args:
        config: the vehicle and the task.

    Example:
        >>> physics = DronePhysics()
        >>> state = physics.start(100, np.random.default_rng(0))
        >>> state = physics.step(state, np.ones((100, 4)), {"actuation": np.full(100, -1.0)})
        >>> physics.observe(state).shape
        (100, 12)
    """

    obs_dim = OBS_DIM
    act_dim = ACT_DIM

    def __init__(self, config: DroneConfig | None = None) -> None:
        self.config = config or DroneConfig()
        self.act_low = np.full(ACT_DIM, -1.0)
        self.act_high = np.full(ACT_DIM, 1.0)
        self.dt = 1.0 / self.config.control_rate
        self.horizon = self.config.horizon
        self._mixer = _mixer(self.config)

    @property
    def defaults(self) -> Mapping[str, float | Sequence[float]]:
        """`actuation`: factor on the motors' deviation from hover, one number or one per motor."""
        return {"actuation": 1.0}

    def start(self, num: int, rng: np.random.Generator) -> DroneState:  # noqa: ARG002 - the start has no noise
        """Give `num` drones at rest, level, at the start height."""
        position, quaternion, thrust_axis = np.zeros((num, 3)), np.zeros((num, 4)), np.zeros((num, 3))
        position[:, 2], quaternion[:, 3], thrust_axis[:, 2] = self.config.start_height, 1.0, 1.0
        return DroneState(position, quaternion, thrust_axis, *(np.zeros((num, 3)) for _ in range(3)))

    def observe(self, state: DroneState) -> FloatArray:
        """Give the observations `B 12`."""
        return np.concatenate((state.position, state.euler, state.velocity, state.angular_velocity), axis=1)

    def step(self, state: DroneState, act: FloatArray, params: Mapping[str, FloatArray]) -> DroneState:
        """Give the states after one control step (`num_substeps` physics steps with held motor speeds)."""
        actuation = np.asarray(params.get("actuation", 1.0))
        rpm = motor_speeds(self.config, act, actuation[:, None] if actuation.ndim == 1 else actuation)
        wrench = self._mixer @ (rpm * rpm).T
        # Components first: every operation below then runs over contiguous rows of length B.
        pose: Pose = tuple(np.ascontiguousarray(part.T) for part in state[:3])
        motion = np.stack((state.velocity.T, state.angular_velocity.T))
        for _ in range(self.config.num_substeps):
            pose, motion = _substep(self.config, pose, motion, wrench)
        quaternion = (pose[1] / np.sqrt(np.einsum("ib,ib->b", pose[1], pose[1]))).T
        euler = continue_angles(self.config, state.euler, euler_angles(quaternion))
        return DroneState(pose[0].T, quaternion, pose[2].T, motion[0].T, motion[1].T, euler)

    def reward(self, act: FloatArray, next_obs: FloatArray) -> FloatArray:  # noqa: ARG002 - the protocol's signature
        """v_z - tilt_weight (|roll| + |pitch|) of the next state, `B`."""
        tilt = np.abs(next_obs[:, 3]) + np.abs(next_obs[:, 4])
        return next_obs[:, 8] - self.config.tilt_weight * tilt


def motor_speeds(config: DroneConfig, act: FloatArray, actuation: FloatArray) -> FloatArray:
    """Give hover (1 + rpm_band chi a), within what the motors can do; chi must broadcast against the action."""
    rpm = config.hover_rpm * (1.0 + config.rpm_band * actuation * act)
    return np.clip(rpm, 0.0, config.max_rpm)


def euler_angles(quaternion: FloatArray) -> FloatArray:
    """Roll, pitch, yaw `B 3` of attitudes x, y, z, w, with the engine's convention at the gimbal lock."""
    attitude = np.ascontiguousarray(quaternion.T)
    axis_x, axis_y, axis_z = (_AXES @ _outer(attitude, attitude)).reshape(3, 3, -1)
    sine = -axis_x[2]
    roll, yaw = np.arctan2(np.stack((axis_y[2], axis_x[1])), np.stack((axis_z[2], axis_x[0])))
    pitch = np.arcsin(np.clip(sine, -1.0, 1.0))
    is_locked = np.abs(sine) >= _GIMBAL_SINE
    if is_locked.any():
        sign = np.sign(sine)
        roll = np.where(is_locked, 0.0, roll)
        pitch = np.where(is_locked, 0.5 * np.pi * sign, pitch)
        yaw = np.where(is_locked, 2.0 * np.arctan2(-sign * attitude[0], sign * attitude[1]), yaw)
    return np.stack((roll, pitch, yaw), axis=1)


def continue_angles(config: DroneConfig, previous: FloatArray, euler: FloatArray) -> FloatArray:
    """Give the turn of `euler` nearest to the previous angles, or the engine's own where the config says so."""
    if config.angles == "engine":
        return euler
    turns = np.round((euler - previous) / (2.0 * np.pi))
    return euler - 2.0 * np.pi * turns


def _mixer(config: DroneConfig) -> FloatArray:
    """From squared motor speeds to thrust, its first moments in x and y, and the yaw torque; `4 4`."""
    arm, thrust = config.arm, np.full(ACT_DIM, config.thrust_coefficient)
    spin = config.torque_coefficient * PROPELLER_SPIN
    return np.stack((thrust, thrust * arm * PROPELLER_X, thrust * arm * PROPELLER_Y, spin))


def _substep(config: DroneConfig, pose: Pose, motion: FloatArray, wrench: FloatArray) -> tuple[Pose, FloatArray]:
    """One physics step in the world frame; every array has its components first.

    Args:
        config: the vehicle.
        pose: position `3 B`, quaternion `4 B`, thrust axis `3 B`.
        motion: velocity and angular velocity, `2 3 B`.
        wrench: of the motors, `4 B`.
    """
    position, quaternion, thrust_axis = pose
    dt = 1.0 / config.physics_rate
    axes = (_AXES @ _outer(quaternion, quaternion)).reshape(3, 3, -1)
    speed = np.sqrt(np.einsum("kib,kib->kb", motion, motion))
    speed += 1.0
    speed[0] *= -config.linear_damping
    speed[1] *= -config.angular_damping
    acceleration = motion * speed[:, None]
    acceleration[0] += thrust_axis * (wrench[0] / config.mass)
    acceleration[0, 2] -= config.gravity
    acceleration[1] += _angular_acceleration(config, axes, thrust_axis, motion[1], wrench)
    motion = motion + dt * acceleration
    turn = _AFTER @ _outer(_exponential(motion[1], dt), quaternion)
    return (position + dt * motion[0], turn, axes[2]), motion


def _angular_acceleration(
    config: DroneConfig, axes: FloatArray, thrust_axis: FloatArray, rate: FloatArray, wrench: FloatArray
) -> FloatArray:
    """J^-1 (tau - w x J w) in the world frame, `3 B`.

    tau = sum_i r_i x (F_i axis) + yaw torque along the (stale) thrust axis. With z the body axis,
    J = I_xy 1 + (I_z - I_xy) z z', so neither J nor its inverse is ever formed.
    """
    upright = axes[2]
    moment = wrench[1] * axes[0] + wrench[2] * axes[1]
    spin = (config.inertia_xy - config.inertia_z) * np.einsum("ib,ib->b", upright, rate)
    torque = _CROSS @ (_outer(moment, thrust_axis) + _outer(spin * rate, upright)) + wrench[3] * thrust_axis
    along = (1.0 / config.inertia_z - 1.0 / config.inertia_xy) * np.einsum("ib,ib->b", upright, torque)
    return torque / config.inertia_xy + along * upright


def _exponential(rate: FloatArray, dt: float) -> FloatArray:
    """Quaternion `4 B` of the rotation by rate dt."""
    half = (0.5 * dt) * rate
    angle = np.sqrt(np.einsum("ib,ib->b", half, half)) + _TINY
    return np.concatenate((half * (np.sin(angle) / angle), np.cos(angle)[None]))


def _outer(left: FloatArray, right: FloatArray) -> FloatArray:
    """All products of components, `m B` and `n B` to `mn B`: bilinear maps become one matrix product."""
    return (left[:, None] * right).reshape(left.shape[0] * right.shape[0], -1)


def _bilinear(*rows: str) -> FloatArray:
    """Matrix of bilinear forms; a row lists signed index pairs, "+01 -10" is l_0 r_1 - l_1 r_0."""
    width = 1 + max(int(digit) for row in rows for pair in row.split() for digit in pair[1:])
    matrix = np.zeros((len(rows), width * width))
    for form, row in zip(matrix, rows, strict=True):
        for pair in row.split():
            form[width * int(pair[1]) + int(pair[2])] += 1.0 if pair[0] == "+" else -1.0
    return matrix


_TINY = 1e-300
_CROSS = _bilinear("+12 -21", "+20 -02", "+01 -10")
# The quaternion product left * right, components x, y, z, w.
_AFTER = _bilinear("+30 +03 +12 -21", "+31 +13 +20 -02", "+32 +23 +01 -10", "+33 -00 -11 -22")
# The body's x, y and z axis in the world, of a unit quaternion with itself.
_AXES = _bilinear(
    *("+33 +00 -11 -22", "+01 +01 +23 +23", "+02 +02 -13 -13"),
    *("+01 +01 -23 -23", "+33 -00 +11 -22", "+12 +12 +03 +03"),
    *("+02 +02 +13 +13", "+12 +12 -03 -03", "+33 -00 -11 +22"),
)
