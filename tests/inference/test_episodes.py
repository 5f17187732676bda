"""Part of much data: whole episodes, spread evenly over it, about as many transitions as asked."""

import numpy as np
import pytest

from mbrl_hdp import Trajectories
from mbrl_hdp.inference.episodes import some_episodes


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
