"""The whole search on systems whose contexts are known; small ones, so that it takes seconds."""

import numpy as np
import pytest

from mbrl_hdp import Trajectories
from mbrl_hdp.envs.systems import simulate
from mbrl_hdp.inference.scoring import align
from mbrl_hdp.inference.search import find_contexts


def data_of(name, variant="plain", num_episodes=100):
    rollouts = simulate(name, variant, seed=11, num_episodes=num_episodes)
    return Trajectories(obs=rollouts.obs, act=rollouts.act), rollouts.context


@pytest.mark.parametrize(("name", "count"), [("pendulum", 2), ("lotka_volterra", 2)])
def test_hidden_contexts_are_counted_and_labelled(name, count):
    data, truth = data_of(name, num_episodes=40)
    found = find_contexts(data)
    assert found.num_contexts == count
    assert align(found.labels, truth).accuracy > 0.98
    assert found.regions.max() < 0.1
    np.testing.assert_allclose(found.transition.sum(1), 1.0)


@pytest.mark.parametrize("variant", ["still", "still_process", "still_observation"])
def test_a_nonlinear_oscillator_that_never_switches_has_one_context(variant):
    data, _ = data_of("van_der_pol", variant, num_episodes=40)
    assert find_contexts(data).num_contexts == 1
