"""Columns that jump back after a turn are told from columns that jump for other reasons."""

import numpy as np
import pytest

from mbrl_hdp import Trajectories
from mbrl_hdp.data.turns import jumping_angles


def walk(num_episodes=6, num_steps=80):
    rng = np.random.default_rng(2)
    return rng.uniform(0, 6, (num_episodes, 1)) + np.cumsum(rng.normal(0.0, 0.4, (num_episodes, num_steps + 1)), 1)


@pytest.mark.parametrize(
    ("turn", "first"), [(2.0 * np.pi, -np.pi), (2.0 * np.pi, 0.0), (360.0, 0.0), (360.0, -180.0)]
)  # fmt: skip
def test_a_wrapped_angle_jumps(turn, first):
    angle = walk() * turn / (2.0 * np.pi)
    wrapped = (angle - first) % turn + first
    (found,) = jumping_angles(Trajectories(np.stack([walk(), wrapped], -1)))
    assert (found.column, found.turn) == (1, turn)
    assert found.times == (np.abs(np.diff(wrapped, axis=1)) > turn / 2).sum()


@pytest.mark.parametrize(
    "values",
    [
        walk(),  # goes on beyond a turn
        np.where(walk() > 6.0, 355.0, 3.0),  # a switch: nothing lies between its states
        np.random.default_rng(0).uniform(0.0, 360.0, (6, 81)),  # most steps are large
        walk() % 4.5,  # wraps after less than a turn
    ],
    ids=["unwrapped", "switch", "noise", "other period"],
)
def test_other_columns_do_not(values):
    assert [jump for jump in jumping_angles(Trajectories(values[..., None])) if jump.times > 0] == []


def test_missing_samples_are_skipped():
    wrapped = walk() % (2.0 * np.pi)
    wrapped[0, 10:14] = np.nan
    empty = np.full_like(wrapped, np.nan)
    (found,) = jumping_angles(Trajectories(np.stack([empty, wrapped], -1), allow_missing=True))
    assert found.column == 1
