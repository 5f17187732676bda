"""What a policy sees of an observation."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from mbrl_hdp.belief.codec import BeliefCodec
from mbrl_hdp.control.features import ObsFeatures
from mbrl_hdp.control.policy import ContextSac
from mbrl_hdp.control.replay import BeliefReplay
from mbrl_hdp.control.sac_config import SacConfig
from mbrl_hdp.data.trajectories import Trajectories

CPU = torch.device("cpu")


def features(obs_dim=2, **settings):
    return ObsFeatures(obs_dim, SacConfig(**settings), CPU)


def draws(*spreads, num=4001, seed=0):
    return torch.randn(num, len(spreads), generator=torch.Generator().manual_seed(seed)) * torch.tensor(spreads)


def test_without_settings_they_are_the_observation():
    obs = draws(1.0, 3.0)
    made = features()
    assert made.width == 2
    assert_close(made(obs), obs)


def test_the_copy_is_asinh_in_units_of_median_and_quartiles():
    obs = torch.tensor([[0.0, 5.0], [1.0, 5.0], [4.0, 5.0], [8.0, 5.0], [100.0, 5.0]])
    made = features(magnify_obs=True)
    made.measure(obs)
    assert_close(made.late_centre, torch.tensor([4.0, 5.0]))
    # Quartiles 1 and 8; the second column never changes: a hundredth of its unit, which is 1.
    assert_close(made.late_scale, torch.tensor([3.5, 1e-2]))
    found = made(torch.tensor([[7.5, 5.0]]))
    assert_close(found, torch.tensor([[7.5, 5.0, math.asinh(1.0), 0.0]]))


def test_small_differences_are_seen_where_the_system_is():
    made = features(obs_dim=1, standardise_obs=True, magnify_obs=True)
    made.measure(draws(0.5))
    for _ in range(200):
        made.follow(draws(0.01) + 0.2)
    near = made(torch.tensor([[0.2], [0.21]]))
    assert near[1, 0] - near[0, 0] < 0.03
    assert near[1, 1] - near[0, 1] > 0.8
    assert made(torch.tensor([[3.0]]))[0, 1] < 8.0


def test_following_is_gradual_and_bounded_below():
    made = features(obs_dim=1, magnify_obs=True)
    made.measure(draws(1.0))
    first = float(made.late_scale)
    made.follow(torch.full((100, 1), 7.0))
    assert 0.0 < float(made.late_centre) < 1.0
    assert 0.5 * first < float(made.late_scale) < first
    for _ in range(2000):
        made.follow(torch.full((100, 1), 7.0))
    assert float(made.late_centre) == pytest.approx(7.0, abs=1e-3)
    assert float(made.late_scale) == pytest.approx(1e-2, rel=0.1)


def test_following_stops_with_learning():
    made = features(obs_dim=1, magnify_obs=True)
    made.measure(draws(1.0))
    before = made.state_dict()
    made.follow(torch.full((100, 1), 7.0), factor=0.0)
    assert_close(made.state_dict(), before, rtol=0, atol=0)


def test_turns_of_an_angle_do_not_matter():
    made = features(obs_dim=2, angle_columns=[1], magnify_obs=True)
    obs = draws(1.0, 0.1) + torch.tensor([0.0, math.pi])
    turned = obs + torch.tensor([0.0, 2 * math.pi]) * torch.randint(-3, 4, (len(obs), 1))
    for data in (obs, turned):
        again = features(obs_dim=2, angle_columns=[1], magnify_obs=True)
        again.measure(obs)
        again.follow(data)
        if data is obs:
            made = again
    assert_close(again.late_scale, made.late_scale, rtol=1e-4, atol=1e-6)
    assert_close(again(turned)[:, 3:], made(obs)[:, 3:], rtol=0, atol=2e-3)
    assert made.width == 5


def test_a_policy_follows_the_latest_episodes():
    codec, rng = BeliefCodec(2, 0), np.random.default_rng(0)
    box = type("Box", (), {"low": -np.ones(1), "high": np.ones(1), "shape": (1,)})()
    config = dataclasses.replace(SacConfig(), hidden_sizes=[8], linear_decay=False, magnify_obs=True, batch_size=16)
    sac, replay = ContextSac(codec, box, config), BeliefReplay(codec, 1)

    def episodes(centre, spread):
        obs = rng.normal(centre, spread, (30, 101, 2))
        return Trajectories(obs, rng.uniform(-1, 1, (30, 100, 1)), reward=rng.normal(size=(30, 100)))

    replay.extend(episodes(0.0, 1.0))
    sac.update(replay, 2)
    before = sac.obs_features.late_centre.clone()
    assert before.abs().max() < 0.1
    replay.extend(episodes(3.0, 0.1))
    sac.update(replay, 2)
    # A twentieth of the way from 0 to 3: the latest 2000 observations are all of the new episodes.
    assert_close(sac.obs_features.late_centre - before, torch.full((2,), 0.15), rtol=0, atol=0.01)
