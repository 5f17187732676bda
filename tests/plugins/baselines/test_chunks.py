"""DNNMM and ANPMM: the rule of chunks by hand, models that learn, the same run when resumed."""

import numpy as np
import pytest
import torch

from mbrl_hdp.control.agent import Epoch
from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.errors import ConfigError
from mbrl_hdp.testing import check_agent
from mbrl_hdp_baselines.anpmm import Anpmm, AttentiveProcess
from mbrl_hdp_baselines.dnnmm import Dnnmm, GaussianNetwork
from mbrl_hdp_baselines.settings import AnpmmConfig, DnnmmConfig

DNN = {"hidden_size": 64, "num_epochs": 60, "patience": 60, "batch_size": 10, "lr": 1e-2, "chunk": 20}
ANP = {"hidden_size": 16, "num_heads": 4, "latent_size": 4, "pretrain_steps": 60, "refit_steps": 20, "tasks": 4,
       "lr": 5e-3, "chunk": 20}  # fmt: skip
WORDS = ["env=cartpole_hard", "env.kwargs.horizon=8", "planner.horizon=2", "planner.population_size=8",
         "planner.num_elites=2", "planner.num_iterations=2", "agent.chunk=5", "agent.hidden_size=8"]  # fmt: skip


def episodes(num, sign, seed=0, length=20):
    """A point that moves by the action, or against it."""
    rng = np.random.default_rng(seed)
    act = rng.uniform(-1, 1, (num, length, 1))
    obs = np.zeros((num, length + 1, 1))
    signs = sign if np.ndim(sign) else [sign] * num
    for number in range(num):
        for t in range(length):
            obs[number, t + 1] = 0.8 * obs[number, t] + 0.5 * signs[number] * act[number, t]
    return Trajectories(obs, act)


def pretrained(build, config, task_of):
    agent = build(config, task_of(obs_dim=1))
    agent.learn(Epoch(episodes(8, [1, -1] * 4), None, None, False, 0))
    return agent


def show(agent, data):
    for obs, act in zip(data.obs, data.act, strict=True):
        agent.begin_episode()
        for t in range(len(act)):
            agent.observe(obs[t], act[t], 0.0, obs[t + 1], False)


def test_the_rule_by_hand(task_of):
    """log n_k + log likelihood; chunk (0, 0): sizes 3 and 30, the prior's weight 0.1."""
    agent = Dnnmm(DnnmmConfig(**DNN), task_of(obs_dim=1))

    class Fixed:
        def __init__(self, num, score):
            self.inputs, self.score = torch.zeros(num, 2), score

        def log_likelihood(self, inputs, targets):
            return self.score

    chunk = torch.zeros(2, 2), torch.zeros(2, 1)
    for scores, prior, expected in (((0.0, -2.0), -9.0, 1), ((0.0, -2.5), -9.0, 0), ((0.0, -2.0), 3.8, 2),
                                    ((float("nan"), -50.0), -90.0, 1)):  # fmt: skip
        agent.components = [Fixed(3, scores[0]), Fixed(30, scores[1])]  # log 30 - log 3 = 2.30
        agent.prior = Fixed(1, prior)  # log 0.1 + 3.8 = 1.50 > log 30 - 2 = 1.40
        assert agent.choose(*chunk, is_new_allowed=True) == expected
    assert agent.choose(*chunk, is_new_allowed=False) == 1


@pytest.mark.parametrize("make", [lambda: GaussianNetwork(2, 1, DnnmmConfig(**DNN)),
                                  lambda: AttentiveProcess(2, 1, AnpmmConfig(**ANP))])  # fmt: skip
def test_the_likelihood_is_in_the_units_of_the_data(make):
    """The same model of targets ten times as large has a density ten times as small."""
    torch.manual_seed(0)
    model = make()
    inputs, targets = torch.randn(30, 2), torch.randn(30, 1) * 2.0 + 1.0
    model.keep(inputs, targets)
    found = []
    for factor in (1.0, 10.0):
        model.standardise(inputs, factor * targets)
        model.targets = factor * targets
        model._encoded = None
        found.append(model.log_likelihood(inputs[:5], factor * targets[:5]))
        assert model.predict_mean(inputs[:5]).shape == (5, 1)
    assert found[0] - found[1] == pytest.approx(5 * np.log(10.0), rel=1e-4)


@pytest.mark.parametrize(("build", "config"), [(Dnnmm, DnnmmConfig(**DNN)), (Anpmm, AnpmmConfig(**ANP))])
class TestMixture:
    def test_pre_training_pools_both_contexts_and_components_tell_them_apart(self, build, config, task_of):
        agent = pretrained(build, config, task_of)
        assert agent.is_ready
        assert len(agent.prior.inputs) == 160
        show(agent, episodes(3, 1.0, seed=5))
        show(agent, episodes(3, -1.0, seed=6))
        sizes = sorted(len(component.inputs) for component in agent.components)
        assert sum(sizes) == 120
        signs = [float(c.predict_mean(torch.tensor([[0.0, 1.0]]))[0, 0]) for c in agent.components]
        assert max(signs) > 0.2
        assert min(signs) < -0.2

    def test_evaluations_label_chunks_and_learn_nothing(self, build, config, task_of):
        agent = pretrained(build, config, task_of)
        show(agent, episodes(2, 1.0, seed=5))
        show(agent, episodes(2, -1.0, seed=6))
        before = {name: np.array(value) for name, value in agent.state_dict().items()}
        labels = []
        for data in (episodes(1, 1.0, seed=8), episodes(1, -1.0, seed=9)):
            agent.begin_episode()
            for t in range(20):
                agent.watch(data.obs[0, t], data.act[0, t], data.obs[0, t + 1])
            assert len(set(agent.context_labels())) == 1
            labels.append(agent.context_labels()[0])
        assert labels[0] != labels[1]
        for name, value in agent.state_dict().items():
            assert np.array_equal(np.array(value), before[name]), name


@pytest.mark.parametrize(("name", "more"), [
    ("dnnmm", ["agent.num_epochs=3"]),
    ("anpmm", ["agent.num_heads=2", "agent.pretrain_steps=3", "agent.refit_steps=2", "agent.tasks=2"]),
])  # fmt: skip
def test_a_resumed_run_is_the_same_run(name, more):
    check_agent(name, [*WORDS, *more])


def test_heads_must_divide_the_width(task_of):
    with pytest.raises(ConfigError, match=r"agent\.num_heads=3 must divide half of agent\.hidden_size=16"):
        Anpmm(AnpmmConfig(**{**ANP, "num_heads": 3}), task_of())
