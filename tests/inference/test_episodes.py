"""Part of much data: whole episodes, spread evenly over it, about as many transitions as asked."""

import numpy as np
import pytest

from mbrl_hdp import Trajectories
from mbrl_hdp.inference.episodes import EpisodeTensors, some_episodes


@pytest.fixture
def data():
    """Eleven episodes of five steps; the first observation is the episode's number."""
    obs = np.arange(11.0)[:, None, None] + np.zeros((11, 6, 1))
    return Trajectories(obs)


@pytest.mark.parametrize(
    ("most", "chosen"),
    [(55, range(11)), (1000, range(11)), (30, [0, 2, 4, 6, 8, 10]), (15, [0, 5, 10]), (1, [0, 10])],
)
def test_episodes_are_spread_over_the_data(data, most, chosen):
    assert some_episodes(data, most).obs[:, 0, 0].tolist() == list(chosen)


def test_steps_that_were_not_observed_do_not_count(data):
    obs = data.obs.copy()
    obs[:, 3:] = np.nan  # two of five transitions are left
    assert some_episodes(Trajectories(obs, allow_missing=True), 15).num_episodes == round(15 / 2)


def test_nothing_observed_is_all_of_it(data):
    assert some_episodes(Trajectories(np.full_like(data.obs, np.nan), allow_missing=True), 15).num_episodes == 11


def test_a_partial_step_has_a_known_start_and_a_recorded_change():
    gap = np.nan
    obs = [[0.0, 0.0], [1.0, gap], [2.0, 2.0], [gap, gap], [4.0, 4.0], [5.0, 5.0], [6.0, 6.0]]
    act = [[0.1], [0.2], [0.3], [0.4], [gap], [0.6]]
    data = Trajectories(np.array([obs]), np.array([act]), allow_missing=True)
    found = EpisodeTensors.of(data)
    assert found.is_observed.tolist() == [[False] * 5 + [True]]
    # One column ends; one begins as the mean of its neighbours; no change was seen, twice; the action is not known.
    assert found.is_partial.tolist() == [[True, True, False, False, False, False]]
