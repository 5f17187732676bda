"""What an environment, a filter or a reward of a user's returns is checked in the step it appears."""

import gymnasium
import numpy as np
import pytest
import torch

from mbrl_hdp.belief.codec import BeliefCodec
from mbrl_hdp.errors import ConfigError, StepError
from mbrl_hdp.experiments.checked_env import CheckedEnv
from mbrl_hdp.experiments.episodes import run_episode
from mbrl_hdp.experiments.user_code import watched

OBS, ACT = np.array([0.5, -0.5]), np.array([0.1])


class Answers(gymnasium.Env):
    """An environment that returns what it is asked to; `taken` counts the steps that reach it."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float64)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float64)

    def __init__(self, first=(OBS, {}), later=(OBS, 0.25, False, False, {})):
        self.first, self.later, self.taken = first, later, 0

    def reset(self, *, seed=None, options=None):
        return self._answer(self.first)

    def step(self, action):
        self.taken += 1
        return self._answer(self.later)

    def _answer(self, found):
        if isinstance(found, Exception):
            raise found
        return found


def step(obs=OBS, reward=0.25, terminated=False, truncated=False, info=None, act=ACT):
    answer = (obs, reward, terminated, truncated, {} if info is None else info)
    return CheckedEnv(Answers(later=answer), "Mine-v0").step(act)


BAD_OBS = [
    (np.array([np.nan, 0.0]), "is nan in column 0; it must be finite"),
    (np.array([0.0, -np.inf]), "is -inf in column 1; it must be finite"),
    (np.zeros(3), r"has shape \[3\]; \[2\] is needed"),
    (np.zeros((1, 2)), r"has shape \[1, 2\]; \[2\] is needed"),
    (0.0, r"has shape \[\]; \[2\] is needed"),
    ([[1.0], [1.0, 2.0]], r"is ragged; shape \[2\] is needed"),
    ("much", "is str 'much'; an array of numbers is needed"),
    (None, "is NoneType 'None'; an array of numbers is needed"),
    (np.array(["a", "b"]), r"is an array of <U1 of shape \[2\]; an array of numbers is needed"),
]


@pytest.mark.parametrize(("obs", "words"), BAD_OBS)
def test_observations_that_cannot_be_used_are_named(obs, words):
    with pytest.raises(StepError, match=f"^the environment's observation {words}$"):
        step(obs)
    with pytest.raises(StepError, match=f"^the environment's observation {words}$"):
        CheckedEnv(Answers(first=(obs, {})), "Mine-v0").reset()


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (np.array([np.nan]), "is nan in column 0; it must be finite"),
        (np.array([np.inf]), "is inf in column 0; it must be finite"),
        (np.zeros(2), r"has shape \[2\]; \[1\] is needed"),
    ],
)
def test_an_action_that_cannot_be_used_does_not_reach_the_environment(act, words):
    env = Answers()
    with pytest.raises(StepError, match=f"^the agent's action {words}$"):
        CheckedEnv(env, "Mine-v0").step(act)
    assert env.taken == 0


@pytest.mark.parametrize(
    ("reward", "words"),
    [
        (float("nan"), "is nan; it must be finite"),
        (np.float32("inf"), "is inf; it must be finite"),
        ("1.0", "is str '1.0'; one number is needed"),
        (None, "is NoneType 'None'; one number is needed"),
        (np.zeros(2), r"is an array of float64 of shape \[2\]; one number is needed"),
        (1.0j, r"is complex '1j'; one number is needed"),
    ],
)
def test_rewards_that_cannot_be_used_are_named(reward, words):
    with pytest.raises(StepError, match=f"^the environment's reward {words}$"):
        step(reward=reward)


@pytest.mark.parametrize("reward", [2, 2.0, np.float32(2), np.array([2.0]), np.array([[2]])])
def test_rewards_of_any_kind_of_number_become_floats(reward):
    found = step(reward=reward)[1]
    assert (type(found), found) == (float, 2.0)


def test_flags_and_info():
    for flag in (True, np.True_, 1, np.int64(1)):
        assert step(terminated=flag)[2:4] == (True, False)
        assert step(truncated=flag)[2:4] == (False, True)
    for flag in ("no", 0.5, None):
        with pytest.raises(StepError, match=r"^the environment's terminated is .*; True or False is needed$"):
            step(terminated=flag)
        with pytest.raises(StepError, match=r"^the environment's truncated is .*; True or False is needed$"):
            step(truncated=flag)
    with pytest.raises(StepError, match=r"^the environment's info is list '\[\]'; a dict is needed$"):
        step(info=[])


def test_what_is_not_an_answer_at_all_is_named():
    for first in (OBS, (OBS,), None):
        with pytest.raises(StepError, match=r"^reset\(\) of the environment returned .*, not \(observation, info\)$"):
            CheckedEnv(Answers(first=first), "Mine-v0").reset()
    for later in ((OBS, 0.0, False, {}), None):
        with pytest.raises(StepError, match=r"^step\(\) of the environment returned .*, not \(obs, reward, term"):
            CheckedEnv(Answers(later=later), "Mine-v0").step(ACT)


def test_exceptions_of_an_environment_are_shown_as_its_own():
    env = CheckedEnv(Answers(ZeroDivisionError("theirs"), ZeroDivisionError("theirs")), "Mine-v0")
    for method, call in (("reset", env.reset), ("step", lambda: env.step(ACT))):
        with pytest.raises(StepError, match=rf"^{method}\(\) of the environment Mine-v0 failed: ZeroDivisionError: th"):
            call()
    ours = CheckedEnv(Answers(ConfigError("ours"), ConfigError("ours")), "Mine-v0")
    for call in (ours.reset, lambda: ours.step(ACT)):
        with pytest.raises(ConfigError, match=r"^ours$"):
            call()


class Tracker:
    """A filter whose belief is NaN after so many steps."""

    codec = BeliefCodec(2, 1)

    def __init__(self, good_steps):
        self.good_steps = good_steps

    def reset(self, obs, info):
        return self.update(None, obs, info)

    def update(self, act, obs, info):
        self.good_steps -= 1
        return self.codec.pack(obs, np.array([1.0 if self.good_steps >= 0 else np.nan]))


@pytest.mark.parametrize("good_steps", [0, 1, 4])
def test_a_belief_that_is_not_finite_ends_the_episode_in_that_step(good_steps):
    seen = []
    wanted = rf"^step {max(good_steps - 1, 0)}: observation and belief .* hold nan in column 2"
    with pytest.raises(StepError, match=wanted):
        run_episode(CheckedEnv(Answers(), "Mine-v0"), lambda packed: seen.append(packed) or ACT, Tracker(good_steps), 0)
    assert len(seen) == good_steps
    assert np.isfinite(seen).all()


class TestWatchedReward:
    ACT, NEXT = torch.zeros(3, 1), torch.tensor([[1.0], [2.0], [1e7]])

    def call(self, function):
        return watched("env.reward", function)(self.ACT, self.NEXT)

    def test_good_rewards_pass(self):
        assert torch.equal(self.call(lambda _, next_obs: next_obs + 1), self.NEXT + 1)

    @pytest.mark.parametrize("value", [float("nan"), float("inf")])
    def test_what_is_not_finite_for_an_ordinary_step_is_named(self, value):
        with pytest.raises(
            StepError, match=rf"^env\.reward returns {value} for act \[0\.0\] and next_obs \[2\.0\], which"
        ):
            self.call(lambda _, next_obs: torch.where(next_obs == 2.0, value, next_obs))
        overflown = self.call(lambda _, next_obs: torch.where(next_obs > 1e6, value, next_obs))
        assert overflown.isfinite().tolist() == [[True], [True], [False]]  # a plan may imagine any state

    def test_wrong_shapes_and_exceptions_are_named(self):
        with pytest.raises(StepError, match=r"^env\.reward returns \[3\]; \[3, 1\] is needed$"):
            self.call(lambda _, next_obs: next_obs[:, 0])
        with pytest.raises(StepError, match=r"^env\.reward returns a float; \[3, 1\] is needed$"):
            self.call(lambda *_: 1.0)
        with pytest.raises(StepError, match=r"^env\.reward failed: ZeroDivisionError: "):
            self.call(lambda *_: 1 // 0)
