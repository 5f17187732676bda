"""The built-in priors: their distributions, their variational distributions, their closed-form steps."""

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from torch.distributions import Dirichlet, kl_divergence

from mbrl_hdp.errors import ConfigError, PluginError
from mbrl_hdp.hooks import load_registry
from mbrl_hdp.inference.auto_guide import AutoGuide
from mbrl_hdp.inference.elbo import prior_kl
from mbrl_hdp.inference.prior import ContextPrior, NaturalPrior, StartablePrior
from mbrl_hdp.probability.sticks import stick_weights
from mbrl_hdp.testing import check_prior
from mbrl_hdp.types import ContextChain, TaskSpec
from mbrl_hdp_priors import BetaHdpPrior, DirichletPrior, HdpConfig, HdpPrior, MlePrior
from mbrl_hdp_priors.rows import MIN_CONCENTRATION

NAMES = ("dirichlet", "hdp", "mle")
SIZES = (1, 2, 5, 100)
SQUASHED = dist.TransformedDistribution(dist.Normal(torch.zeros(2), 1.0), [dist.transforms.SigmoidTransform()])


class FlatPrior(ContextPrior):
    """A prior of somebody's own: a model and nothing else."""

    def model(self):
        ones = torch.ones(self.max_contexts)
        initial = pyro.sample("initial", dist.Dirichlet(ones))
        rows = pyro.sample("rows", dist.Dirichlet(ones.expand(self.max_contexts, -1)).to_event(1))
        return ContextChain(initial, rows)


def sticky_chain(size):
    transition = 0.7 * torch.eye(size) + 0.3 * torch.linspace(1.0, 2.0, size).softmax(0)
    return ContextChain(torch.linspace(2.0, 1.0, size).softmax(0), transition)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", SIZES)
def test_built_in_priors_pass_the_conformance_check(name, size):
    registry = load_registry()
    check_prior(lambda: registry.build_prior(name, TaskSpec(max_contexts=size)))


@pytest.mark.parametrize("size", SIZES)
def test_the_beta_option_passes_the_conformance_check(size):
    registry = load_registry()
    build = registry.get("prior", "hdp").build
    assert type(build(HdpConfig(top_posterior="beta"), TaskSpec(size))) is BetaHdpPrior
    check_prior(lambda: build(HdpConfig(top_posterior="beta"), TaskSpec(size)))


@pytest.mark.parametrize("size", [1, 3, 8])
def test_a_prior_without_a_guide_passes_the_conformance_check(size):
    if size > 1:
        check_prior(lambda: FlatPrior(size))
    prior = FlatPrior(size)
    prior.prepare()
    assert prior.mean_chain().transition.shape == (size, size)


def test_out_of_range_settings_are_refused_by_key():
    with pytest.raises(ConfigError, match=r"prior\.row_concentration must be above 0"):
        load_registry().build_prior("hdp", TaskSpec(3), HdpConfig(row_concentration=-1.0))
    with pytest.raises(ConfigError, match="did you mean 'beta'"):
        load_registry().build_prior("hdp", TaskSpec(3), HdpConfig(top_posterior="betta"))
    with pytest.raises(ConfigError, match="max_contexts must be at least 1"):
        load_registry().build_prior("mle", TaskSpec(0))


def test_top_weights_have_the_moments_of_gem():
    """E[beta_k] = gamma^(k-1) / (1 + gamma)^k, E[beta_k^2] = 2/((1+g)(2+g)) (g/(2+g))^(k-1)."""
    torch.manual_seed(0)
    prior = HdpPrior(7, top_concentration=1.6)
    with torch.no_grad():
        draws = torch.stack([stick_weights(_prior_draw(prior)["top_sticks"]) for _ in range(2000)])[:, :6].double()
    power = torch.arange(6).double()
    mean = 1.6**power / 2.6 ** (power + 1)
    square = 2 / (2.6 * 3.6) * (1.6 / 3.6) ** power
    for values, want in ((draws, mean), (draws**2, square)):
        error = values.std(0) / math.sqrt(len(values))
        assert bool(((values.mean(0) - want).abs() < 6 * error).all())


def test_rows_have_the_prior_mean_and_variance():
    """Given the weights, E[transition[j]] = (a beta + k e_j) / (a + k); Dirichlet variances; no stickiness at first."""
    torch.manual_seed(1)
    prior = HdpPrior(3, row_concentration=4.0, stickiness=2.5)
    sticks = torch.tensor([0.25, 0.6])
    weights = torch.tensor([0.25, 0.45, 0.30])
    program = poutine.condition(prior.model, {"top_sticks": sticks})
    with torch.no_grad():
        chains = [program() for _ in range(1500)]
    rows = torch.stack([torch.cat([chain.initial[None], chain.transition]) for chain in chains]).double()
    concentration = torch.stack([4 * weights, *(4 * weights + 2.5 * torch.eye(3))]).double()
    law = Dirichlet(concentration)
    error = rows.std(0) / math.sqrt(len(rows))
    assert bool(((rows.mean(0) - law.mean).abs() < 6 * error).all())
    deviation = (rows - rows.mean(0)) ** 2
    assert bool(((deviation.mean(0) - law.variance).abs() < 6 * deviation.std(0) / math.sqrt(len(rows))).all())


def test_without_stickiness_it_is_the_plain_hdp():
    prior = HdpPrior(4, row_concentration=3.0, stickiness=0.0)
    weights = torch.tensor([0.1, 0.4, 0.3, 0.2])
    torch.testing.assert_close(prior.prior_rows(weights), (3 * weights).expand(5, -1))


def test_stickiness_defaults_to_the_papers_and_spares_the_initial_law():
    prior = HdpPrior(10, row_concentration=100.0)
    assert prior.stickiness == 6.0
    rows = prior.prior_rows(torch.full((10,), 0.1))
    torch.testing.assert_close(rows[0], torch.full((10,), 10.0))
    torch.testing.assert_close(rows[1:], 10.0 + 6.0 * torch.eye(10))


@pytest.mark.parametrize("kind", [HdpPrior, BetaHdpPrior])
@pytest.mark.parametrize("size", SIZES)
def test_starts_with_uniform_weights_and_q_at_the_prior(kind, size):
    prior = kind(size)
    torch.testing.assert_close(prior.top_weights(), torch.full((size,), 1 / size), rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(prior.q_rows(), prior.expected_prior_rows(), rtol=1e-3, atol=1e-5)


def test_kl_is_dirichlets_plus_the_sticks_density():
    prior = HdpPrior(4, top_concentration=1.5, row_concentration=6.0, stickiness=1.0).double()
    with torch.no_grad():
        prior.raw_top.copy_(torch.tensor([-1.0, 0.2, 0.9]))
        prior.start_from(sticky_chain(4), strength=30.0)
    sticks = prior.top_sticks()
    rows = kl_divergence(Dirichlet(prior.q_rows()), Dirichlet(prior.prior_rows(prior.top_weights()))).sum()
    density = (math.log(1.5) + 0.5 * torch.log1p(-sticks)).sum()
    torch.testing.assert_close(prior_kl(prior), rows - density)


@pytest.mark.parametrize("kind", [HdpPrior, BetaHdpPrior, DirichletPrior, MlePrior])
def test_starts_from_a_chain_with_zero_entries(kind):
    chain = ContextChain(
        torch.tensor([1.0, 0.0, 0.0]), torch.tensor([[0.9, 0.1, 0.0], [0.0, 0.5, 0.5], [0.3, 0.3, 0.4]])
    )
    prior = kind(3)
    prior.start_from(chain, strength=1000.0)
    torch.testing.assert_close(prior.mean_chain().transition, chain.transition, atol=1e-4, rtol=0)
    torch.testing.assert_close(prior.mean_chain().initial, chain.initial, atol=1e-4, rtol=0)
    drawn = prior.sample_chain()
    (drawn.transition.clamp_min(1e-30).log().sum() + drawn.initial.sum()).backward()
    assert bool(prior.raw_rows.grad.isfinite().all())


def test_mean_chain_is_the_mean_of_the_draws():
    torch.manual_seed(4)
    prior = HdpPrior(3)
    prior.start_from(sticky_chain(3), strength=6.0)
    with torch.no_grad():
        rows = torch.stack([prior.sample_chain().transition for _ in range(1000)]).double()
    error = rows.std(0) / math.sqrt(len(rows))
    assert bool(((rows.mean(0) - prior.mean_chain().transition).abs() < 6 * error).all())


def test_who_offers_what():
    hdp, dirichlet, mle, flat = HdpPrior(2), DirichletPrior(2), MlePrior(2), FlatPrior(2)
    assert [isinstance(prior, NaturalPrior) for prior in (hdp, dirichlet, mle, flat)] == [True, True, False, False]
    assert [isinstance(prior, StartablePrior) for prior in (hdp, dirichlet, mle, flat)] == [True, True, True, False]
    assert {name for name, _ in hdp.named_parameters()} == {"raw_top", "raw_rows"}
    assert hdp.top_parameters() == [hdp.raw_top]


def test_maximum_likelihood_samples_nothing():
    prior = MlePrior(3)
    assert prior_kl(prior).item() == 0.0
    assert not poutine.trace(prior.model).get_trace().stochastic_nodes


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", [HdpPrior, BetaHdpPrior])
def test_extreme_sticks_keep_value_and_gradient_finite(kind, dtype):
    torch.manual_seed(6)
    prior = kind(6, row_concentration=0.01, stickiness=0.0).to(dtype)
    with torch.no_grad():
        prior.raw_top.copy_(torch.tensor([12.0, -12.0, 10.0, 0.0, -11.0]))
        prior.raw_rows.fill_(-20.0)
    for _ in range(5):
        chain = prior.sample_chain()
        (prior_kl(prior) + chain.transition.sum()).backward()
    assert bool((prior.prior_rows(prior.top_weights()) >= MIN_CONCENTRATION).all())
    assert bool(prior.raw_rows.grad.isfinite().all())
    assert bool(prior.raw_top.grad.isfinite().all())
    assert prior.raw_rows.grad.dtype == dtype


def test_two_automatic_guides_share_nothing():
    first, second = FlatPrior(2), FlatPrior(2)
    first.prepare()
    second.prepare()
    with torch.no_grad():
        for parameter in first.parameters():
            parameter.add_(3.0)
    torch.testing.assert_close(second.mean_chain().initial, FlatPrior(2).mean_chain().initial)
    assert (first.mean_chain().initial - second.mean_chain().initial).abs().max() > 0.05
    assert not list(pyro.get_param_store())


def test_an_automatic_guide_is_made_once_and_only_where_there_is_no_other():
    prior = FlatPrior(2)
    assert not list(prior.parameters())
    prior.prepare()
    made = prior._auto_guide
    before = [id(value) for value in prior.parameters()]
    assert before
    prior.prepare()
    prior.guide()
    assert prior._auto_guide is made
    assert [id(value) for value in prior.parameters()] == before
    lazy = FlatPrior(2)
    assert set(lazy.guide()) == {"initial", "rows"}  # also without `prepare`
    assert [value.shape for value in lazy.parameters()] == [value.shape for value in prior.parameters()]
    own = HdpPrior(2)
    count = len(list(own.parameters()))
    own.prepare()
    assert own._auto_guide is None
    assert len(list(own.parameters())) == count


def test_the_automatic_guides_kl_holds_the_jacobian():
    """Trained against no data at all, the bound's KL comes near 0 and never below it."""
    torch.manual_seed(7)
    prior = FlatPrior(2)
    prior.prepare()
    optimiser = torch.optim.Adam(prior.parameters(), lr=0.05)
    for _ in range(150):
        optimiser.zero_grad()
        prior_kl(prior).backward()
        optimiser.step()
    with torch.no_grad():
        draws = torch.stack([prior_kl(prior) for _ in range(300)])
    error = draws.std() / math.sqrt(len(draws))
    assert -6 * error < draws.mean() < 0.3


@pytest.mark.parametrize(
    ("fn", "mean"),
    [
        (dist.Gamma(torch.tensor([2.0, 3.0]), 4.0).to_event(1), [0.5, 0.75]),
        (dist.Beta(torch.tensor([1.0, 3.0]), 1.0).to_event(1), [0.5, 0.75]),
        (dist.HalfCauchy(torch.ones(2)).to_event(1), None),  # its mean is infinite
        (SQUASHED.to_event(1), None),  # it has none in closed form
    ],
)
def test_the_automatic_guide_starts_at_the_mean_or_at_a_draw(fn, mean):
    torch.manual_seed(5)
    state = torch.get_rng_state()
    guides = [AutoGuide(lambda: pyro.sample("site", fn)) for _ in range(2)]
    assert torch.equal(torch.get_rng_state(), state)
    one, two = (dist.transforms.biject_to(fn.support)(guide.raw_locs[0]) for guide in guides)
    assert torch.equal(one, two)
    if mean is not None:
        torch.testing.assert_close(one, torch.tensor(mean))
    assert bool(fn.support.check(one).all())
    assert guides[0].raw_scales[0].exp().tolist() == pytest.approx([0.1, 0.1])


def test_sites_the_automatic_guide_cannot_serve_are_refused():
    class Batched(FlatPrior):
        def model(self):
            rows = pyro.sample("rows", dist.Dirichlet(torch.ones(2, 2)))
            return ContextChain(rows[0], rows)

    class Discrete(FlatPrior):
        def model(self):
            pick = pyro.sample("pick", dist.Bernoulli(0.5))
            return ContextChain(torch.stack([pick, 1 - pick]), torch.eye(2))

    with pytest.raises(PluginError, match=r"'rows' has batch shape .*to_event\(1\)"):
        Batched(2).prepare()
    with pytest.raises(PluginError, match="'pick' is discrete"):
        Discrete(2).prepare()


def _prior_draw(prior):
    trace = poutine.trace(prior.model).get_trace()
    return {name: trace.nodes[name]["value"] for name in trace.stochastic_nodes}
