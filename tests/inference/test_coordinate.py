"""Training without gradients: the optimum it finds is one, and it finds the contexts of a toy world."""

import numpy as np
import pytest
import torch

import mbrl_hdp
from mbrl_hdp.hooks import load_registry
from mbrl_hdp.inference import coordinate
from mbrl_hdp.inference.coordinate import CoordinateTrainer
from mbrl_hdp.inference.elbo import step_log_lik
from mbrl_hdp.inference.episodes import EpisodeTensors
from mbrl_hdp.inference.schedule import TEMPERED, FitConfig
from mbrl_hdp.inference.scoring import align, empirical_transition
from mbrl_hdp.types import TaskSpec
from tests.inference.test_fit import weak_prior, world

CONFIG = FitConfig(halves_within_s=0.0)


@pytest.fixture(scope="module")
def data():
    return world(40, 0)


def fitted(data, dynamics="linear"):
    return mbrl_hdp.fit(data, weak_prior(), dynamics=dynamics, max_contexts=4, seed=1, config=CONFIG, progress=False)


@pytest.fixture(scope="module")
def linear_model(data):
    return fitted(data)


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
def test_it_finds_how_many_which_and_how_they_switch(data, linear_model, dynamics):
    model = linear_model if dynamics == "linear" else fitted(data, dynamics)
    test = world(40, 99)
    labels = model.most_likely(test)
    aligned = align(labels, test.context)
    assert model.num_contexts == 2
    assert aligned.accuracy > 0.97
    truth = empirical_transition(data.context)[np.ix_(aligned.to_true, aligned.to_true)]
    np.testing.assert_allclose(model.transition, truth, atol=0.02)
    assert all(run["num_steps"] < 60 for run in model.report.runs)  # it settles
    assert [run["schedule"] for run in model.report.runs] == ["search", "one context", *["tempered"] * 3]


def make_trainer(data, num_slots, prior="hdp"):
    registry, task = load_registry(), TaskSpec(num_slots, 2, 1, seed=3)
    linear = registry.build_dynamics("linear", task)
    linear.set_normaliser(*(torch.as_tensor(each, dtype=torch.float32) for each in data.transitions()))
    chain = registry.build_prior(prior, task, weak_prior().config if prior == "hdp" else None)
    rule = registry.build_distillation("stationary", task)
    return CoordinateTrainer(chain, linear, rule, EpisodeTensors.of(data), FitConfig(), TEMPERED, torch.Generator())


def test_the_first_rounds_are_tempered_less_and_less(monkeypatch):
    """Round n of 4 takes the likelihood to the power 0.1 + 0.9 (n - 1) / 4, later ones take it whole."""
    powers, real, last = [], coordinate.smooth, []

    def log_lik(*args):
        last[:] = [step_log_lik(*args)]
        return last[0]

    def smooth(chain, tempered, lengths):
        powers.append(float((tempered / last[0])[lengths > 0][0, 0, 0]))
        return real(chain, tempered, lengths)

    monkeypatch.setattr(coordinate, "step_log_lik", log_lik)
    monkeypatch.setattr(coordinate, "smooth", smooth)
    make_trainer(world(6, 0), 3).run_from(None, num_rounds=6, num_tempered=4)
    np.testing.assert_allclose(powers, [0.1, 0.325, 0.55, 0.775, 1.0, 1.0], rtol=1e-5)


def test_heads_that_share_a_context_are_merged():
    """Four heads, three contexts: half of the episodes have another head for the first context."""
    data = world(80, 0, contexts=(0, 1, 2))
    episodes = EpisodeTensors.of(data)
    trainer = make_trainer(data, 5)
    is_second = (data.context == 0) & (np.arange(80) % 2 == 0)[:, None]
    slot = torch.as_tensor(np.where(is_second, 3, data.context))
    trainer.keep[4] = False
    trainer.run_from(torch.nn.functional.one_hot(slot, 5).float(), num_rounds=3)
    likelihood = trainer.log_likelihood(episodes)
    trainer.merge_alike()
    assert int(trainer.keep.sum()) == 3
    assert bool(trainer.keep[1] and trainer.keep[2])
    assert trainer.log_likelihood(episodes) > likelihood - 0.03


def test_a_refit_goes_on_from_the_heads(linear_model):
    more = world(40, 5)
    again = mbrl_hdp.fit(more, warm_start=linear_model, progress=False)
    assert again.num_contexts == 2
    assert align(again.most_likely(more), more.context).accuracy > 0.97
    assert not torch.equal(again.dynamics.heads.weights[0], linear_model.dynamics.heads.weights[0])
    assert [run["schedule"] for run in again.report.runs] == ["refit"]


def test_missing_steps_do_not_count(data):
    obs = data.obs.copy()
    obs[3, 10:20] = np.nan
    holed = mbrl_hdp.Trajectories(obs, data.act, allow_missing=True)
    model = fitted(holed)
    assert model.num_contexts == 2
    batch = EpisodeTensors.of(holed).batch()
    assert float(step_log_lik(model.dynamics, batch)[3, 12].detach().abs().max()) == 0.0


def test_one_slot_has_no_chain_to_learn(data):
    model = mbrl_hdp.fit(data, dynamics="linear", max_contexts=1, config=CONFIG, progress=False)
    assert model.num_contexts == 1
    np.testing.assert_array_equal(model.transition, [[1.0]])


def test_a_chain_without_natural_steps_follows_its_gradient(data):
    trainer = make_trainer(data, 2, "mle")
    truth = torch.as_tensor(empirical_transition(data.context), dtype=torch.float32)
    before = (trainer.prior.mean_chain().transition - truth).abs().max()
    known = torch.nn.functional.one_hot(torch.as_tensor(data.context), 2).float()
    trainer.run_from(known, num_rounds=20, tolerance=0.0)
    assert float((trainer.prior.mean_chain().transition - truth).abs().max()) < 0.7 * float(before)
