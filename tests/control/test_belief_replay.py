"""The replay buffer of packed transitions: what goes in comes out, and relabelled beliefs are a fresh filter pass."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from mbrl_hdp.belief.codec import BeliefCodec
from mbrl_hdp.belief.filter import update_belief
from mbrl_hdp.control.replay import BeliefReplay, model_beliefs
from mbrl_hdp.data.trajectories import Episode, Trajectories
from mbrl_hdp.errors import CheckpointError, DataError
from mbrl_hdp.hooks import load_registry
from mbrl_hdp.inference.fit import build_model
from mbrl_hdp.inference.model import ModelParts, Part
from mbrl_hdp.probability.markov import distilled_policy_initial, distilled_policy_transition
from mbrl_hdp.types import ContextChain, TaskSpec

CODEC = BeliefCodec(1, 4)
LENGTHS = [6, 4, 5]


@pytest.fixture(scope="module")
def model():
    """Four slots, of which 0 and 2 are used: x' = x + push_k a + noise."""
    registry = load_registry()
    parts = ModelParts(
        Part("mle", registry.get("prior", "mle").spec.config()),
        Part("linear", registry.get("dynamics", "linear").spec.config(std_floor=1e-3)),
        Part("stationary", registry.get("distillation", "stationary").spec.config()),
    )
    made = build_model(parts, TaskSpec(4, obs_dim=1, act_dim=1), registry)
    with torch.no_grad():
        made.dynamics.heads.weights[0].copy_(torch.tensor([[[0.0, push]] for push in (1.0, 0.3, -0.5, 2.0)]))
        made.dynamics.heads.biases[0].zero_()
        made.dynamics.raw_log_std.fill_(np.log(0.2))
    transition = torch.tensor(
        [[0.8, 0.01, 0.18, 0.01], [0.3, 0.1, 0.5, 0.1], [0.29, 0.01, 0.7, 0.0], [0.6, 0.1, 0.2, 0.1]]
    )
    made.prior.start_from(ContextChain(torch.tensor([0.6, 0.02, 0.36, 0.02]), transition), 1e6)
    made.extract()
    assert made.kept.tolist() == [True, False, True, False]
    return made


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(3)
    act = rng.uniform(-1, 1, (3, 6, 1))
    steps = rng.choice([1.0, -0.5], (3, 6, 1)) * act + 0.2 * rng.normal(size=act.shape)
    obs = np.concatenate([np.zeros((3, 1, 1)), np.cumsum(steps, 1)], 1)
    terminated = np.zeros((3, 6), bool)
    terminated[1, 3] = True
    return Trajectories(
        obs, act, lengths=LENGTHS, reward=rng.normal(size=(3, 6)), terminated=terminated,
        context=rng.integers(2, size=(3, 6)),
    )  # fmt: skip


def beliefs_for(data, width=4, seed=0):
    return np.random.default_rng(seed).dirichlet(np.ones(width), (data.num_episodes, data.max_steps + 1))


def filled(data, beliefs):
    replay = BeliefReplay(CODEC, 1)
    replay.extend(data, beliefs)
    return replay


def by_hand(data, beliefs):
    """All transitions, in order, with loops."""
    rows = []
    for i, length in enumerate(data.lengths):
        for t in range(length):
            obs, next_obs = (np.concatenate([data.obs[i, s], beliefs[i, s]]) for s in (t, t + 1))
            rows.append((obs, data.act[i, t], data.reward[i, t], next_obs, data.terminated[i, t]))
    return [torch.as_tensor(np.stack(column)) for column in zip(*rows, strict=True)]


def test_transitions_come_out_as_they_went_in(data):
    beliefs = beliefs_for(data)
    replay = filled(data, beliefs)
    assert (len(replay), replay.num_episodes) == (15, 3)
    for ours, wanted in zip(replay.get_all(), by_hand(data, beliefs), strict=True):
        assert_close(ours, wanted.to(ours.dtype))
    back = replay.trajectories
    np.testing.assert_array_equal(back.lengths, data.lengths)
    np.testing.assert_allclose(back.obs, data.obs, rtol=1e-6)
    np.testing.assert_allclose(back.reward, data.reward, rtol=1e-6)
    np.testing.assert_array_equal(back.terminated, data.terminated)
    assert back.context is None  # no learner reads the truth


def test_one_episode_at_a_time_is_the_same(data):
    beliefs = beliefs_for(data)
    replay = BeliefReplay(CODEC, 1)
    for index, episode in enumerate(data):
        replay.add(episode, beliefs[index, : len(episode.obs)])
    for ours, wanted in zip(replay.get_all(), filled(data, beliefs).get_all(), strict=True):
        assert torch.equal(ours, wanted)


def test_the_oldest_episodes_go_first(data):
    beliefs = beliefs_for(data)
    replay = BeliefReplay(CODEC, 1, max_episodes=2)
    replay.extend(data, beliefs)
    rest = data.select([1, 2])
    for ours, wanted in zip(replay.get_all(), filled(rest, beliefs[1:, : rest.max_steps + 1]).get_all(), strict=True):
        assert torch.equal(ours, wanted)


def test_draws_are_uniform_and_follow_the_generator(data):
    replay = filled(data, beliefs_for(data))
    first, second = (replay.draw(15_000, torch.Generator().manual_seed(5)) for _ in range(2))
    assert torch.equal(first.reward, second.reward)
    everything = replay.get_all()
    for row in range(15):
        drawn = first.reward == everything.reward[row]
        assert abs(int(drawn.sum()) - 1000) < 6 * np.sqrt(1000)
        for part, all_parts in zip(first, everything, strict=True):
            assert (part[drawn] == all_parts[row]).all()


def test_mbrl_libs_sample(data):
    batch = filled(data, beliefs_for(data)).sample(7)
    assert batch.obs.shape == batch.next_obs.shape == (7, 5)
    assert batch.act.shape == (7, 1)
    assert batch.rewards.shape == batch.terminateds.shape == (7,)
    assert not batch.truncateds.any()


class TestRelabel:
    def test_model_beliefs_equal_the_full_width_filter(self, model, data):
        """Second route: Bayes' rule step by step over all four slots with the policy form of the chain."""
        found = model_beliefs(model, data)
        chain, kept = model.posterior().chain, torch.as_tensor(model.kept)
        initial = distilled_policy_initial(chain.initial, kept).double().numpy()
        transition = distilled_policy_transition(chain.transition, kept).double().numpy()
        for i, length in enumerate(data.lengths):
            belief = initial
            np.testing.assert_allclose(found[i, 0], belief, atol=1e-6)
            for t in range(length):
                row = [torch.as_tensor(part[None], dtype=torch.float32) for part in (data.obs[i, t], data.act[i, t])]
                after = torch.as_tensor(data.obs[i, t + 1][None], dtype=torch.float32)
                with torch.no_grad():
                    log_lik = model.dynamics.log_prob(*row, after)[0].double().numpy()
                _, belief = update_belief(belief, log_lik, transition)
                np.testing.assert_allclose(found[i, t + 1], belief, atol=1e-5)
            assert np.isnan(found[i, length + 1 :]).all()
        assert (found[0, :, [1, 3]] == 0).all()

    def test_model_beliefs_are_what_the_online_filter_packs(self, model, data):
        found = model_beliefs(model, data)
        online = model.online_filter()
        np.testing.assert_allclose(online.reset(data.obs[0, 0]), found[0, 0, [0, 2]], atol=1e-6)
        for t in range(6):
            belief = online.update(data.act[0, t], data.obs[0, t + 1])
            np.testing.assert_allclose(belief, found[0, t + 1, [0, 2]], atol=1e-5)

    def test_the_buffer_then_holds_a_fresh_filter_pass(self, model, data):
        replay = filled(data, beliefs_for(data))
        replay.relabel(lambda stored: model_beliefs(model, stored))
        for ours, wanted in zip(replay.get_all(), by_hand(data, model_beliefs(model, data)), strict=True):
            assert_close(ours, wanted.to(ours.dtype), rtol=1e-5, atol=1e-6)

    def test_wrong_beliefs_are_refused(self, data):
        replay = filled(data, beliefs_for(data))
        with pytest.raises(DataError, match=r"shape \[3, 7, 4\]"):
            replay.relabel(lambda stored: beliefs_for(stored, width=3))
        with pytest.raises(DataError, match="finite"):
            replay.relabel(lambda stored: np.full((3, 7, 4), np.nan))
        with pytest.raises(DataError, match="empty"):
            BeliefReplay(CODEC, 1).relabel(beliefs_for)


def test_resume_is_exact(data):
    replay = filled(data, beliefs_for(data))
    replay.sample(3)
    other = BeliefReplay(CODEC, 1, seed=9)
    other.load_state_dict(replay.state_dict())
    for left, right in zip(replay.sample(50).astuple(), other.sample(50).astuple(), strict=True):
        np.testing.assert_array_equal(left, right)
    replay.extend(data, beliefs_for(data, seed=1))
    other.extend(data, beliefs_for(data, seed=1))
    for left, right in zip(replay.get_all(), other.get_all(), strict=True):
        assert torch.equal(left, right)
    with pytest.raises(CheckpointError, match="widths"):
        BeliefReplay(BeliefCodec(1, 5), 1).load_state_dict(replay.state_dict())
    with pytest.raises(CheckpointError, match="packed"):
        other.load_state_dict({})


def test_wrong_episodes_are_refused(data):
    replay = BeliefReplay(CODEC, 1)
    with pytest.raises(DataError, match="rewards"):
        replay.add(Episode(np.zeros((3, 1)), np.zeros((2, 1))))
    with pytest.raises(DataError, match="1 observations and 1 actions"):
        replay.add(Episode(np.zeros((3, 2)), np.zeros((2, 1)), reward=np.zeros(2)))
    with pytest.raises(DataError, match="shape"):
        replay.extend(data, beliefs_for(data)[:, :-1])
    with pytest.raises(DataError, match="empty"):
        replay.draw(3, torch.Generator())
    with pytest.raises(DataError, match="max_episodes"):
        BeliefReplay(CODEC, 1, max_episodes=0)
