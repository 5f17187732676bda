"""A structure's step as tables for the compiled rollout: what its networks see and what follows from their change.

The same step in torch is `features` and `advance` of the structure; the tests hold one against the other.
"""

from __future__ import annotations

from dataclasses import dataclass

STATE, SINE, COSINE, ACT, ACT_SQUARE = range(5)
Feature = tuple[int, int]
SMALLEST_COSINE = 1e-2  # of the pitch, so that Euler rates stay finite near the gimbal lock


@dataclass(frozen=True)
class StepLayout:
    """One step of one or several bodies that have the same columns and networks; only the first body acts.

    The networks change the columns from `first_changed` on. Before them are `num_positions` columns that the first
    changed columns (velocities) move, then roll, pitch and yaw if there is an attitude, moved by the three columns
    after the velocities (angular velocity, WORLD frame).

    Attributes:
        features: what the networks see, in order: kind (`STATE`, `SINE`, `COSINE`, `ACT`, `ACT_SQUARE`) and column.
        act_dim: width of an action.
        body_width: columns of a body.
        num_bodies: bodies of an observation.
        first_changed: first column that the networks change.
        num_positions: leading columns that velocities move.
        has_attitude: whether roll, pitch and yaw follow the positions.
        uses_next: whether the velocities after the change move positions and attitude, not those before it.
        dt: seconds per step.
    """

    features: tuple[Feature, ...]
    act_dim: int
    body_width: int
    num_bodies: int = 1
    first_changed: int = 0
    num_positions: int = 0
    has_attitude: bool = False
    uses_next: bool = False
    dt: float = 0.0


def columns(kind: int, first: int, count: int) -> list[Feature]:
    """Return `count` features of one kind, from column `first` on."""
    return [(kind, column) for column in range(first, first + count)]
