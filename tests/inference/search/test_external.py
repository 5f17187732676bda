"""Columns that nothing recorded influences are found, and states that only contexts hide are not taken for such."""

import warnings

import numpy as np
import pytest

from mbrl_hdp.data.names import Names
from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.envs.recordings import record
from mbrl_hdp.inference.search.external import _unreached, external_columns
from mbrl_hdp.inference.search.rows import make_rows


def two_axes(turns: bool, seed: int = 0) -> tuple[Trajectories, np.ndarray]:
    """A cart on two axes (x, y, vx, vy) in a wind that is recorded last; contexts may turn the drive of y round."""
    rng = np.random.default_rng(seed)
    shape = (24, 120)
    context = np.zeros(shape, int)
    for t in range(1, shape[1]):
        context[:, t] = np.where(rng.random(shape[0]) < 0.08, 1 - context[:, t - 1], context[:, t - 1])
    act = rng.uniform(-1.0, 1.0, (*shape, 2))
    sign = np.where(turns & (context == 1), -1.0, 1.0)
    state, wind = rng.normal(0.0, 0.3, (shape[0], 4)), rng.normal(size=shape[0])
    obs = [np.column_stack([state, wind])]
    for t in range(shape[1]):
        x, y, vx, vy = state.T
        pushed = 0.95 * vx + 0.1 * act[:, t, 0] + 0.1 * wind, 0.95 * vy + 0.1 * sign[:, t] * act[:, t, 1]
        state = np.column_stack([x + 0.1 * vx, y + 0.1 * vy, *pushed]) + rng.normal(0.0, 0.003, (shape[0], 4))
        wind = 0.97 * wind + 0.2 * rng.normal(size=shape[0])
        obs.append(np.column_stack([state, wind]))
    return Trajectories(np.stack(obs, 1), act), context


def test_the_wind_is_external_and_an_axis_that_contexts_turn_round_is_not():
    assert external_columns(two_axes(turns=False)[0]) == [4]
    data, context = two_axes(turns=True)
    rows = make_rows(data)
    assert _unreached(rows, 5) == [1, 3, 4]  # what one context would make one believe
    assert _unreached(rows, 5, context.ravel()) == [4]
    assert external_columns(data) == [4]


@pytest.mark.parametrize(("log", "columns"), [("building_weather", [1, 2]), ("tanks", []), ("refrigerator", [])])
def test_in_one_context_weather_is_unreached_and_states_are_not(log, columns):
    recording = record(log, 0)
    data = Trajectories(recording.obs, recording.act)
    assert _unreached(make_rows(data), data.obs_dim) == columns


def test_the_past_of_a_position_does_not_hide_its_speed():
    """Where readings of the speed are noisy, the last changes of the position say more about the next one."""
    rng = np.random.default_rng(0)
    act, speed, place = rng.uniform(-1.0, 1.0, (20, 100, 1)), np.zeros(20), np.zeros(20)
    obs = [np.column_stack([place, speed])]
    for t in range(100):
        place, speed = place + 0.1 * speed, 0.97 * speed + 0.1 * act[:, t, 0]
        obs.append(np.column_stack([place, speed]))
    noisy = np.stack(obs, 1) + rng.normal(size=(20, 101, 2)) * np.array([1e-6, 0.1])
    assert _unreached(make_rows(Trajectories(noisy, act)), 2) == []


def test_without_inputs_nothing_is_external():
    recording = record("market", 0)
    assert external_columns(Trajectories(recording.obs, recording.act)) == []


@pytest.mark.parametrize("shape", [(3, 20), (400, 3)])
def test_little_data_says_nothing(shape):
    """A few steps, or many episodes that are shorter than the past that is looked at."""
    rng = np.random.default_rng(0)
    data = Trajectories(rng.normal(size=(shape[0], shape[1] + 1, 2)), rng.normal(size=(*shape, 1)))
    with warnings.catch_warnings(action="error"):
        assert external_columns(data) == []


def test_columns_become_inputs_with_their_names():
    rng = np.random.default_rng(0)
    names = Names(("room", "sun", "wall"), ("heater",), units={"sun": "W"})
    data = Trajectories(rng.normal(size=(2, 6, 3)), rng.normal(size=(2, 5, 1)), names=names)
    moved = data.with_inputs([1])
    np.testing.assert_array_equal(moved.obs, data.obs[..., [0, 2]])
    np.testing.assert_array_equal(moved.act, np.concatenate([data.act, data.obs[:, :-1, [1]]], -1))
    assert (moved.names.obs, moved.names.act) == (("room", "wall"), ("heater", "sun"))
    assert moved.names.units == names.units
