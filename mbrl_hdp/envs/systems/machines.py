"""Pendulums, arms, vehicles and flying machines; angles are logged raw and unwrapped."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from mbrl_hdp.envs.chains import FloatArray, PositionStripes
from mbrl_hdp.envs.systems.system import System, box_start

_FORWARD_BACK = np.array([[1.0], [-1.0]])


def pendulum() -> System:
    """Pendulum whose motor is reversed; raw angle."""

    def derivative(state: FloatArray, act: FloatArray, parameters: FloatArray) -> FloatArray:
        angle, speed = state
        return np.stack([speed, 10.0 * np.sin(angle) - 0.1 * speed + 6.0 * parameters[0] * act[0]])

    return System("pendulum", derivative, _FORWARD_BACK, box_start([-3, -3], [3, 3]), dt=0.05, noisy=[1])


def pendulum_trig() -> System:
    """Gymnasium's Pendulum-v1: cosine, sine and speed (clipped at 8) are logged; the motor is reversed."""

    def derivative(state: FloatArray, act: FloatArray, parameters: FloatArray) -> FloatArray:
        angle, speed = state
        return np.stack([speed, 15.0 * np.sin(angle) + 6.0 * parameters[0] * act[0]])

    def limit(state: FloatArray) -> FloatArray:
        return np.stack([state[:, 0], np.clip(state[:, 1], -8.0, 8.0)], -1)

    def observe(path: FloatArray) -> FloatArray:
        return np.stack([np.cos(path[..., 0]), np.sin(path[..., 0]), path[..., 1]], -1)

    start = box_start([-np.pi, -1], [np.pi, 1])
    return System("pendulum_trig", derivative, _FORWARD_BACK, start, dt=0.05, noisy=[1], limit=limit, observe=observe)


def cartpole_raw() -> System:
    """Cart-pole swing-up with raw angle: the force is reversed."""

    def derivative(state: FloatArray, act: FloatArray, parameters: FloatArray) -> FloatArray:
        _, speed, angle, spin = state
        force, sine, cosine = 10.0 * parameters[0] * act[0], np.sin(angle), np.cos(angle)
        mass = 0.5 * sine**2 + 0.5
        push = force - 0.1 * speed + 0.5 * sine * (0.6 * spin**2 - 9.82 * cosine)
        turn = 9.82 * sine - cosine * push / mass
        return np.stack([speed, push / mass, spin, turn / 0.6])

    start = box_start([-0.5, -0.5, -3.14, -0.5], [0.5, 0.5, 3.14, 0.5])
    return System("cartpole_raw", derivative, _FORWARD_BACK, start, dt=0.04, noisy=[1, 3])


def cartpole_stripes() -> System:
    """Cart-pole with raw angle whose force is reversed in stripes of the track (the paper's stripes, 1 wide)."""
    return replace(cartpole_raw(), name="cartpole_stripes", place=PositionStripes(width=1.0))


def mountain_car() -> System:
    """Gymnasium's continuous mountain car with its wall at the left: the engine is reversed."""

    def derivative(state: FloatArray, act: FloatArray, parameters: FloatArray) -> FloatArray:
        place, speed = state
        return np.stack([speed, 0.0015 * parameters[0] * act[0] - 0.0025 * np.cos(3.0 * place)])

    def limit(state: FloatArray) -> FloatArray:
        place, speed = np.clip(state[:, 0], -1.2, 0.6), np.clip(state[:, 1], -0.07, 0.07)
        return np.stack([place, np.where((place <= -1.2) & (speed < 0.0), 0.0, speed)], -1)

    start = box_start([-1.0, -0.03], [0.2, 0.03])
    return System("mountain_car", derivative, _FORWARD_BACK, start, dt=1.0, noisy=[1], limit=limit)


def _two_links(state: FloatArray, torque: FloatArray, gravity: float) -> FloatArray:
    """Return the change of two unit links with unit masses, angles from the horizontal, second one relative."""
    first, second, spin, spin2 = state
    cosine, sine = np.cos(second), np.sin(second)
    m11, m12, m22 = 1.67 + cosine, 0.33 + 0.5 * cosine, 0.33 + np.zeros_like(cosine)
    pull2 = 0.5 * gravity * np.cos(first + second)
    pull1 = 1.5 * gravity * np.cos(first) + pull2
    b1 = torque[0] - 0.3 * spin + 0.5 * sine * spin2 * (2.0 * spin + spin2) - pull1
    b2 = torque[1] - 0.3 * spin2 - 0.5 * sine * spin**2 - pull2
    scale = m11 * m22 - m12**2
    return np.stack([spin, spin2, (m22 * b1 - m12 * b2) / scale, (m11 * b2 - m12 * b1) / scale])


def two_link_arm() -> System:
    """Two-link arm in the plane (no gravity), raw angles: nominal, first motor dead, second motor dead."""

    def derivative(state: FloatArray, act: FloatArray, parameters: FloatArray) -> FloatArray:
        return _two_links(state, parameters * act * np.array([[4.0], [2.0]]), 0.0)

    contexts = np.array([[1.0, 1.0], [0.0, 1.0], [1.0, 0.0]])
    start = box_start([-2, -2, -1, -1], [2, 2, 1, 1])
    return System("two_link_arm", derivative, contexts, start, act_dim=2, dt=0.05, noisy=[2, 3])


def acrobot() -> System:
    """Acrobot with raw angles: the elbow motor is reversed."""

    def derivative(state: FloatArray, act: FloatArray, parameters: FloatArray) -> FloatArray:
        torque = np.stack([np.zeros_like(act[0]), 4.0 * parameters[0] * act[0]])
        return _two_links(state, torque, 4.0)

    start = box_start([-2, -0.5, -0.5, -0.5], [-1, 0.5, 0.5, 0.5])
    return System("acrobot", derivative, _FORWARD_BACK, start, dt=0.05, noisy=[2, 3])


def unicycle() -> System:
    """Unicycle, raw heading: nominal, steering reversed, wheels that slip (half the speed)."""

    def derivative(state: FloatArray, act: FloatArray, parameters: FloatArray) -> FloatArray:
        heading = state[2]
        speed = parameters[0] * (1.0 + 0.5 * act[0])
        return np.stack([speed * np.cos(heading), speed * np.sin(heading), 2.0 * parameters[1] * act[1]])

    contexts = np.array([[1.0, 1.0], [1.0, -1.0], [0.5, 1.0]])
    start = box_start([-1, -1, -3.14], [1, 1, 3.14])
    return System("unicycle", derivative, contexts, start, act_dim=2, dt=0.1)


def car() -> System:
    """Car with slipping tyres (speed, side slip, yaw rate, heading): dry and icy road."""

    def derivative(state: FloatArray, act: FloatArray, parameters: FloatArray) -> FloatArray:
        speed, side, yaw, _ = state
        wheel = 0.3 * act[1]
        front = -parameters[0] * 4.0 * np.tanh(2.0 * ((side + yaw) / speed - wheel))
        rear = -parameters[0] * 4.0 * np.tanh(2.0 * (side - yaw) / speed)
        return np.stack([2.0 * act[0] - 0.3 * (speed - 4.0), front + rear - speed * yaw, 1.5 * (front - rear), yaw])

    def limit(state: FloatArray) -> FloatArray:
        return np.concatenate([np.maximum(state[:, :1], 1.0), state[:, 1:]], -1)

    contexts = np.array([[1.0], [0.3]])
    start = box_start([3, -0.3, -0.5, -3.14], [5, 0.3, 0.5, 3.14])
    return System("car", derivative, contexts, start, act_dim=2, dt=0.05, noisy=[0, 1, 2], limit=limit)


def quadrotor_planar() -> System:
    """Planar quadrotor (x, y, tilt and their speeds): nominal, left rotor weak, right rotor weak."""

    def derivative(state: FloatArray, act: FloatArray, parameters: FloatArray) -> FloatArray:
        _, _, tilt, dx, dy, spin = state
        thrust = parameters * (1.0 + 0.6 * act) * 5.0
        lift, turn = thrust.sum(0), thrust[1] - thrust[0]
        return np.stack(
            [
                dx, dy, spin,
                -lift * np.sin(tilt) - 0.2 * dx,
                lift * np.cos(tilt) - 9.81 - 0.2 * dy,
                3.0 * turn - 3.0 * spin,
            ]
        )  # fmt: skip

    contexts = np.array([[1.0, 1.0], [0.6, 1.0], [1.0, 0.6]])
    start = box_start([-1, -1, -1, -1, -1, -1], [1, 1, 1, 1, 1, 1])
    return System("quadrotor_planar", derivative, contexts, start, act_dim=2, dt=0.05, noisy=[3, 4, 5])


def quadrotor() -> System:
    """Quadrotor in space (place, velocity, roll-pitch-yaw, body rates): nominal, rotor 0 weak, rotor 2 weak."""

    def derivative(state: FloatArray, act: FloatArray, parameters: FloatArray) -> FloatArray:
        velocity, (roll, pitch, yaw), rates = state[3:6], state[6:9], state[9:12]
        thrust = parameters * (1.0 + 0.5 * act) * 2.5
        lift = thrust.sum(0)
        torque = np.stack(
            [thrust[1] - thrust[3], thrust[2] - thrust[0], 0.3 * (thrust[0] - thrust[1] + thrust[2] - thrust[3])]
        )
        up = np.stack(
            [
                np.cos(yaw) * np.sin(pitch) * np.cos(roll) + np.sin(yaw) * np.sin(roll),
                np.sin(yaw) * np.sin(pitch) * np.cos(roll) - np.cos(yaw) * np.sin(roll),
                np.cos(pitch) * np.cos(roll),
            ]
        )
        acceleration = lift * up - 0.3 * velocity - np.array([[0.0], [0.0], [9.81]])
        # A weak righting moment keeps the pitch away from the singularity of the angles.
        righting = np.stack([-4.0 * roll, -4.0 * pitch, np.zeros_like(yaw)])
        return np.concatenate([velocity, acceleration, rates, 2.0 * torque + righting - 3.0 * rates])

    contexts = np.array([[1.0, 1, 1, 1], [0.6, 1, 1, 1], [1, 1, 0.6, 1]])
    scale = np.array([1.0] * 6 + [0.3, 0.3, 2.0] + [0.5] * 3)
    return System(
        "quadrotor",
        derivative,
        contexts,
        box_start(list(-scale), list(scale)),
        act_dim=4,
        dt=0.05,
        noisy=[3, 4, 5, 9, 10, 11],
    )


SYSTEMS = (
    pendulum, pendulum_trig, cartpole_raw, cartpole_stripes, mountain_car, two_link_arm, acrobot, unicycle, car,
    quadrotor_planar, quadrotor,
)  # fmt: skip
