import numpy as np
import pytest

from mbrl_hdp.data import Trajectories


@pytest.fixture
def full_data():
    """Ragged episodes with everything that trajectories can hold."""
    rng = np.random.default_rng(5)
    return Trajectories(
        obs=rng.normal(size=(4, 8, 3)) * 10.0 ** rng.integers(-12, 12, (4, 8, 3)),
        act=rng.normal(size=(4, 7, 2)),
        lengths=[7, 1, 4, 2],
        context=rng.integers(0, 5, (4, 7)),
        reward=rng.normal(size=(4, 7)),
        terminated=[True, False, False, True],
    )


@pytest.fixture
def gappy_data(full_data):
    """The same with missing samples."""
    obs, act = full_data.obs.copy(), full_data.act.copy()
    context, reward = full_data.context.copy(), full_data.reward.copy()
    obs[0, 0, 1] = obs[0, 7, 0] = obs[2, 3] = np.nan
    act[0, 6, 0] = reward[3, 1] = np.nan
    context[2, 0] = -1
    return Trajectories(obs, act, full_data.lengths, context, reward, full_data.terminated, allow_missing=True)
