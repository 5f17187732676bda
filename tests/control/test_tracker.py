"""One slot, three fillings; only the full-information one reads what the environment tells."""

import numpy as np
import pytest

from mbrl_hdp.control.tracker import BeliefAgent, BeliefTracker, NothingTracker, TruthTracker
from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.errors import DataError

OBS = np.array([[0.4, -0.6], [0.2, 0.1], [0.5, -0.3], [0.1, 0.0]])
ACT = np.array([[0.9], [-0.5], [0.3]])


class Sealed(dict):
    """An info that must not be read; empty, so that the shape checks have nothing to look at."""

    def __getitem__(self, key):
        raise AssertionError(f"a learner read info[{key!r}]")

    def get(self, key, default=None):
        raise AssertionError(f"a learner read info[{key!r}]")

    def __contains__(self, key):
        raise AssertionError(f"a learner asked for info[{key!r}]")


def follow(tracker, info):
    packed = [tracker.reset(OBS[0], info)]
    for act, next_obs in zip(ACT, OBS[1:], strict=True):
        packed.append(tracker.update(act, next_obs, info))
        np.testing.assert_array_equal(tracker.packed(), packed[-1])
    return np.stack(packed)


def test_the_belief_is_predictive_and_in_its_slots(affine_model):
    model = affine_model()
    packed = follow(BeliefTracker(model), Sealed())
    np.testing.assert_array_equal(packed[:, :2], OBS)
    expected = model.analyse(Trajectories(OBS[None], ACT[None])).predictive_belief[0]
    np.testing.assert_allclose(packed[:3][:, [3, 5]], expected, rtol=1e-5, atol=1e-7)
    assert (packed[:, [2, 4]] == 0).all()
    np.testing.assert_allclose(packed[:, 2:].sum(-1), 1.0)


def test_the_belief_follows_a_new_model_from_the_next_episode(affine_model):
    tracker = BeliefTracker(affine_model())
    tracker.set_model(affine_model(initial=(0.1, 0.9), slots=(0, 2)))
    np.testing.assert_allclose(tracker.reset(OBS[0])[2:], [0.1, 0.0, 0.9, 0.0], rtol=1e-6)


def test_the_truth_is_the_context_that_acts_next():
    tracker = TruthTracker(obs_dim=2, num_contexts=3)
    np.testing.assert_array_equal(tracker.reset(OBS[0], {"next_context": 2}), [0.4, -0.6, 0.0, 0.0, 1.0])
    packed = tracker.update(ACT[0], OBS[1], {"context": 2, "next_context": 0})
    np.testing.assert_array_equal(packed, [0.2, 0.1, 1.0, 0.0, 0.0])
    with pytest.raises(DataError, match="next_context"):
        tracker.update(ACT[0], OBS[1], {"context": 2})


def test_nothing_is_the_observation_alone():
    np.testing.assert_array_equal(follow(NothingTracker(obs_dim=2), Sealed()), OBS)


def test_a_tracker_must_be_reset_first(affine_model):
    with pytest.raises(DataError, match="reset"):
        BeliefTracker(affine_model()).packed()


def test_the_seal_sees_a_reader():
    with pytest.raises(AssertionError, match="asked for info"):
        TruthTracker(2, 2).reset(OBS[0], Sealed())


class Echo:
    """Returns the actions of the episode and remembers what it was shown."""

    def __init__(self):
        self.num_resets = 0

    def reset(self):
        self.num_resets += 1
        self.seen, self.acts = [], list(ACT)

    def act(self, obs):
        self.seen.append(obs)
        return self.acts.pop(0)


def test_an_agent_for_plain_observations_keeps_the_belief(affine_model):
    model, echo = affine_model(), Echo()
    agent = BeliefAgent(echo, BeliefTracker(model))
    for episode in range(2):
        agent.reset()
        acts = [agent.act(obs) for obs in OBS[:3]]
        np.testing.assert_array_equal(acts, ACT)
        np.testing.assert_array_equal(echo.seen, follow(BeliefTracker(model), None)[:3])
        assert echo.num_resets == episode + 1
