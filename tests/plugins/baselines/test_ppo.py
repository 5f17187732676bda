"""RNN-PPO and RecurrentPPO through our loop: the same numbers as sb3-contrib's own loop, and the belief head."""

from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from sb3_contrib import RecurrentPPO
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
from sb3_contrib.common.recurrent.type_aliases import RNNStates

from mbrl_hdp.errors import ConfigError
from mbrl_hdp.testing import check_agent, check_baseline
from mbrl_hdp_baselines.policies import SequencePolicy
from mbrl_hdp_baselines.ppo import BeliefPpo, RecurrentPpo
from mbrl_hdp_baselines.settings import PpoConfig, RnnPpoConfig
from mbrl_hdp_baselines.single_step import StepPolicy

TINY = {"n_steps": 12, "batch_size": 6, "n_epochs": 2, "lstm_hidden_size": 4, "hidden_sizes": [5], "reward_scale": 1.0}
WORDS = ["env=cartpole_hard", "env.kwargs.horizon=7", "agent.n_steps=16", "agent.batch_size=8", "agent.n_epochs=2",
         "agent.lstm_hidden_size=4", "agent.hidden_sizes=[5]"]  # fmt: skip


class Line(gymnasium.Env):
    """Move along a line; the first episodes end by time (5 steps), the third by itself (3 steps), and so on."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    episode = -1

    def reset(self, seed=None, options=None):
        self.episode, self.time, self.place = self.episode + 1, 0, 0.1 * (self.episode + 1)
        return self.obs(), {}

    def obs(self):
        return np.array([self.place, 0.2 * self.time], dtype=np.float32)

    def step(self, act):
        self.time, self.place = self.time + 1, self.place + float(act[0])
        ends = self.episode % 3 == 2 and self.time == 3
        return self.obs(), -abs(self.place), ends, self.time == 5, {}


def play(agent, env, num_steps):
    """Call an agent as the loop does, for whole episodes, until some steps were taken."""
    taken = 0
    while taken < num_steps:
        obs, _ = env.reset()
        agent.reset()
        is_over = False
        while not is_over:
            act = agent.act(obs, explore=True)
            next_obs, reward, terminated, truncated, _ = env.step(act.astype(np.float32))
            agent.observe(obs, act, reward, next_obs, terminated)
            obs, is_over, taken = next_obs, terminated or truncated, taken + 1
        agent.end_episode()
    return taken


def test_updates_are_those_of_sb3_contribs_own_loop(task_of):
    """36 steps, three updates: time limits, an end in the middle of a rollout and rollouts that cut episodes."""
    agent = RecurrentPpo(PpoConfig(**TINY), task_of(obs_dim=2))
    agent.normaliser.add = lambda vector: None
    first = {name: value.clone() for name, value in agent.policy.state_dict().items()}
    settings = {"lstm_hidden_size": 4, "net_arch": {"pi": [5], "vf": [5]}, "log_std_init": 0.0}
    own = RecurrentPPO(SequencePolicy, Line(), learning_rate=1e-3, n_steps=12, batch_size=6, n_epochs=2, gamma=0.98,
                       policy_kwargs=settings, device="cpu")  # fmt: skip
    own.policy.load_state_dict(first)
    torch.manual_seed(3)
    np.random.seed(4)
    own.learn(36)
    torch.manual_seed(3)
    agent._stream.set_state(torch.random.get_rng_state())
    np.random.seed(4)
    play(agent, Line(), 36)
    agent.act(np.zeros(2), explore=True)  # the update of step 36 is taken before the next action
    assert agent.ppo._n_updates == own._n_updates == 6
    for name, value in own.policy.state_dict().items():
        torch.testing.assert_close(agent.policy.state_dict()[name], value, rtol=1e-5, atol=1e-6, msg=name)
        assert not torch.equal(value, first[name]) or "bias" in name, name


def test_whole_sequences_are_what_step_by_step_is():
    lstm, generator = torch.nn.LSTM(3, 4), torch.Generator().manual_seed(0)
    features = torch.randn(2 * 5, 3, generator=generator)
    states = tuple(torch.randn(1, 2, 4, generator=generator) for _ in range(2))
    starts = torch.zeros(2, 5)
    starts[1, 0] = 1.0
    ours = SequencePolicy._process_sequence(features, states, starts.flatten(), lstm)
    theirs = RecurrentActorCriticPolicy._process_sequence(features, states, starts.flatten(), lstm)
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("decoder", [None, "softmax", "linear", "none"])
def test_one_step_in_numpy_is_the_policy_also_after_its_weights_have_changed(task_of, decoder):
    agent = RecurrentPpo(PpoConfig(**TINY), task_of()) if decoder is None else belief_agent(task_of, decoder=decoder)
    policy, generator = agent.policy, torch.Generator().manual_seed(0)
    one_step = StepPolicy(policy)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.5 * torch.randn(parameter.shape, generator=generator))
    seen = torch.randn(policy.observation_space.shape[0], generator=generator)
    states = RNNStates(*(tuple(torch.randn(1, 1, 4, generator=generator) for _ in range(2)) for _ in range(2)))
    acts, value, log_prob, after = policy(seen[None], states, torch.zeros(1), deterministic=True)
    before = (tuple(part.flatten().numpy() for part in state) for state in states)
    found = one_step(seen.numpy(), *before)
    near = partial(np.testing.assert_allclose, rtol=2e-5, atol=1e-6)
    near(found.mean, acts.detach().numpy()[0])
    near(found.value, value.item())
    near(found.log_prob(found.mean), log_prob.item())
    near(found.actor, torch.cat(after.pi).detach().numpy()[:, 0])
    near(found.critic, torch.cat(after.vf).detach().numpy()[:, 0])
    other = policy.evaluate_actions(seen[None], acts + 0.3, states, torch.zeros(1))[1]
    near(found.log_prob(found.mean + np.float32(0.3)), other.item())


def belief_agent(task_of, **named):
    return BeliefPpo(RnnPpoConfig(**{**TINY, **named}), task_of(obs_dim=3, angle_columns=(1,)))


def test_the_belief_is_a_softmax_of_the_memory_of_the_previous_observation_and_action(task_of):
    agent = belief_agent(task_of, num_contexts=3)
    agent.normaliser.add = lambda vector: None
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(2, 3))
    policy, beliefs = agent.policy, []
    act = agent.act(first)
    agent.act(second)
    memory = None
    before = np.array([first[0], first[2], np.cos(first[1]), np.sin(first[1]), act[0]])
    for seen in (np.zeros(5), before):
        hidden, memory = policy.lstm_actor(torch.tensor(seen, dtype=torch.float32)[None, None], memory)
        logits = hidden[0, 0] @ policy.belief_head.weight.T
        beliefs.append((logits.exp() / logits.exp().sum()).detach().numpy())
    np.testing.assert_allclose(np.array(agent._beliefs), beliefs, rtol=1e-5)
    assert agent.context_labels().tolist() == np.argmax(beliefs, 1).tolist()


def test_the_gradient_reaches_the_belief_head(task_of):
    """The gradient of the value and of the log probability in W is that of finite differences, and not zero."""
    policy = belief_agent(task_of, num_contexts=2).policy.double()
    policy.extract_features = lambda obs: obs  # Stable-Baselines3 casts to single precision here
    generator = torch.Generator().manual_seed(1)
    obs = torch.randn(4, 9, generator=generator, dtype=torch.float64)
    acts = torch.randn(4, 1, generator=generator, dtype=torch.float64)
    states = tuple(torch.randn(1, 1, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    weight = policy.belief_head.weight
    torch.nn.init.normal_(weight, generator=generator)

    def output(which):
        return policy.evaluate_actions(obs, acts, RNNStates(states, states), torch.zeros(4))[which].sum()

    for which in (0, 1):
        (found,) = torch.autograd.grad(output(which), weight)
        step = torch.zeros_like(weight)
        step[1, 2] = 1e-5
        with torch.no_grad():
            weight += step
            above = output(which)
            weight -= 2 * step
            below = output(which)
            weight += step
        assert float(found[1, 2]) == pytest.approx(float(above - below) / 2e-5, rel=1e-4)
        assert abs(float(found[1, 2])) > 1e-6
        assert torch.autograd.grad(output(which), policy.lstm_actor.weight_ih_l0)[0].abs().max() > 0


def test_the_number_of_contexts_comes_from_the_environment_or_the_settings(task_of):
    assert BeliefPpo(RnnPpoConfig(**TINY), task_of(num_contexts=4)).policy.belief_head.weight.shape == (4, 4)
    with pytest.raises(ConfigError, match=r"agent\.num_contexts"):
        BeliefPpo(RnnPpoConfig(**TINY), task_of(num_contexts=None))


@pytest.mark.parametrize("decoder", ["linear", "none"])
def test_without_a_belief_the_policy_sees_what_is_read_of_the_memory(task_of, decoder):
    agent = belief_agent(task_of, num_contexts=3, decoder=decoder)
    obs, states, starts = torch.rand(2, 9), (torch.rand(1, 2, 4), torch.rand(1, 2, 4)), torch.zeros(2)
    read, (hidden, _) = agent.policy.belief(obs, states, starts)
    wanted = hidden[0] if decoder == "none" else hidden[0] @ agent.policy.belief_head.weight.T
    torch.testing.assert_close(read, wanted)
    agent.act(np.zeros(3))
    assert agent.context_labels() is None
    assert "beliefs" not in agent.state_dict()
    agent.load_state_dict(agent.state_dict())


def test_the_other_decoders_conform(task_of):
    for decoder in ("linear", "none"):
        build = partial(BeliefPpo, RnnPpoConfig(**TINY, decoder=decoder))
        check_baseline(lambda build=build: build(task_of()), obs_dim=4, act_dim=1)


@pytest.mark.parametrize(("build", "config"), [(RecurrentPpo, PpoConfig), (BeliefPpo, RnnPpoConfig)])
def test_conforms(task_of, build, config):
    check_baseline(lambda: build(config(**TINY), task_of()), obs_dim=4, act_dim=1)


@pytest.mark.parametrize("name", ["rnn_ppo", "rnn_ppo_plain"])
def test_a_resumed_run_is_the_same_run(name):
    check_agent(name, WORDS)
