"""Winds from several sides: noise with memory follows them better than two contexts do, but not better than all."""

import numpy as np
import pytest

from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.envs.systems.system import System, box_start
from mbrl_hdp.inference.search import find_contexts


def drift(state, act, wind):
    air = state[2:] - wind
    drag = -0.3 * air * np.sqrt((air**2).sum(0) + 1e-6)
    return np.concatenate([state[2:], drag + 2.0 * act])


def five_winds(seed):
    winds = np.random.default_rng([7, 5, seed]).normal(0.0, 2.5, (5, 2))
    system = System("windy5", drift, winds, box_start([-1] * 4, [1] * 4), act_dim=2, dt=0.1)
    return system.simulate(100, 100, seed)


def changing_wind(seed, tau, strength=1.0, dt=0.1, num_episodes=100, num_steps=60):
    """One wind that changes all the time (Ornstein-Uhlenbeck, correlation time `tau`): there are no contexts."""
    rng = np.random.default_rng(seed)
    state, wind = rng.uniform(-1, 1, (4, num_episodes)), rng.normal(0, strength, (2, num_episodes))
    obs, act, keep = [state.T], [], np.exp(-dt / tau)
    for _ in range(num_steps):
        act.append(rng.uniform(-1, 1, (2, num_episodes)))
        for _ in range(4):
            state = state + dt / 4 * drift(state, act[-1], wind)
        wind = keep * wind + strength * np.sqrt(1 - keep**2) * rng.normal(size=wind.shape)
        obs.append(state.T)
    return Trajectories(obs=np.stack(obs, 1), act=np.stack([a.T for a in act], 1))


def test_where_one_more_context_is_not_enough_several_are_tried():
    rollouts = five_winds(1)
    # Three of the five are enough to see: the rest is ordinary divisions.
    found = find_contexts(Trajectories(obs=rollouts.obs, act=rollouts.act), max_contexts=3)
    assert not found.history[0].is_accepted  # two contexts alone are not
    assert found.history[1].is_accepted
    assert found.num_contexts == 3


@pytest.mark.parametrize("tau", [1.0, 10.0])
def test_a_wind_that_changes_all_the_time_has_no_contexts(tau):
    found = find_contexts(changing_wind(0, tau), max_contexts=4)
    assert found.num_contexts == 1
    assert len(found.history) > 2  # several at once were tried
    assert not any(verdict.is_accepted for verdict in found.history)
