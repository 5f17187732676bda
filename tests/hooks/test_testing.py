"""The conformance checks pass what is right and catch what is wrong."""

import types
from dataclasses import dataclass

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

from mbrl_hdp.control.baseline import Baseline
from mbrl_hdp.distil.distiller import Distiller
from mbrl_hdp.hooks import PluginSpec, hookimpl, load_registry
from mbrl_hdp.hooks.registry import PluginSource
from mbrl_hdp.inference.prior import ContextPrior
from mbrl_hdp.testing import check_baseline, check_distiller, check_dynamics, check_prior
from mbrl_hdp.types import ContextChain, TaskSpec
from mbrl_hdp_priors import DirichletPrior


@pytest.mark.parametrize("name", ["hdp", "dirichlet", "mle"])
@pytest.mark.parametrize("max_contexts", [1, 4])
def test_built_in_priors_conform(name, max_contexts):
    registry = load_registry()
    check_prior(lambda: registry.build_prior(name, TaskSpec(max_contexts=max_contexts)))


@pytest.mark.parametrize("name", ["stationary", "beta"])
def test_built_in_rules_conform(name):
    check_distiller(load_registry().build_distillation(name, TaskSpec(max_contexts=4)))


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("delta_mlp", TaskSpec(3, obs_dim=5, act_dim=2)),
        ("delta_mlp", TaskSpec(1, obs_dim=2, act_dim=0)),
        ("linear", TaskSpec(3, obs_dim=2, act_dim=1)),
        ("cartpole", TaskSpec(3, obs_dim=4, act_dim=1)),
        ("drone", TaskSpec(3, obs_dim=12, act_dim=4, dt=1 / 80)),
        ("vehicle", TaskSpec(3, obs_dim=12, act_dim=2, dt=0.1)),
    ],
)
def test_built_in_dynamics_conform(name, task):
    check_dynamics(load_registry().build_dynamics(name, task))


class RowsThatDoNotSum(ContextPrior):
    def model(self):
        ones = torch.ones(self.max_contexts)
        rows = pyro.sample("rows", dist.Dirichlet(ones.expand(self.max_contexts, -1)).to_event(1))
        return ContextChain(pyro.sample("initial", dist.Dirichlet(ones)), 0.9 * rows)


class ExpectedCounts(DirichletPrior):
    """Steps towards prior + E[counts]: the natural gradient of the mean-field bound, not of the stated one."""

    def natural_step(self, draws, step, centre=None):
        with torch.no_grad():
            counts = torch.cat([draws[0].expected_initial[None], draws[0].expected_transitions])
            self._set_q_rows((1 - step) * self.q_rows() + step * (self.expected_prior_rows() + counts))


def test_a_natural_step_of_another_bound_is_found_out():
    check_prior(lambda: DirichletPrior(3, row_concentration=6.0, stickiness=1.0))
    with pytest.raises(AssertionError, match=r"natural_step\(\): the bound still has a slope"):
        check_prior(lambda: ExpectedCounts(3, row_concentration=6.0, stickiness=1.0))


class NothingToLearn(ContextPrior):
    def model(self):
        size = self.max_contexts
        return ContextChain(torch.full((size,), 1 / size), torch.full((size, size), 1 / size))

    def guide(self):
        return None


def test_check_prior_catches():
    with pytest.raises(AssertionError, match="must sum to 1"):
        check_prior(lambda: RowsThatDoNotSum(3))
    with pytest.raises(AssertionError, match="no trainable parameter"):
        check_prior(lambda: NothingToLearn(3))


class FirstTwo(Distiller):
    def keep(self, posterior):
        return torch.arange(posterior.chain.max_contexts) < 2


class WrongType(Distiller):
    def keep(self, posterior):
        return torch.ones(posterior.chain.max_contexts)


def test_check_distiller_catches():
    with pytest.raises(AssertionError, match="numbered"):
        check_distiller(FirstTwo())
    with pytest.raises(AssertionError, match="bool"):
        check_distiller(WrongType())


class Follower(Baseline):
    """Acts towards the running mean of what it saw."""

    def __init__(self, act_dim, forgets=False):
        self.mean, self.act_dim, self.forgets = 0.0, act_dim, forgets

    def act(self, obs, explore=False):
        return np.full(self.act_dim, np.tanh(self.mean + obs[0]))

    def observe(self, obs, act, reward, next_obs, terminated):
        self.mean = 0.9 * self.mean + 0.1 * float(next_obs.mean())

    def state_dict(self):
        return {} if self.forgets else {"mean": self.mean}

    def load_state_dict(self, state):
        self.mean = state.get("mean", 0.0)


def test_check_baseline_passes_and_catches():
    check_baseline(lambda: Follower(2), obs_dim=3, act_dim=2)
    with pytest.raises(AssertionError, match="does not act the same"):
        check_baseline(lambda: Follower(2, forgets=True), obs_dim=3, act_dim=2)


@dataclass
class EmptyConfig:
    pass


def test_baselines_and_dynamics_come_through_their_hooks():
    module = types.ModuleType("made_up")

    def mbrl_hdp_register_baselines():
        return [PluginSpec("follower", EmptyConfig, lambda config, task: Follower(task.act_dim), "follows")]

    def mbrl_hdp_register_dynamics():
        build = load_registry().get("dynamics", "linear").spec
        return [PluginSpec("affine", build.config, build.build, "linear by another name")]

    module.mbrl_hdp_register_baselines = hookimpl(mbrl_hdp_register_baselines)
    module.mbrl_hdp_register_dynamics = hookimpl(mbrl_hdp_register_dynamics)
    registry = load_registry(sources=[PluginSource("mine", "my-package", "1", lambda: module)], strict=True)
    task = TaskSpec(2, obs_dim=3, act_dim=2)
    assert isinstance(registry.get("baseline", "follower").build(EmptyConfig(), task), Follower)
    check_dynamics(registry.build_dynamics("affine", task))
