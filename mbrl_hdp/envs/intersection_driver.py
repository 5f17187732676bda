"""The social car's driver, batched: highway-env's lane keeping, its Intelligent Driver Model and its right of way.

Decision for decision what highway-env 1.12's IDMVehicle on a RegulatedRoad does with two cars on this road, its
peculiarities included; they are marked where they surprise.

How far it agrees, as the tests hold it: both cars to 1e-9 m in the paper's scenario, to 1e-6 m through following and
yielding on other routes. Where the social car stands still (it yields for seconds), the package's steering divides by a
speed around zero and magnifies rounding: from there on the social cars of the two backends may differ visibly, while
the ego, which does not react, stays exact.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mbrl_hdp.envs import intersection_road as road
from mbrl_hdp.envs.intersection_road import FloatArray, Frames, IntArray
from mbrl_hdp.envs.intersection_vehicle import CAR_LENGTH, CAR_WIDTH, IntersectionConfig, coast

BoolArray = NDArray[np.bool_]

# Lane keeping: time constants of heading and lateral position, look-ahead, steering limit.
_HEADING_GAIN, _LATERAL_GAIN, _LOOK_AHEAD, _STEERING_LIMIT = 1.0 / 0.2, 1.0 / 0.6, 0.1, np.pi / 3
_LANE_MARGIN = 1.0
# Right of way: looked at twice a second, 3 s ahead in steps of 0.25 s, with cars drawn 1.5 times as long.
_RULES_PER_SECOND, _FORECAST_STEP, _NUM_FORECASTS = 2, 0.25, 11
_DRAWN_LENGTH, _DRAWN_WIDTH = 1.5 * CAR_LENGTH, 0.9 * CAR_WIDTH


class DriverState(NamedTuple):
    """What the drivers of `B` social cars keep in mind.

    Attributes:
        stage: lane of the route that they steer for: 0 incoming, 1 across, 2 exit.
        target_speed: m/s.
        is_yielding: gives way now.
        num_steps: steps since the start.
    """

    stage: IntArray
    target_speed: FloatArray
    is_yielding: BoolArray
    num_steps: IntArray


class View(NamedTuple):
    """Both cars, `B` each, and where they are on all lanes."""

    ego: FloatArray
    social: FloatArray
    ego_frames: Frames
    social_frames: Frames
    social_lane: IntArray


def look(ego: FloatArray, social: FloatArray) -> View:
    """Find both cars (poses `B 4`) on the road."""
    num = len(ego)
    frames = road.lane_frames(np.concatenate((ego[:, :2], social[:, :2])))
    ego_frames = Frames(frames.along[:, :num], frames.across[:, :num])
    social_frames = Frames(frames.along[:, num:], frames.across[:, num:])
    return View(ego, social, ego_frames, social_frames, road.closest_lane(social_frames, social[:, 2]))


def next_stage(route: IntArray, stage: IntArray, view: View) -> IntArray:
    """Steer for the next lane from half a car's length before the end of this one; the last lane has no end.

    highway-env would turn the car round at the end of its exit and drive it back; ours goes straight on.
    """
    lane = route[stage]
    is_past = _pick(view.social_frames.along, lane) > road.LENGTH[lane] - 0.5 * CAR_LENGTH
    return np.minimum(stage + is_past, len(route) - 1)


def steering(lane: IntArray, view: View) -> FloatArray:
    """Steer for the middle of a lane: lateral error to heading, heading error to turning rate, that to an angle."""
    speed = view.social[:, 3]
    along, across = _pick(view.social_frames.along, lane), _pick(view.social_frames.across, lane)
    ahead = road.lane_heading(lane, along + speed * _LOOK_AHEAD)
    sideways = np.arcsin(np.clip(-_LATERAL_GAIN * across / _not_zero(speed), -1.0, 1.0))
    heading = ahead + np.clip(sideways, -np.pi / 4, np.pi / 4)
    rate = _HEADING_GAIN * road.wrapped(heading - view.social[:, 2])
    slip = np.arcsin(np.clip(0.5 * CAR_LENGTH / _not_zero(speed) * rate, -1.0, 1.0))
    return np.clip(np.arctan(2.0 * np.tan(slip)), -_STEERING_LIMIT, _STEERING_LIMIT)


def acceleration(config: IntersectionConfig, lane: IntArray, target_speed: FloatArray, view: View) -> FloatArray:
    """Follow the Intelligent Driver Model: reach the target speed, keep a gap to a car ahead on this lane or the next.

    Args:
        config: the model's numbers.
        lane: lane steered for, `B`.
        target_speed: m/s, `B`.
        view: both cars.
    """
    wish = np.abs(_not_zero(np.clip(target_speed, 0.0, road.SPEED_LIMIT)))
    speed = view.social[:, 3]
    comfort = config.idm_comfort_acceleration
    free = comfort * (1.0 - (np.maximum(speed, 0.0) / wish) ** config.idm_exponent)
    is_led = _is_ahead(view, view.social_lane) | _is_ahead(view, lane)
    if is_led.any():
        # The gap is measured along the lane that the car is on, whichever lane the other one was found on.
        gap = _pick(view.ego_frames.along, view.social_lane) - _pick(view.social_frames.along, view.social_lane)
        held_back = comfort * (_desired_gap(config, view) / _not_zero(gap)) ** 2
        free = np.where(is_led, free - held_back, free)
    return np.clip(free, -config.idm_max_acceleration, config.idm_max_acceleration)


def obey_rules(
    config: IntersectionConfig, route: IntArray, driver: DriverState, view: View, ego_steering: FloatArray
) -> DriverState:
    """Count the step; twice a second end the last yielding and yield anew where a conflict is ahead."""
    num_steps = driver.num_steps + 1
    is_due = num_steps % max(1, int(1.0 / config.dt / _RULES_PER_SECOND)) == 0
    if not is_due.any():
        return driver._replace(num_steps=num_steps)
    target_speed = np.where(is_due & driver.is_yielding, road.SPEED_LIMIT, driver.target_speed)
    is_yielding = is_due & _conflict_ahead(config, route, driver.stage, view, ego_steering) & _must_yield(view)
    target_speed = np.where(is_yielding, 0.0, target_speed)
    return DriverState(driver.stage, target_speed, np.where(is_due, is_yielding, driver.is_yielding), num_steps)


def _is_ahead(view: View, lane: IntArray) -> BoolArray:
    """Is the ego on this lane, before the social car?"""
    along, across = _pick(view.ego_frames.along, lane), _pick(view.ego_frames.across, lane)
    is_beside = np.abs(across) <= 0.5 * road.LANE_WIDTH + _LANE_MARGIN
    is_within = (along >= -CAR_LENGTH) & (along < road.LENGTH[lane] + CAR_LENGTH)
    return is_beside & is_within & (_pick(view.social_frames.along, lane) <= along)


def _desired_gap(config: IntersectionConfig, view: View) -> FloatArray:
    _, _, heading, speed = view.social.T
    closing = speed - view.ego[:, 3] * np.cos(view.ego[:, 2] - heading)
    braking = 2.0 * np.sqrt(config.idm_comfort_acceleration * config.idm_comfort_braking)
    return config.idm_jam_distance + speed * config.idm_time_gap + speed * closing / braking


def _conflict_ahead(
    config: IntersectionConfig, route: IntArray, stage: IntArray, view: View, ego_steering: FloatArray
) -> BoolArray:
    """Do the cars meet within 3 s, the ego holding its steering and both their speeds?"""
    times = _FORECAST_STEP * np.arange(1, _NUM_FORECASTS + 1)[:, None]
    along = _pick(view.social_frames.along, view.social_lane) + view.social[:, 3] * times
    place, heading = _along_route(route, np.broadcast_to(stage, along.shape), along)
    ego = coast(config, view.ego, ego_steering, _FORECAST_STEP, _NUM_FORECASTS)
    x, y = place[..., 0] - ego[..., 0], place[..., 1] - ego[..., 1]
    is_near = x * x + y * y <= CAR_LENGTH**2
    is_conflict = np.zeros_like(is_near)
    is_conflict[is_near] = _drawn_cars_meet(place[is_near], heading[is_near], ego[is_near][:, :2], ego[is_near][:, 2])
    return np.any(is_conflict, axis=0)


def _along_route(route: IntArray, stage: IntArray, along: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return place and heading at a distance along the rest of the route.

    highway-env measures the distance from the start of the lane that the car is ON and walks it from the start of the
    lane that it STEERS FOR; just before the end of a lane the two differ.
    """
    for _ in range(len(route) - 1):
        is_past = (along > road.LENGTH[route[stage]]) & (stage < len(route) - 1)
        along = np.where(is_past, along - road.LENGTH[route[stage]], along)
        stage = stage + is_past
    lane = route[stage]
    return road.lane_position(lane, along), road.lane_heading(lane, along)


def _must_yield(view: View) -> BoolArray:
    """Must the social car yield? The lower priority does; among equals the one that has the other farther ahead."""
    ego_lane = road.closest_lane(view.ego_frames, view.ego[:, 2])
    ours, theirs = road.PRIORITY[view.social_lane], road.PRIORITY[ego_lane]
    apart = view.ego[:, :2] - view.social[:, :2]
    ego_ahead = np.cos(view.social[:, 2]) * apart[:, 0] + np.sin(view.social[:, 2]) * apart[:, 1]
    social_ahead = -(np.cos(view.ego[:, 2]) * apart[:, 0] + np.sin(view.ego[:, 2]) * apart[:, 1])
    return (ours < theirs) | ((ours == theirs) & (ego_ahead > social_ahead))


def _drawn_cars_meet(
    first: FloatArray, first_heading: FloatArray, second: FloatArray, second_heading: FloatArray
) -> BoolArray:
    return _has_corner_inside(first, first_heading, second, second_heading) | _has_corner_inside(
        second, second_heading, first, first_heading
    )


def _has_corner_inside(
    first: FloatArray, first_heading: FloatArray, second: FloatArray, second_heading: FloatArray
) -> BoolArray:
    """Has the first rectangle a corner, a middle of a side or its centre in the second, as highway-env sees it?

    It turns the points by the second heading, not back by it; so do we, or the cars would yield at other times.
    """
    local = 0.5 * np.array([_DRAWN_LENGTH, _DRAWN_WIDTH]) * _GRID
    cos, sin = np.cos(first_heading)[:, None], np.sin(first_heading)[:, None]
    shift = (first - second)[:, None]
    x = shift[..., 0] + cos * local[:, 0] - sin * local[:, 1]
    y = shift[..., 1] + sin * local[:, 0] + cos * local[:, 1]
    cos, sin = np.cos(second_heading)[:, None], np.sin(second_heading)[:, None]
    is_inside = (np.abs(cos * x - sin * y) <= 0.5 * _DRAWN_LENGTH) & (np.abs(sin * x + cos * y) <= 0.5 * _DRAWN_WIDTH)
    return np.any(is_inside, axis=1)


_GRID: FloatArray = np.array([(x, y) for x in (-1.0, 0.0, 1.0) for y in (-1.0, 0.0, 1.0)])


def _pick(table: FloatArray, lane: IntArray) -> FloatArray:
    """Return each car's entry for its lane, `20 B` to `B`."""
    return table[lane, np.arange(len(lane))]


def _not_zero(value: FloatArray, least: float = 1e-2) -> FloatArray:
    """Keep numbers away from zero, by their sign."""
    return np.where(np.abs(value) > least, value, np.where(value >= 0.0, least, -least))
