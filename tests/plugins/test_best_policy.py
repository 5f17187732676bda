"""`agent.best_of_episodes`: the policy with the best training episodes acts in evaluations and is exported."""

import gymnasium
import numpy as np
import pytest

from mbrl_hdp.control.agent import AgentTask, Epoch
from mbrl_hdp.control.saving import load_policy
from mbrl_hdp.control.state import pack_state, unpack_state
from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.errors import DataError
from mbrl_hdp_agents.sac import SacAgent
from mbrl_hdp_agents.settings import SacAgentConfig

TASK = AgentTask(
    max_contexts=3, obs_dim=2, act_dim=1, dt=None, seed=0, name="made up", angle_columns=(), appended_dim=0,
    action_space=gymnasium.spaces.Box(-1.0, 1.0, (1,)), total_updates=1000, reward_fn=None,
    termination_fn=lambda act, obs: obs[:, :1] > np.inf, planner=None,
)  # fmt: skip
SEEN = np.array([0.3, -0.2])


def make_agent(best_of=2):
    config = SacAgentConfig(
        hidden_sizes=[8], batch_size=16, policy_lr=0.05, averaged_updates=2, magnify_obs=True, best_of_episodes=best_of
    )
    return SacAgent(config, TASK)


def played(returns, seed=0, steps=5):
    """Episodes of such returns; the second half of the last one is padding that counts for nothing."""
    rng = np.random.default_rng(seed)
    reward = np.repeat(np.asarray(returns, float)[:, None] / steps, steps, 1)
    return Trajectories(
        rng.normal(size=(len(returns), steps + 1, 2)), rng.uniform(-1, 1, (len(returns), steps, 1)), reward=reward
    )


def learn(agent, value, seed=0):
    agent.learn(Epoch(played([value], seed), None, None, False, 10))


def test_the_policy_of_the_best_episodes_in_a_row_acts_in_evaluations():
    agent, actions = make_agent(), []
    for seed, value in enumerate(
        [100.0, 1.0, 5.0, 6.0, 30.0, -40.0, 2.0]
    ):  # the first episode is random: it does not count
        actions.append(agent.sac.select_action(SEEN, evaluate=True))
        learn(agent, value, seed=seed)
    # pairs of episodes: (1, 5), (5, 6), (6, 30) is best, (30, -40), (-40, 2); the policy that played the 30 is kept
    assert agent.best.mean_return == pytest.approx(18.0)
    np.testing.assert_allclose(agent.act(SEEN, explore=False), actions[4])
    assert np.abs(agent.act(SEEN, explore=False) - agent.sac.select_action(SEEN, evaluate=True)).max() > 1e-4


def test_without_it_and_before_enough_episodes_the_latest_policy_acts():
    plain, early = make_agent(None), make_agent(2)
    assert plain.best is None
    assert plain.calm is plain.sac
    for value in (3.0, 4.0):
        learn(early, value)
    assert early.calm is early.sac  # one episode of the policy's own
    learn(early, 5.0)
    assert early.calm is not early.sac


def test_padding_does_not_count():
    agent = make_agent(1)
    data = played([1.0, 2.0])
    data = Trajectories(data.obs, data.act, lengths=np.array([5, 2]), reward=data.reward)
    agent.best.see(data, agent.sac, [])
    assert agent.best.mean_return == pytest.approx(0.8)


def test_episodes_without_rewards_are_refused():
    agent, data = make_agent(1), played([1.0])
    with pytest.raises(DataError, match="best_of_episodes needs episodes with rewards"):
        agent.best.see(Trajectories(data.obs, data.act), agent.sac, [])


def test_it_is_forgotten_when_the_contexts_change():
    agent = make_agent(2)
    for value, contexts in ((50.0, []), (50.0, []), (60.0, [0, 2]), (2.0, [0, 2])):
        agent.best.see(played([value]), agent.sac, contexts)
    assert agent.best.policy is None  # one episode since
    agent.best.see(played([4.0]), agent.sac, [0, 2])
    assert agent.best.mean_return == pytest.approx(3.0)


def test_a_resumed_mean_goes_on_where_it_was():
    agent, again = make_agent(2), make_agent(2)
    for value in (0.0, 1.0, 2.0, 10.0):
        agent.best.see(played([value]), agent.sac, [0, 2])
    again.best.load_state_dict(unpack_state(pack_state(agent.best.state_dict())))
    again.best.see(played([20.0]), again.sac, [0, 2])
    assert again.best.mean_return == pytest.approx(15.0)  # of 10 and 20; nothing was forgotten


def test_a_resumed_agent_and_an_exported_policy_act_the_same(tmp_path):
    agent = make_agent(2)
    for seed, value in enumerate([0.0, 7.0, 8.0, 3.0]):
        learn(agent, value, seed=seed)
    again = make_agent(2)
    data = Trajectories.concatenate([played([value], seed) for seed, value in enumerate([0.0, 7.0, 8.0, 3.0])])
    again.load_state_dict(unpack_state(pack_state(agent.state_dict())), data, None)
    for each in (agent, again):
        learn(each, 6.0, seed=9)
        assert each.best.mean_return == pytest.approx(7.5)
    np.testing.assert_array_equal(agent.act(SEEN, explore=False), again.act(SEEN, explore=False))
    agent.export(tmp_path, None)
    np.testing.assert_array_equal(load_policy(tmp_path).select_action(SEEN, evaluate=True), agent.act(SEEN, False))
