import numpy as np
import pytest
from mbrl.util import ReplayBuffer

from mbrl_hdp.data import Trajectories
from mbrl_hdp.errors import DataError

FIELDS = ("obs", "action", "next_obs", "reward", "terminated", "truncated")


def fill_step_by_step(data, capacity):
    """The second route: mbrl-lib's own `add`."""
    buffer = ReplayBuffer(
        capacity, (data.obs_dim,), (data.act_dim,), np.float64, np.float64, np.float64, max_trajectory_length=7
    )
    for episode in data:
        for t in range(len(episode.act)):
            is_last = t == len(episode.act) - 1
            terminated = is_last and episode.terminated
            buffer.add(
                episode.obs[t],
                episode.act[t],
                episode.obs[t + 1],
                episode.reward[t],
                terminated,
                is_last and not terminated,
            )
    return buffer


@pytest.mark.parametrize("capacity", [14, 40])
def test_the_buffer_is_what_add_makes(full_data, capacity):
    buffer, expected = full_data.to_replay_buffer(capacity), fill_step_by_step(full_data, capacity)
    assert buffer.trajectory_indices == expected.trajectory_indices == [(0, 7), (7, 8), (8, 12), (12, 14)]
    assert (buffer.num_stored, buffer.cur_idx) == (expected.num_stored, expected.cur_idx)
    for name in FIELDS:
        assert np.array_equal(getattr(buffer.get_all(), _batch_name(name)), getattr(expected, name)[:14]), name


def _batch_name(name):
    return {"action": "act", "reward": "rewards", "terminated": "terminateds", "truncated": "truncateds"}.get(
        name, name
    )


@pytest.mark.parametrize("capacity", [20, 50])
def test_adding_goes_on_as_usual(full_data, capacity):
    buffer, expected = full_data.to_replay_buffer(capacity), fill_step_by_step(full_data, capacity)
    for target in (buffer, expected):
        for t in range(7):
            target.add(np.full(3, t), np.zeros(2), np.full(3, t + 1), 0.0, False, t == 6)
    assert buffer.trajectory_indices == expected.trajectory_indices
    assert (buffer.num_stored, buffer.cur_idx) == (expected.num_stored, expected.cur_idx)


def test_round_trip_leaves_only_the_contexts_out(full_data):
    back = Trajectories.from_replay_buffer(full_data.to_replay_buffer())
    assert back.context is None
    assert back == Trajectories(
        full_data.obs,
        full_data.act,
        full_data.lengths,
        reward=full_data.reward,
        terminated=full_data.terminated,
    )


def test_unknown_rewards_are_nan_and_come_back_as_none():
    data = Trajectories(obs=np.arange(8.0, dtype=np.float32).reshape(2, 4, 1), lengths=[3, 2])
    buffer = data.to_replay_buffer(rng=np.random.default_rng(1))
    assert np.isnan(buffer.reward[:5]).all()
    assert buffer.obs.dtype == np.float32
    back = Trajectories.from_replay_buffer(buffer)
    assert back.reward is None
    assert np.array_equal(back.obs, data.obs)


def test_saved_and_loaded_by_mbrl_lib(full_data, tmp_path):
    full_data.to_replay_buffer().save(tmp_path)
    loaded = ReplayBuffer(14, (3,), (2,), np.float64, np.float64, np.float64, max_trajectory_length=7)
    loaded.load(tmp_path)
    assert Trajectories.from_replay_buffer(loaded) == Trajectories.from_replay_buffer(full_data.to_replay_buffer())


def test_refusals(full_data, gappy_data):
    with pytest.raises(DataError, match="cannot mark missing samples"):
        gappy_data.to_replay_buffer()
    with pytest.raises(DataError, match="capacity=13 is too small for 14"):
        full_data.to_replay_buffer(13)
    with pytest.raises(DataError, match="make it with max_trajectory_length="):
        Trajectories.from_replay_buffer(ReplayBuffer(5, (1,), (1,)))
    with pytest.raises(DataError, match="no finished trajectory"):
        Trajectories.from_replay_buffer(ReplayBuffer(5, (1,), (1,), max_trajectory_length=3))


def test_broken_trajectories_are_refused(full_data):
    buffer = full_data.to_replay_buffer()
    buffer.obs[10] += 1.0
    with pytest.raises(DataError, match="transition 9 of the replay buffer does not lead to transition 10"):
        Trajectories.from_replay_buffer(buffer)
    buffer = full_data.to_replay_buffer()
    buffer.terminated[2] = True
    with pytest.raises(DataError, match="transition 2 of the replay buffer is terminal"):
        Trajectories.from_replay_buffer(buffer)
