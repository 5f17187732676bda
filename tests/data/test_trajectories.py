import dataclasses

import numpy as np
import pytest
import torch

import mbrl_hdp
from mbrl_hdp.data import Episode, Trajectories
from mbrl_hdp.errors import DataError


def make(num_episodes=4, max_steps=6, obs_dim=3, act_dim=2, seed=0, **more):
    rng = np.random.default_rng(seed)
    return Trajectories(
        obs=rng.normal(size=(num_episodes, max_steps + 1, obs_dim)),
        act=rng.normal(size=(num_episodes, max_steps, act_dim)),
        **more,
    )


def test_sizes_and_public_name():
    data = make(lengths=[6, 2, 1, 5])
    assert mbrl_hdp.Trajectories is Trajectories
    sizes = (data.num_episodes, data.max_steps, data.obs_dim, data.act_dim, data.num_transitions, len(data))
    assert sizes == (4, 6, 3, 2, 14, 4)
    assert "14 transitions" in repr(data)


def test_no_actions_means_width_zero():
    data = Trajectories(obs=np.zeros((2, 4, 1), np.float32))
    assert data.act.shape == (2, 3, 0)
    assert data.act.dtype == np.float32
    assert data.is_observed.all()


def test_single_episode_gets_the_episode_axis():
    data = Trajectories(
        obs=np.arange(8.0).reshape(4, 2), act=np.ones((3, 1)), context=[0, 1, 1], reward=[1, 2, 3], terminated=True
    )
    assert data.obs.shape == (1, 4, 2)
    assert data.context.tolist() == [[0, 1, 1]]
    assert data.reward.tolist() == [[1.0, 2.0, 3.0]]
    assert data.terminated.tolist() == [[False, False, True]]
    assert Trajectories(obs=np.zeros((4, 2)), lengths=2).lengths.tolist() == [2]


@pytest.mark.parametrize(
    ("given", "kept"), [(np.float32, np.float32), (np.float64, np.float64), (np.int32, np.float64), (bool, np.float64)]
)
def test_float32_stays_and_the_rest_becomes_float64(given, kept):
    data = Trajectories(obs=np.ones((1, 3, 1), given), act=np.ones((1, 2, 1), given), reward=np.ones((1, 2), given))
    assert data.obs.dtype == data.act.dtype == data.reward.dtype == kept


def test_tensors_are_taken_unless_they_carry_a_gradient():
    obs = torch.arange(8.0).reshape(2, 4, 1)
    data = Trajectories(obs)
    assert data.obs.dtype == np.float32
    assert data.obs.ravel().tolist() == list(range(8))
    with pytest.raises(DataError, match=r"obs cannot be read as one array.*grad"):
        Trajectories(obs.requires_grad_())


def test_arrays_are_copied():
    obs = np.zeros((1, 3, 1))
    data = Trajectories(obs=obs, lengths=[1])
    obs[:] = 7.0
    assert data.obs[0, 0, 0] == 0.0
    with pytest.raises(dataclasses.FrozenInstanceError):
        data.obs = obs


def test_padding_is_ignored_and_set():
    obs, act, reward = np.ones((2, 4, 2)), np.ones((2, 3, 1)), np.ones((2, 3))
    obs[1, 2:], act[1, 1:], reward[1, 1:] = np.nan, np.inf, np.nan
    context = np.array([[0, 1, 2], [1, -7, 99]])
    data = Trajectories(obs, act, lengths=[3, 1], context=context, reward=reward, terminated=[False, True])
    assert (data.obs[1, :2] == 1).all()
    assert (data.obs[1, 2:] == 0).all()
    assert (data.act[1, 1:] == 0).all()
    assert (data.reward[1, 1:] == 0).all()
    assert data.context.tolist() == [[0, 1, 2], [1, -1, -1]]
    assert data.terminated.tolist() == [[False] * 3, [True, False, False]]


@pytest.mark.parametrize(
    ("name", "place", "words"),
    [
        ("obs", (1, 6, 2), "episode 1, step 6, column 2"),
        ("act", (2, 0, 1), "episode 2, step 0, column 1"),
        ("reward", (3, 4), "episode 3, step 4"),
    ],
)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused_with_their_place(name, place, words, value):
    data = make(reward=np.ones((4, 6)))
    arrays = {"obs": data.obs, "act": data.act, "reward": data.reward}
    arrays[name][place] = value
    with pytest.raises(DataError, match=f"{name} is {value} at {words} \\(1 such"):
        Trajectories(**arrays)


def test_nan_tells_what_to_do():
    with pytest.raises(DataError, match=r"lengths= if this is padding, or allow_missing=True"):
        Trajectories(obs=np.full((1, 3, 1), np.nan))


def test_missing_samples_make_transitions_unobserved():
    data = make(num_episodes=2, max_steps=5, lengths=[5, 3])
    obs, act = data.obs.copy(), data.act.copy()
    obs[0, 2, 1] = np.nan  # hits transitions 1 and 2
    act[1, 0, 0] = np.nan
    missing = Trajectories(obs, act, lengths=[5, 3], allow_missing=True)
    assert missing.is_observed.tolist() == [[True, False, False, True, True], [False, True, True, False, False]]
    flat = missing.transitions()
    assert flat.obs.shape == (5, 3)
    assert np.array_equal(flat.next_obs[0], obs[0, 1])
    assert missing.is_step.sum() == 8


def test_infinite_values_are_refused_even_where_samples_may_be_missing():
    with pytest.raises(DataError, match="obs is inf"):
        Trajectories(obs=np.full((1, 3, 1), np.inf), allow_missing=True)


def test_missing_contexts_need_allow_missing():
    obs = np.zeros((1, 4, 1))
    with pytest.raises(DataError, match=r"context is unknown .*allow_missing=True.* at episode 0, step 1"):
        Trajectories(obs, context=[[0, -1, 1]])
    data = Trajectories(obs, context=[[0, np.nan, 1]], allow_missing=True)
    assert data.context.tolist() == [[0, -1, 1]]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"obs": np.zeros(5)}, r"obs must have shape .*got \[5\]"),
        ({"obs": np.zeros((1, 2, 3, 4))}, "obs must have shape"),
        ({"obs": np.zeros((0, 4, 2))}, "no episodes"),
        ({"obs": np.zeros((2, 1, 2))}, "too short"),
        ({"obs": np.zeros((2, 4, 0))}, "no columns"),
        ({"obs": [["a", "b"]]}, "obs must hold real numbers"),
        ({"obs": [[[1.0], [2.0]], [[1.0]]]}, "obs cannot be read as one array.*from_episodes"),
        ({"act": np.zeros((2, 4, 1))}, r"act must have shape \[2, 3, act_dim\].*got \[2, 4, 1\]"),
        ({"act": np.zeros((2, 3))}, "a single column still has its own axis"),
        ({"act": np.zeros((2, 3, 1), complex)}, "act must hold real numbers"),
        ({"lengths": [3]}, r"lengths must have shape \[2\]"),
        ({"lengths": [0, 3]}, "episode 0 is too short.*at least 1, got 0"),
        ({"lengths": [3, 4]}, "lengths of episode 1 is 4, but the arrays hold only 3"),
        ({"lengths": [3, 1.5]}, "whole numbers, got 1.5 for episode 1"),
        ({"lengths": [3, np.nan]}, "whole numbers, got nan"),
        ({"context": np.zeros((2, 4))}, r"context must have shape \[2, 3\]"),
        ({"context": [[0, 1, 2], [0, 0.5, 1]]}, "context must be a whole number: got 0.5 at episode 1, step 1"),
        ({"context": [[0, 1, -2], [0, 0, 1]]}, "context must not be negative: got -2 at episode 0, step 2"),
        ({"context": [["a"] * 3] * 2}, "context must hold real numbers"),
        ({"reward": np.zeros((2, 4))}, r"reward must have shape \[2, 3\]"),
        ({"terminated": np.zeros((2, 4))}, r"terminated must have shape \[2, 3\]"),
        ({"terminated": [True, False, True]}, r"terminated must have shape \[2\]"),
        ({"terminated": [[0, 0, 2], [0, 0, 1]]}, "terminated must be true or false: got 2 at episode 0, step 2"),
        ({"terminated": [[0, 0, 1], [0, 1, 0]]}, "terminated before .* last transition .* at episode 1, step 1"),
    ],
)
def test_refusals(arguments, words):
    with pytest.raises(DataError, match=words):
        Trajectories(**{"obs": np.zeros((2, 4, 2)), **arguments})


def test_transitions_are_the_valid_steps_in_order():
    data = make(num_episodes=3, max_steps=4, lengths=[4, 1, 2])
    expected = [(i, t) for i, length in enumerate([4, 1, 2]) for t in range(length)]
    flat = data.transitions()
    for row, (i, t) in enumerate(expected):
        assert np.array_equal(flat.obs[row], data.obs[i, t])
        assert np.array_equal(flat.act[row], data.act[i, t])
        assert np.array_equal(flat.next_obs[row], data.obs[i, t + 1])
    assert len(flat.obs) == len(expected) == data.num_transitions


def test_episodes_come_without_padding_and_go_back():
    labels = {"context": np.ones((4, 6), int), "reward": np.ones((4, 6)), "terminated": [True, False, True, False]}
    data = make(lengths=[6, 2, 1, 5], **labels)
    episodes = list(data)
    assert [len(episode.act) for episode in episodes] == [6, 2, 1, 5]
    assert [len(episode.obs) for episode in episodes] == [7, 3, 2, 6]
    assert [episode.terminated for episode in episodes] == [True, False, True, False]
    assert Trajectories.from_episodes(episodes) == data


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (Episode(np.zeros((3, 2)), np.zeros((3, 1))), r"act of episode 1 has shape \[3, 1\], but 3 observations"),
        (Episode(np.zeros((3, 3)), np.zeros((2, 1))), r"obs of episode 1 has shape \[3, 3\], episode 0 \[6, 2\]"),
        (Episode(np.zeros((3, 2))), "act is given for some episodes but not for episode 1"),
        (Episode(np.zeros((1, 2)), np.zeros((0, 1))), "episode 1 is too short"),
        (Episode(np.zeros((3, 2)), np.zeros((2, 1)), reward=np.zeros(2)), "reward is given for some"),
    ],
)
def test_episodes_that_do_not_fit_together(second, words):
    with pytest.raises(DataError, match=words):
        Trajectories.from_episodes([Episode(np.zeros((6, 2)), np.zeros((5, 1))), second])


def test_no_episodes():
    with pytest.raises(DataError, match="no episodes"):
        Trajectories.from_episodes([])


def test_equality_looks_at_values_not_at_padding():
    data = make(lengths=[3, 2, 1, 2])
    narrow = Trajectories(data.obs[:, :4], data.act[:, :3], lengths=data.lengths)
    assert data == narrow
    assert data != make(lengths=[3, 2, 1, 1])
    assert data != make(lengths=[3, 2, 1, 2], seed=1)
    assert data != make(lengths=[3, 2, 1, 2], reward=np.zeros((4, 6)))
    assert data != "data"
    with pytest.raises(TypeError, match="unhashable"):
        hash(data)


@pytest.mark.parametrize(
    ("indices", "expected"),
    [([2, 0], [2, 0]), (1, [1]), (-1, [3]), (slice(1, 3), [1, 2]), (np.array([True, False, False, True]), [0, 3])],
)
def test_select(indices, expected):
    data = make(lengths=[6, 2, 1, 5], context=np.arange(24).reshape(4, 6))
    chosen = data.select(indices)
    assert chosen.lengths.tolist() == data.lengths[expected].tolist()
    assert np.array_equal(chosen.obs, data.obs[expected])
    assert np.array_equal(chosen.context, data.context[expected])
    assert chosen.max_steps == data.max_steps


def test_select_outside_is_refused():
    with pytest.raises(DataError, match="cannot select episodes from a set of 4"):
        make().select([4])
    with pytest.raises(DataError, match="no episodes"):
        make().select([])


def test_split_is_a_partition_that_the_seed_decides():
    data = make(num_episodes=10, reward=np.arange(60.0).reshape(10, 6))
    train, rest = data.split(0.7, seed=3)
    first = {*train.reward[:, 0].tolist()}, {*rest.reward[:, 0].tolist()}
    assert (train.num_episodes, rest.num_episodes) == (7, 3)
    assert first[0] | first[1] == {*data.reward[:, 0].tolist()}
    assert data.split(0.7, seed=3)[0] == train
    assert data.split(0.7, seed=4)[0] != train
    assert [part.num_episodes for part in data.split([5, 3, 2])] == [5, 3, 2]


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        (1.0, "between 0 and 1"),
        (3, "counts go in a list"),
        (0.01, r"sets of \[0, 4\]"),
        ([2, 1], "together they must make 4"),
        ([4, 0], "at least one"),
    ],
)
def test_split_refusals(parts, words):
    with pytest.raises(DataError, match=words):
        make().split(parts)


def test_concatenate_pads_the_shorter():
    short, long = make(2, 3, seed=1), make(3, 5, seed=2, lengths=[5, 4, 2])
    both = Trajectories.concatenate([short, long])
    assert both.lengths.tolist() == [3, 3, 5, 4, 2]
    assert both.select([0, 1]) == short
    assert both.select([2, 3, 4]) == long


def test_concatenate_refusals():
    with pytest.raises(DataError, match="obs of episode 4"):
        Trajectories.concatenate([make(), make(obs_dim=2)])
    with pytest.raises(DataError, match="context is given for some episodes but not for episode 4"):
        Trajectories.concatenate([make(context=np.zeros((4, 6))), make()])


def test_replace_keeps_the_checks():
    data = make(context=np.zeros((4, 6)))
    assert dataclasses.replace(data, context=None).context is None
    with pytest.raises(DataError, match="lengths"):
        dataclasses.replace(data, lengths=[1])
