"""Logs as a stranger would bring them: what is not measured, acts late, is quantised, controlled, or only noise.

Each is a small simulation with hidden contexts and an exact definition; nothing in the library knows them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int


class Recording(NamedTuple):
    """Episodes of one log: observations `N T+1 S`, inputs `N T A`, the context of every step `N T`."""

    obs: Float[np.ndarray, "N T1 S"]
    act: Float[np.ndarray, "N T A"]
    context: Int[np.ndarray, "N T"]


def hidden_path(
    rng: np.random.Generator, shape: tuple[int, int], num_contexts: int, stay: float
) -> Int[np.ndarray, "N T"]:
    """Draw contexts that are left with probability 1 - stay, for each other one alike."""
    num_episodes, num_steps = shape
    path = np.zeros(shape, int)
    path[:, 0] = rng.integers(num_contexts, size=num_episodes)
    for t in range(1, num_steps):
        is_left = rng.random(num_episodes) > stay
        other = (path[:, t - 1] + rng.integers(1, max(num_contexts, 2), size=num_episodes)) % num_contexts
        path[:, t] = np.where(is_left, other, path[:, t - 1])
    return path


def held_inputs(
    rng: np.random.Generator, shape: tuple[int, int], change: float, low: float = 0.0, high: float = 1.0
) -> Float[np.ndarray, "N T"]:
    """Draw inputs that keep their value and jump with probability `change`."""
    values = rng.uniform(low, high, shape)
    for t in range(1, shape[1]):
        values[:, t] = np.where(rng.random(shape[0]) < change, values[:, t], values[:, t - 1])
    return values


def servo(rng: np.random.Generator, num_contexts: int = 3) -> Recording:
    """A servo of which only the angle is logged: normal, weak motor, heavy friction."""
    shape = (60, 150)
    context, drive = hidden_path(rng, shape, num_contexts, 0.97), held_inputs(rng, shape, 0.2, -1.0, 1.0)
    angle, speed = rng.normal(0.0, 0.5, shape[0]), np.zeros(shape[0])
    angles = [angle]
    for t in range(shape[1]):
        gain, friction = np.array([4.0, 1.6, 4.0])[context[:, t]], np.array([0.5, 0.5, 4.0])[context[:, t]]
        speed = speed + 0.05 * (gain * drive[:, t] - friction * speed - np.sin(angle))
        angle = angle + 0.05 * speed
        angles.append(angle)
    obs = np.stack(angles, 1)[..., None]
    return Recording(obs + rng.normal(0.0, 1e-3, obs.shape), drive[..., None], context)


def servo_still(rng: np.random.Generator) -> Recording:
    """The same servo, always normal."""
    return servo(rng, num_contexts=1)


def heating(rng: np.random.Generator) -> Recording:
    """Two temperatures and a valve that acts three steps late: normal, valve half shut, leak."""
    shape, late = (60, 120), 3
    context, valve = hidden_path(rng, shape, 3, 0.96), held_inputs(rng, shape, 0.25)
    temperature = np.array([20.0, 30.0]) + rng.normal(0.0, 3.0, (shape[0], 2))
    obs = [temperature]
    for t in range(shape[1]):
        gain, leak = np.array([6.0, 2.5, 6.0])[context[:, t]], np.array([0.1, 0.1, 0.22])[context[:, t]]
        room, wall = temperature.T
        opening = valve[:, t - late] if t >= late else 0.5
        flow = np.stack(
            [gain * opening - leak * (room - 15.0) - 0.05 * (room - wall), 0.12 * (room - wall) - 0.05 * (wall - 15.0)],
            1,
        )
        temperature = temperature + 0.5 * flow + rng.normal(0.0, 0.02, flow.shape)
        obs.append(temperature)
    return Recording(np.stack(obs, 1), valve[..., None], context)


def building(rng: np.random.Generator) -> Recording:
    """One log of a building, the weather among the inputs: normal, window open, heater weak."""
    obs, heat, context = _building(rng)
    return Recording(obs[..., :1], np.concatenate([heat, obs[:, :-1, 1:]], -1), context)


def building_weather(rng: np.random.Generator) -> Recording:
    """The same log with the weather among the observations, where it does not belong."""
    return Recording(*_building(rng))


def _building(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    shape = (1, 6000)
    context, heat = hidden_path(rng, shape, 3, 0.985), held_inputs(rng, shape, 0.1)
    room, outside, sun = 20.0, 5.0, 0.0
    rows = [(room, outside, sun)]
    for t in range(shape[1]):
        gain, loss = (2.0, 2.0, 0.8)[context[0, t]], (0.05, 0.12, 0.05)[context[0, t]]
        room += 0.5 * (gain * heat[0, t] - loss * (room - outside) + 0.3 * sun) + rng.normal(0.0, 0.02)
        day = np.sin(2.0 * np.pi * t / 288.0)
        outside += 0.02 * (8.0 + 6.0 * day - outside) + rng.normal(0.0, 0.1)
        sun = max(0.0, day) * (0.7 + 0.3 * np.sin(t / 37.0))
        rows.append((room, outside, sun))
    return np.array(rows)[None], heat[..., None], context


def vehicle(rng: np.random.Generator) -> Recording:
    """A car that a controller keeps on a lane that jumps: dry, wet and icy road."""
    shape, speed, dt = (40, 200), 12.0, 0.05
    context = hidden_path(rng, shape, 3, 0.98)
    lane = held_inputs(rng, shape, 0.03, -2.5, 2.5)
    state = np.zeros((shape[0], 4))
    obs, act = [state], []
    for t in range(shape[1]):
        offset, slip, heading, turn = state.T
        steer = 0.08 * (lane[:, t] - offset) - 0.5 * heading - 0.1 * turn + rng.normal(0.0, 0.01, shape[0])
        steer = np.clip(steer, -0.3, 0.3)
        grip = np.array([60.0, 35.0, 15.0])[context[:, t]]
        front, rear = (
            grip * np.tanh(1.5 * angle) / 1.5
            for angle in (steer - (slip + 1.2 * turn) / speed, -(slip - 1.4 * turn) / speed)
        )
        slip = slip + dt * (front + rear - speed * turn)
        turn = turn + dt * (1.2 * front - 1.4 * rear) / 1.8
        offset = offset + dt * (slip * np.cos(heading) + speed * np.sin(heading))
        state = np.stack([offset, slip, heading + dt * turn, turn], 1)
        obs.append(state)
        act.append(steer)
    series = np.stack(obs, 1)
    return Recording(series + rng.normal(0.0, 1e-4, series.shape), np.stack(act, 1)[..., None], context)


def tanks(rng: np.random.Generator) -> Recording:
    """Two tanks with quantised levels: normal, weak pump, blocked valve."""
    shape = (50, 120)
    context, pump = hidden_path(rng, shape, 3, 0.97), held_inputs(rng, shape, 0.15)
    level = rng.uniform(1.0, 4.0, (shape[0], 2))
    obs = [level]
    for t in range(shape[1]):
        gain, valve = np.array([1.0, 0.5, 1.0])[context[:, t]], np.array([0.5, 0.5, 0.15])[context[:, t]]
        between, out = valve * np.sqrt(level[:, 0]), 0.4 * np.sqrt(level[:, 1])
        level = np.maximum(level + 0.2 * np.stack([gain * pump[:, t] - between, between - out], 1), 0.01)
        obs.append(level)
    return Recording(np.round(np.stack(obs, 1), 3), pump[..., None], context)


def tanks_spikes(rng: np.random.Generator) -> Recording:
    """The same tanks; one reading in a hundred is a spike."""
    obs, act, context = tanks(rng)
    return Recording(obs + (rng.random(obs.shape) < 0.01) * rng.normal(size=obs.shape), act, context)


def refrigerator(rng: np.random.Generator) -> Recording:
    """One log under a thermostat that switches on and off: door shut, door open, iced."""
    shape = (1, 4000)
    context = hidden_path(rng, shape, 3, 0.985)
    inside, coil, is_on = 5.0, -10.0, 0.0
    rows, act = [(inside, coil)], []
    for t in range(shape[1]):
        is_on = 1.0 if inside > 6.0 else 0.0 if inside < 4.0 else is_on
        is_on = 1.0 - is_on if rng.random() < 0.02 else is_on
        z = context[0, t]
        warm = (0.03, 0.15, 0.03)[z] * (20.0 - inside) - 0.08 * (inside - coil)
        cool = 0.2 * (0.25, 0.25, 0.08)[z] * (inside - coil) - 1.8 * is_on * (1.0, 1.0, 0.7)[z]
        cool += 0.05 * (0.0 - coil) * (1.0 - is_on)
        inside, coil = (inside + 0.5 * warm + rng.normal(0.0, 0.01), coil + 0.5 * cool + rng.normal(0.0, 0.01))
        rows.append((inside, coil))
        act.append(is_on)
    return Recording(np.array(rows)[None], np.array(act)[None, :, None], context)


def payload(rng: np.random.Generator) -> Recording:
    """A robot joint whose payload is one of three and never changes within an episode."""
    shape = (40, 100)
    context = np.repeat(rng.integers(3, size=(shape[0], 1)), shape[1], 1)
    torque = rng.uniform(-2.0, 2.0, shape)
    mass = np.array([1.0, 1.6, 2.5])[context[:, 0]]
    angle, speed = rng.uniform(-1.0, 1.0, shape[0]), np.zeros(shape[0])
    obs = [np.stack([angle, speed], 1)]
    for t in range(shape[1]):
        speed = speed + 0.05 * (torque[:, t] - 0.3 * speed - 2.0 * mass * np.sin(angle)) / mass
        angle = angle + 0.05 * speed
        obs.append(np.stack([angle, speed], 1))
    series = np.stack(obs, 1)
    return Recording(series + rng.normal(0.0, 1e-4, series.shape), torque[..., None], context)


def market(rng: np.random.Generator) -> Recording:
    """One log of three prices without inputs: calm and nervous times differ in their noise only."""
    shape = (1, 3000)
    context = hidden_path(rng, shape, 2, 0.99)
    keep = np.array([[0.95, 0.02, 0.0], [0.0, 0.9, 0.05], [0.03, 0.0, 0.93]])
    noise = (0.1 * np.eye(3), np.array([[0.4, 0.0, 0.0], [0.3, 0.3, 0.0], [0.2, 0.1, 0.3]]))
    rows = [np.zeros(3)]
    for t in range(shape[1]):
        rows.append(keep @ rows[-1] + noise[context[0, t]] @ rng.normal(size=3))
    return Recording(np.array(rows)[None], np.zeros((1, shape[1], 0)), context)


def gearbox(rng: np.random.Generator) -> Recording:
    """Speed and engine speed of a car in one of four gears that are not logged; throttle and brake are."""
    shape = (40, 150)
    context = hidden_path(rng, shape, 4, 0.95)
    throttle = held_inputs(rng, shape, 0.2)
    brake = held_inputs(rng, shape, 0.2) * (held_inputs(rng, shape, 0.2) < 0.3)
    ratio = np.array([3.6, 2.1, 1.4, 1.0])
    speed = rng.uniform(5.0, 20.0, shape[0])
    engine = speed * ratio[context[:, 0]]
    obs = [np.stack([speed, engine], 1)]
    for t in range(shape[1]):
        gear = ratio[context[:, t]]
        speed = speed + 0.1 * (2.2 * gear * throttle[:, t] - 3.0 * brake[:, t] - 0.002 * speed**2 - 0.2)
        speed = np.maximum(0.5, speed)
        engine = engine + 0.5 * (speed * gear - engine)
        obs.append(np.stack([speed, engine], 1))
    series = np.stack(obs, 1)
    return Recording(series + rng.normal(0.0, 2e-3, series.shape), np.stack([throttle, brake], -1), context)


def gusts(rng: np.random.Generator, num_contexts: int = 3) -> Recording:
    """A boat whose two speeds are shaken together by gusts: normal, engine weak, rudder reversed."""
    shape = (40, 120)
    context = hidden_path(rng, shape, num_contexts, 0.96)
    throttle, rudder = (held_inputs(rng, shape, 0.2, -1.0, 1.0) for _ in range(2))
    ahead, aside, turn = np.zeros((3, shape[0]))
    obs = [np.stack([ahead, aside, turn], 1)]
    for t in range(shape[1]):
        engine = np.array([1.0, 0.5, 1.0])[context[:, t]] * throttle[:, t]
        steering = np.array([1.0, 1.0, -1.0])[context[:, t]] * rudder[:, t]
        gust = rng.normal(0.0, 0.15, shape[0])
        ahead, aside, turn = (
            ahead + 0.1 * (engine - 0.4 * ahead * np.abs(ahead) + aside * turn) + gust,
            aside + 0.1 * (-ahead * turn - 0.6 * aside) + 0.6 * gust,
            turn + 0.1 * (2.0 * steering - turn),
        )
        obs.append(np.stack([ahead, aside, turn], 1))
    series = np.stack(obs, 1)
    return Recording(series + rng.normal(0.0, 3e-3, series.shape), np.stack([throttle, rudder], -1), context)


def gusts_still(rng: np.random.Generator) -> Recording:
    """The same boat, always normal."""
    return gusts(rng, num_contexts=1)


def rare_fault(rng: np.random.Generator) -> Recording:
    """A conveyor whose motor is weak at times and slips, seldom and for about four steps: 3 % of the time."""
    shape = (60, 100)
    chain = np.array([[0.965, 0.025, 0.01], [0.05, 0.94, 0.01], [0.15, 0.1, 0.75]]).cumsum(1)
    context = np.zeros(shape, int)
    for t in range(1, shape[1]):
        context[:, t] = (rng.random((shape[0], 1)) > chain[context[:, t - 1]]).sum(1).clip(max=2)
    motor, load = held_inputs(rng, shape, 0.3, -1.0, 1.0), np.zeros(shape[0])
    speed = np.zeros(shape[0])
    obs = [np.stack([speed, load], 1)]
    for t in range(shape[1]):
        force = np.array([3.0, 1.2, 0.0])[context[:, t]] * motor[:, t]
        speed, load = (
            speed + 0.1 * (force - 0.8 * speed - 0.3 * np.tanh(5.0 * speed)) + rng.normal(0.0, 0.01, shape[0]),
            load + 0.1 * (speed - 0.5 * load) + rng.normal(0.0, 0.01, shape[0]),
        )
        obs.append(np.stack([speed, load], 1))
    return Recording(np.stack(obs, 1), motor[..., None], context)


RECORDINGS: dict[str, Callable[[np.random.Generator], Recording]] = {
    each.__name__: each
    for each in (
        servo, servo_still, heating, building, building_weather, vehicle, tanks, tanks_spikes, refrigerator, payload,
        market, gearbox, gusts, gusts_still, rare_fault,
    )
}  # fmt: skip


def record(name: str, seed: int) -> Recording:
    """Return the log of a name; the seed decides all that is random in it."""
    return RECORDINGS[name](np.random.default_rng(seed))
