"""GPMM: assignment by hand, merge and prune, predictions against gpytorch, distillation, the same run when resumed."""

import math

import gpytorch
import numpy as np
import pytest
import torch

from mbrl_hdp.errors import ConfigError
from mbrl_hdp.testing import check_agent
from mbrl_hdp_baselines.counts import AssignmentCounts
from mbrl_hdp_baselines.distillation import distil, subset_bound
from mbrl_hdp_baselines.features import AngleFeatures
from mbrl_hdp_baselines.gp import GpComponent
from mbrl_hdp_baselines.gpmm import Gpmm, mean_divergence
from mbrl_hdp_baselines.settings import GpmmConfig

SMALL = ["env=cartpole_hard", "env.kwargs.horizon=8", "planner.horizon=2", "planner.population_size=8",
         "planner.num_elites=2", "planner.num_iterations=2"]  # fmt: skip


def counts(new_weight=0.1, burn_in=2, first_weight=0.001, first_self_weight=1.0, stickiness=0.0):
    return AssignmentCounts(new_weight, burn_in, first_weight, first_self_weight, stickiness)


class TestAssignment:
    def test_probabilities_by_hand(self):
        """Counts (2, 0.5), likelihoods (0.1, 0.8), new: 0.1 * 0.3; joint 0.2, 0.4, 0.03 of 0.63."""
        found = counts()
        found.counts, found.labels = np.array([[2.0, 0.5], [0.3, 4.0]]), [0, 0, 1, 1, 0]
        expected = np.array([0.2, 0.4, 0.03]) / 0.63
        np.testing.assert_allclose(found.probabilities(0, np.log([0.1, 0.8]), math.log(0.3)), expected, rtol=1e-12)

    def test_stickiness_is_added_to_staying(self):
        found = counts(stickiness=3.0)
        found.counts, found.labels = np.array([[2.0, 0.5], [0.3, 4.0]]), [0, 0, 1, 1, 0]
        expected = np.array([0.03, 5.6, 0.03]) / 5.66  # 0.3 * 0.1, (4 + 3) * 0.8, 0.1 * 0.3
        np.testing.assert_allclose(found.probabilities(1, np.log([0.1, 0.8]), math.log(0.3)), expected, rtol=1e-12)

    def test_the_newest_must_be_old_enough_before_another_is_made(self):
        found = counts(burn_in=3)
        found.counts, found.labels = np.ones((1, 1)), [0, 0]
        assert found.probabilities(0, np.array([-50.0]), 0.0)[1] == 0.0
        found.labels = [0, 0, 0]
        assert found.probabilities(0, np.array([-50.0]), 0.0)[1] > 0.999

    def test_far_below_the_smallest_number_and_not_a_number(self):
        """exp(-2000) is 0 in floating point; a NaN is impossible, not chosen."""
        found = counts()
        found.counts, found.labels = np.array([[1.0, 1.0], [1.0, 1.0]]), [0, 0, 1, 1]
        np.testing.assert_allclose(
            found.probabilities(0, np.array([-2000.0, -2001.0]), -np.inf)[0], 1 / (1 + np.exp(-1))
        )
        assert found.probabilities(0, np.array([np.nan, -5.0]), -np.inf).argmax() == 1
        assert found.probabilities(1, np.array([np.nan, np.nan]), np.nan).argmax() == 1

    def test_counts_of_existing_and_new_components(self):
        found = counts()
        assert found.begin() == 0
        assert found.add(0, np.array([0.8, 0.2])) == 0  # 0.8 of 0.8 goes to the existing one
        np.testing.assert_allclose(found.counts, [[2.0]])
        assert found.add(0, np.array([0.3, 0.7])) == 1
        np.testing.assert_allclose(found.counts, [[2.3, 0.7], [0.001, 1.0]])
        assert found.add(1, np.array([0.1, 0.6, 0.3])) == 1
        np.testing.assert_allclose(found.counts, [[2.3, 0.7], [0.001 + 1 / 7, 1.0 + 6 / 7]])
        assert found.labels == [0, 0, 1, 1]

    def test_merging_relabels_and_credits(self):
        """Component 1 (visited after 0, then 2 followed) goes to 2, which becomes number 1."""
        found = counts()
        found.counts = np.array([[5.0, 1.0, 0.5], [0.2, 2.0, 0.7], [0.1, 0.3, 4.0]])
        found.labels = [0, 0, 1, 1, 1, 2]
        assert found.neighbours(1) == (0, 2)
        assert found.merge(1, 2) == 1
        assert found.labels == [0, 0, 1, 1, 1, 1]
        # Row 2 gains row 1; 0 -> 2 gains the three points; 2 -> 2 gains the one count to what followed.
        np.testing.assert_allclose(found.counts, [[5.0, 0.5 + 3.0], [0.1 + 0.2, 4.0 + 0.7 + 1.0]])

    def test_merging_the_active_component(self):
        found = counts()
        found.counts = np.array([[5.0, 1.0, 0.5], [0.2, 2.0, 0.7], [0.1, 0.3, 4.0]])
        found.labels = [1, 0, 0, 2, 2]
        assert found.merge(2, 1) == 1
        assert found.labels == [1, 0, 0, 1, 1]
        np.testing.assert_allclose(found.counts, [[5.0, 1.0 + 2.0], [0.2 + 0.1, 2.0 + 0.3]])


def data(num, seed=0, sign=1.0):
    rng = np.random.default_rng(seed)
    inputs = torch.from_numpy(rng.normal(size=(num, 3)))
    targets = torch.stack([sign * (inputs[:, 0] * 2).sin(), inputs[:, 1] * inputs[:, 2]], 1)
    return inputs, targets + 0.01 * torch.from_numpy(rng.normal(size=(num, 2)))


def component(num=12, config=None, **named):
    made = GpComponent(3, 2, config or GpmmConfig(**named))
    made.add(*data(num))
    return made


class TestGaussianProcess:
    def test_predictions_are_gpytorchs(self):
        made = component(20)
        points = torch.from_numpy(np.random.default_rng(5).normal(size=(7, 3)))
        made.gp.set_train_data(made.inputs, made.targets.T.contiguous(), strict=False)
        made.gp.eval()
        reference = made.gp(points)
        mean, variance = made.predict(points)
        torch.testing.assert_close(mean, reference.mean.T, rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(variance, reference.variance.T, rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(made.predict_mean(points), mean, rtol=0, atol=1e-5)  # single precision

    def test_the_loss_and_its_gradient_are_gpytorchs(self):
        made, generator = component(14), torch.Generator().manual_seed(2)
        with torch.no_grad():
            for parameter in made.gp.parameters():
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
        targets = made.targets.T.contiguous()
        made.gp.set_train_data(made.inputs, targets, strict=False)
        made.gp.train()
        objective = gpytorch.mlls.ExactMarginalLogLikelihood(made.gp.likelihood, made.gp)
        names, parameters = zip(*made.gp.named_parameters(), strict=True)
        theirs = -objective(made.gp(made.inputs), targets).sum()
        ours = made.loss(targets)
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=0)
        pairs = zip(*(torch.autograd.grad(3.0 * loss, parameters) for loss in (ours, theirs)), strict=True)
        for name, (one, two) in zip(names, pairs, strict=True):
            torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-8, msg=name)
            assert two.abs().min() > 1e-6, name

    def test_the_factor_that_grows_is_the_factor_of_all_points(self):
        made = component(20, refit_growth=100.0)
        for _ in range(2):
            made.add(*data(3, seed=9))
        assert len(made) == 26
        points = data(4, seed=3)[0]
        grown = made.predict(points)
        made.refresh()
        for one, two in zip(grown, made.predict(points), strict=True):
            torch.testing.assert_close(one, two, rtol=1e-7, atol=1e-9)

    def test_a_fit_raises_the_marginal_likelihood(self):
        made = component(30, fit_steps=1)
        before = made.fit()
        made.config.fit_steps = 30
        assert made.fit() < before - 0.05

    def test_hyper_parameters_begin_as_published(self):
        gp = GpComponent(3, 2, GpmmConfig()).gp
        assert gp.likelihood.noise.flatten().tolist() == pytest.approx([1e-3, 1e-3])
        assert gp.covar_module.outputscale.tolist() == pytest.approx([0.5, 0.5])
        assert gp.covar_module.base_kernel.lengthscale.dtype == torch.float64
        assert float(gp.covar_module.base_kernel.lengthscale.mean()) == pytest.approx(1.0)

    def test_the_score_is_a_mean_over_outputs_without_noise(self):
        made = component(10)
        point, target = data(1, seed=4)
        mean, variance = made.predict(point)
        by_hand = -0.5 * ((target - mean) ** 2 / variance + variance.log() + math.log(2 * math.pi))
        assert made.score(point[0], target[0]) == pytest.approx(float(by_hand.mean()), rel=1e-9)
        prior = -0.5 * (target**2 / 0.5 + math.log(0.5) + math.log(2 * math.pi))
        assert made.prior_score(target[0]) == pytest.approx(float(prior.mean()), rel=1e-9)


class TestDistillation:
    def test_the_bound_is_the_evidence_when_the_subset_is_everything_and_below_it_otherwise(self):
        made = component(15, first_noise=0.05)
        covariance = made.gp.covar_module(made.inputs).to_dense().detach()
        covariance = covariance + made.gp.likelihood.noise.detach()[..., None] * torch.eye(15)
        normal = torch.distributions.MultivariateNormal(
            made.gp.mean_module.constant.detach()[:, None].expand(2, 15), covariance
        )
        evidence = float(normal.log_prob(made.targets.T).sum())
        assert subset_bound(made, torch.arange(15)) == pytest.approx(evidence, abs=1e-4)
        assert subset_bound(made, torch.arange(8)) < evidence - 1.0

    def test_the_best_subset_is_kept(self):
        made, generator = component(15), torch.Generator().manual_seed(3)
        draws = [torch.randperm(15, generator=generator)[:6].sort().values for _ in range(5)]
        best = max(draws, key=lambda subset: subset_bound(made, subset))
        expected = made.inputs[best]
        distil(made, 6, 5, torch.Generator().manual_seed(3))
        assert torch.equal(made.inputs, expected)


def test_divergence_of_components():
    one, two = component(12), GpComponent(3, 2, GpmmConfig())
    two.add(*data(9, seed=2, sign=-1.0))
    (m1, v1), (m2, v2) = one.predict(two.inputs), two.predict(two.inputs)
    by_hand = 0.5 * (v2 / v1).log() + (v1 + (m1 - m2) ** 2) / (2 * v2) - 0.5
    assert mean_divergence(one, two) == pytest.approx(float(by_hand.sum(1).mean()), rel=1e-9)
    assert mean_divergence(one, one) == pytest.approx(0.0, abs=1e-12)


def test_features_and_back():
    features = AngleFeatures(4, [2])
    obs = torch.tensor([[0.3, -1.0, 2.0, 0.7], [0.1, 0.2, -3.0, 4.0]], dtype=torch.float64)
    found = features.encode(obs)
    assert found[0].tolist() == pytest.approx([0.3, -1.0, 0.7, math.cos(2.0), math.sin(2.0)])
    torch.testing.assert_close(features.decode(found * torch.tensor([1.0, 1.0, 1.0, 2.0, 2.0])), obs)


class Mover:
    """A one-dimensional world that moves by the action, or against it."""

    def __init__(self, agent, seed=0):
        self.agent, self.rng, self.position = agent, np.random.default_rng(seed), 0.0

    def steps(self, num, sign):
        for _ in range(num):
            act = self.rng.uniform(-1, 1, 1)
            reached = self.position + sign * act[0] * 0.5
            self.agent.observe(np.array([self.position]), act, 0.0, np.array([reached]), False)
            self.position = float(np.clip(reached, -2, 2))


def agent_of(task_of, **named):
    """GPMM for one observation and one action."""
    return Gpmm(GpmmConfig(**{"fit_steps": 4, "refit_growth": 0.3, **named}), task_of(obs_dim=1))


def test_it_separates_two_contexts(task_of):
    agent = agent_of(task_of, burn_in=8)
    world = Mover(agent)
    agent.reset()
    world.steps(30, 1.0)
    world.steps(30, -1.0)
    labels = agent.context_labels()
    assert len(labels) == 60
    assert np.mean(labels[:30] == labels[15]) > 0.9
    assert np.mean(labels[34:] == labels[45]) > 0.9
    assert labels[15] != labels[45]


def follow(agent, labels):
    """Let an agent take in transitions whose labels are decided here."""
    script = iter(labels)
    agent._probabilities = lambda *_, **__: np.eye(len(agent.components) + 1)[next(script)]
    Mover(agent).steps(len(labels), 1.0)


def test_pruning_undoes_a_short_visit_and_the_release_does_not(task_of):
    """Three points of a new component, left before it was old enough."""
    for merges in (True, False):
        agent = agent_of(task_of, merges=merges, burn_in=8, kl_max=1e-9)
        Mover(agent).steps(1, 1.0)
        follow(agent, [0] * 9 + [1] * 3 + [0] * 2)
        assert [len(found) for found in agent.components] == ([15] if merges else [12, 3])
        assert agent.assignment.labels == ([0] * 15 if merges else [0] * 10 + [1] * 3 + [0] * 2)
        assert agent.assignment.num_components == len(agent.components)
        assert agent.active == 0


def test_alike_components_merge_when_the_new_one_is_old_enough(task_of):
    for kl_max in (1e9, 1e-9):
        agent = agent_of(task_of, merges=True, burn_in=6, kl_max=kl_max)
        Mover(agent).steps(1, 1.0)
        follow(agent, [0] * 9 + [1] * 5)
        assert [len(found) for found in agent.components] == [10, 5]
        follow(agent, [1])
        assert [len(found) for found in agent.components] == ([16] if kl_max > 1 else [10, 6])
        assert agent.assignment.labels == ([0] * 16 if kl_max > 1 else [0] * 10 + [1] * 6)
        assert agent.active == agent.assignment.labels[-1]


def test_large_components_are_reduced(task_of):
    agent = agent_of(task_of, distil_above=20, distil_keep=10, distil_subsets=3)
    Mover(agent).steps(21, 1.0)
    assert len(agent.components[0]) == 10
    with pytest.raises(ConfigError, match=r"agent\.distil_keep=30 must be below"):
        agent_of(task_of, distil_above=20, distil_keep=30)


def test_evaluations_follow_the_context_and_learn_nothing(task_of):
    agent = agent_of(task_of, burn_in=8)
    world = Mover(agent)
    agent.reset()
    world.steps(25, 1.0)
    world.steps(25, -1.0)
    agent.end_episode()
    before = {name: np.array(value) for name, value in agent.state_dict().items()}
    agent.reset()
    for number in range(20):
        sign = 1.0 if number < 10 else -1.0
        act = np.array([0.5 if number % 2 else -0.7])
        agent.watch(np.zeros(1), act, 0.5 * sign * act)
    labels = agent.context_labels()
    assert len(labels) == 20
    assert len(set(labels[2:10])) == len(set(labels[12:])) == 1
    assert labels[5] != labels[15]
    for name, value in agent.state_dict().items():
        assert np.array_equal(np.array(value), before[name]), name


@pytest.mark.parametrize("words", [[], ["agent.merges=true", "agent.burn_in=3", "planner=random_shooting"]])
def test_a_resumed_run_is_the_same_run(words):
    used = SMALL if not words else [*SMALL[:3], *words, "planner.population_size=20"]
    check_agent("gpmm", [*used, "agent.refit_growth=0.3"])


def test_rewards_that_need_the_context_model_are_refused(task_of):
    with pytest.raises(ConfigError, match=r"env\.reward=module:function"):
        Gpmm(GpmmConfig(), task_of(reward_fn=None))
