"""The four-way intersection as arrays: the lanes of highway-env's road, for many points at once.

Metres, y points south. Corners: 0 south, 1 west, 2 north, 3 east. Every corner has an incoming lane, a right turn, a
left turn, a way straight on, and the exit to its right.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

CORNERS = {"south": 0, "west": 1, "north": 2, "east": 3}
LANE_WIDTH = 4.0
SPEED_LIMIT = 10.0
RIGHT_RADIUS = LANE_WIDTH + 5.0
LEFT_RADIUS = RIGHT_RADIUS + LANE_WIDTH
OUTER_DISTANCE = RIGHT_RADIUS + 0.5 * LANE_WIDTH
ACCESS_LENGTH = 100.0
# The arcs first: their rows are then one slice of every table.
_RIGHT, _LEFT, _INCOMING, _STRAIGHT, _EXIT = range(5)
_NUM_ARCS = 8


class Frames(NamedTuple):
    """Points in the frames of all 20 lanes: along and across (to the right), `20 B` each."""

    along: FloatArray
    across: FloatArray


class _Lane(NamedTuple):
    """One lane: a straight line from `anchor` along `heading`, or an arc about `anchor`."""

    anchor: tuple[float, float]
    heading: float
    length: float
    priority: int
    radius: float = np.inf
    turn: float = 0.0


def _lane(corner: int, kind: int) -> _Lane:
    """Build the lane of the south corner, turned to its own."""
    angle = 0.5 * np.pi * corner
    priority = 3 if corner % 2 else 1
    half, outer = 0.5 * LANE_WIDTH, OUTER_DISTANCE
    north, east = angle - 0.5 * np.pi, angle
    if kind == _INCOMING:
        return _Lane(_turned(corner, half, ACCESS_LENGTH + outer), north, ACCESS_LENGTH, priority)
    if kind == _RIGHT:
        length = 0.5 * np.pi * RIGHT_RADIUS
        return _Lane(_turned(corner, outer, outer), north, length, priority, RIGHT_RADIUS, 1.0)
    if kind == _LEFT:
        length = 0.5 * np.pi * LEFT_RADIUS
        return _Lane(_turned(corner, half - LEFT_RADIUS, outer), north, length, priority - 1, LEFT_RADIUS, -1.0)
    if kind == _STRAIGHT:
        return _Lane(_turned(corner, half, outer), north, 2.0 * outer, priority)
    return _Lane(_turned(corner, outer, half), east, ACCESS_LENGTH, priority)


def _turned(corner: int, x: float, y: float) -> tuple[float, float]:
    for _ in range(corner):
        x, y = -y, x
    return x, y


_TABLE = [_lane(corner, kind) for kind in range(5) for corner in range(4)]
NUM_LANES = len(_TABLE)
LENGTH: FloatArray = np.array([lane.length for lane in _TABLE])
PRIORITY: IntArray = np.array([lane.priority for lane in _TABLE])
_ANCHOR: FloatArray = np.array([lane.anchor for lane in _TABLE])
_HEADING: FloatArray = np.array([lane.heading for lane in _TABLE])
_RADIUS: FloatArray = np.array([lane.radius for lane in _TABLE])
_TURN: FloatArray = np.array([lane.turn for lane in _TABLE])
_CURVATURE: FloatArray = _TURN / _RADIUS
_DIRECTION: FloatArray = np.stack((np.cos(_HEADING), np.sin(_HEADING)), axis=1)
# The same for all points of a column.
_COLUMN_X, _COLUMN_Y = _ANCHOR[:, :1], _ANCHOR[:, 1:]
_COLUMN_COS, _COLUMN_SIN = _DIRECTION[_NUM_ARCS:, :1], _DIRECTION[_NUM_ARCS:, 1:]
_ARC_RADIUS, _ARC_TURN = _RADIUS[:_NUM_ARCS, None], _TURN[:_NUM_ARCS, None]
# An arc about its anchor begins at this polar angle.
_PHASE: FloatArray = _HEADING - 0.5 * np.pi * _TURN


def route_lanes(origin: str, destination: str) -> IntArray:
    """Return the three lanes from one corner to another: incoming, across, exit."""
    start, end = CORNERS[origin], CORNERS[destination]
    kind = {3: _RIGHT, 1: _LEFT, 2: _STRAIGHT}[(end - start) % 4]
    exit_owner = (end + 1) % 4  # a corner's last lane is the exit of the corner to its right
    return np.array([4 * _INCOMING + start, 4 * kind + start, 4 * _EXIT + exit_owner])


def lane_frames(position: FloatArray) -> Frames:
    """Return the coordinates of points `B 2` along and across every lane, `20 B`."""
    x, y = position[:, 0] - _COLUMN_X, position[:, 1] - _COLUMN_Y
    along, across = np.empty_like(x), np.empty_like(x)
    arc_x, arc_y, x, y = x[:_NUM_ARCS], y[:_NUM_ARCS], x[_NUM_ARCS:], y[_NUM_ARCS:]
    along[:_NUM_ARCS] = _ARC_TURN * _ARC_RADIUS * wrapped(np.arctan2(arc_y, arc_x) - _PHASE[:_NUM_ARCS, None])
    across[:_NUM_ARCS] = _ARC_TURN * (_ARC_RADIUS - np.sqrt(arc_x * arc_x + arc_y * arc_y))
    along[_NUM_ARCS:] = x * _COLUMN_COS + y * _COLUMN_SIN
    across[_NUM_ARCS:] = y * _COLUMN_COS - x * _COLUMN_SIN
    return Frames(along, across)


def lane_heading(lane: IntArray, along: FloatArray) -> FloatArray:
    """Return the heading of lanes at distances along them; arrays of one shape."""
    return _HEADING[lane] + _CURVATURE[lane] * along


def lane_position(lane: IntArray, along: FloatArray) -> FloatArray:
    """Return the points on the middle of lanes at distances along them, `... 2`."""
    straight = _ANCHOR[lane] + along[..., None] * _DIRECTION[lane]
    is_arc = lane < _NUM_ARCS
    if not is_arc.any():
        return straight
    polar = _PHASE[lane] + _CURVATURE[lane] * along
    radius = np.where(is_arc, _RADIUS[lane], 0.0)
    arc = _ANCHOR[lane] + radius[..., None] * np.stack((np.cos(polar), np.sin(polar)), axis=-1)
    return np.where(is_arc[..., None], arc, straight)


def closest_lane(frames: Frames, heading: FloatArray) -> IntArray:
    """Return the lane nearest to each car, `B`: distance in metres plus difference in heading in radians."""
    along, across = frames
    outside = np.abs(along - 0.5 * LENGTH[:, None]) - 0.5 * LENGTH[:, None]
    angle = wrapped(heading - (_HEADING[:, None] + _CURVATURE[:, None] * along))
    return np.argmin(np.abs(across) + np.maximum(outside, 0.0) + np.abs(angle), axis=0)


def wrapped(angle: FloatArray) -> FloatArray:
    """Return the same angles within [-pi, pi]."""
    return angle - 2.0 * np.pi * np.rint(angle / (2.0 * np.pi))
