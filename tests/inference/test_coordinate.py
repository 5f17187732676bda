"""Training without gradients: the optimum it finds is one, and it finds the contexts of a toy world."""

import numpy as np
import pytest
import torch

import mbrl_hdp
from mbrl_hdp.hooks import load_registry
from mbrl_hdp.inference.coordinate import CoordinateTrainer
from mbrl_hdp.inference.elbo import step_log_lik
from mbrl_hdp.inference.episodes import EpisodeTensors
from mbrl_hdp.inference.schedule import TEMPERED, FitConfig
from mbrl_hdp.inference.scoring import align, empirical_transition
from mbrl_hdp.types import TaskSpec
from tests.inference.test_fit import weak_prior, world


@pytest.fixture(scope="module")
def data():
    return world(80, 0)


def build(name, **settings):
    registry = load_registry()
    return registry.build_dynamics(name, TaskSpec(2, 2, 1), registry.get("dynamics", name).spec.config(**settings))


@pytest.mark.parametrize("noise", ["diagonal", "full"])
def test_linear_heads_are_where_gradients_would_end(data, noise):
    """No slope is left in log density + log prior, by weights, biases or noise."""
    rng = np.random.default_rng(0)
    obs, act, next_obs = (torch.as_tensor(each, dtype=torch.float32) for each in data.transitions())
    if noise == "full":  # correlated
        next_obs = next_obs + 0.05 * torch.as_tensor(rng.normal(size=(len(obs), 1)), dtype=torch.float32)
    dynamics = build("linear", noise=noise).double()
    obs, act, next_obs = obs.double(), act.double(), next_obs.double()
    dynamics.set_normaliser(obs, act, next_obs)
    share = torch.as_tensor(rng.dirichlet([0.5, 0.5], len(obs)))
    dynamics.fit_heads(obs, act, next_obs, share)
    parameters = list(dynamics.parameters())
    value = ((dynamics.log_prob(obs, act, next_obs) * share).sum() + dynamics.log_prior()) / len(obs)
    for slope in torch.autograd.grad(value, parameters):
        assert float(slope.abs().max()) < 1e-3
    with torch.no_grad():  # the same slopes are far from zero elsewhere
        dynamics.heads.weights[0].add_(0.05)
    value = (dynamics.log_prob(obs, act, next_obs) * share).sum() / len(obs)
    assert float(torch.autograd.grad(value, parameters)[0].abs().max()) > 1e-2


@pytest.mark.parametrize("dynamics", ["linear", "sparse"])
def test_it_finds_how_many_which_and_how_they_switch(data, dynamics):
    model = mbrl_hdp.fit(data, weak_prior(), dynamics=dynamics, max_contexts=4, seed=1, progress=False)
    test = world(40, 99)
    labels = model.most_likely(test)
    aligned = align(labels, test.context)
    assert model.num_contexts == 2
    assert aligned.accuracy > 0.97
    truth = empirical_transition(data.context)[np.ix_(aligned.to_true, aligned.to_true)]
    np.testing.assert_allclose(model.transition, truth, atol=0.02)
    assert all(run["num_steps"] < 60 for run in model.report.runs)  # it settles
    assert [run["schedule"] for run in model.report.runs] == ["search", "one context", *["tempered"] * 3]


def test_heads_that_share_a_context_are_merged():
    """Four heads, three contexts: half of the episodes have another head for the first context."""
    data = world(80, 0, contexts=(0, 1, 2))
    registry, task = load_registry(), TaskSpec(5, 2, 1, seed=3)
    linear = registry.build_dynamics("linear", task)
    linear.set_normaliser(*(torch.as_tensor(each, dtype=torch.float32) for each in data.transitions()))
    prior = registry.build_prior("hdp", task, weak_prior().config)
    episodes = EpisodeTensors.of(data)
    rule = registry.build_distillation("stationary", task)
    trainer = CoordinateTrainer(prior, linear, rule, episodes, FitConfig(), TEMPERED, torch.Generator())
    is_second = (data.context == 0) & (np.arange(80) % 2 == 0)[:, None]
    slot = torch.as_tensor(np.where(is_second, 3, data.context))
    trainer.keep[4] = False
    trainer.run_from(torch.nn.functional.one_hot(slot, 5).float(), num_rounds=3)
    likelihood = trainer.log_likelihood(episodes)
    trainer.merge_alike()
    assert int(trainer.keep.sum()) == 3
    assert bool(trainer.keep[1] and trainer.keep[2])
    assert trainer.log_likelihood(episodes) > likelihood - 0.03


def test_a_refit_goes_on_from_the_heads(data):
    model = mbrl_hdp.fit(data, weak_prior(), dynamics="linear", max_contexts=3, seed=1, progress=False)
    more = world(60, 5)
    again = mbrl_hdp.fit(more, warm_start=model, progress=False)
    assert again.num_contexts == 2
    assert align(again.most_likely(more), more.context).accuracy > 0.97
    assert not torch.equal(again.dynamics.heads.weights[0], model.dynamics.heads.weights[0])
    assert [run["schedule"] for run in again.report.runs] == ["refit"]


def test_missing_steps_do_not_count(data):
    obs = data.obs.copy()
    obs[3, 10:20] = np.nan
    holed = mbrl_hdp.Trajectories(obs, data.act, allow_missing=True)
    model = mbrl_hdp.fit(holed, weak_prior(), dynamics="linear", max_contexts=3, seed=1, progress=False)
    assert model.num_contexts == 2
    batch = EpisodeTensors.of(holed).batch()
    assert float(step_log_lik(model.dynamics, batch)[3, 12].detach().abs().max()) == 0.0


def test_one_slot_has_no_chain_to_learn(data):
    model = mbrl_hdp.fit(data, dynamics="linear", max_contexts=1, progress=False)
    assert model.num_contexts == 1
    np.testing.assert_array_equal(model.transition, [[1.0]])
