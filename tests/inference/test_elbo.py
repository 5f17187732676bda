"""The bound against the enumerated Pyro program, against the exact evidence, and term by term."""

import math

import pyro.distributions as dist
import pytest
import torch
from pyro import sample
from pyro.infer import TraceEnum_ELBO
from torch import nn

from benchmarks.enumerated_pyro import Data, HdpSettings, PlainHeads, enumerated_loss, enumerated_model
from mbrl_hdp.hooks import load_registry
from mbrl_hdp.inference.dynamics import ContextDynamics
from mbrl_hdp.inference.elbo import ElboScale, EpisodeBatch, elbo, prior_kl, step_log_lik
from mbrl_hdp.inference.prior import ContextPrior
from mbrl_hdp.probability.hmm import log_evidence
from mbrl_hdp.types import ContextChain, TaskSpec
from mbrl_hdp_priors import BetaHdpPrior, DirichletPrior, HdpPrior, MlePrior

SETTINGS = HdpSettings(max_contexts=3, top_concentration=1.7, row_concentration=5.0, stickiness=1.3)


class HeadsDynamics(ContextDynamics):
    """The enumerated program's own heads behind our interface: obs -> next obs, features = [obs, act]."""

    def __init__(self, heads, obs_dim, act_dim):
        super().__init__(len(heads.first), obs_dim, act_dim)
        self.heads = heads

    def log_prob(self, obs, act, next_obs):
        means, stds = self.heads(torch.cat([obs, act], -1)[None])
        return dist.Normal(means[0], stds[0]).log_prob(next_obs[:, None]).sum(-1)

    def predict(self, obs, act, context):
        raise NotImplementedError

    def sample(self, obs, act, context, generator=None):
        raise NotImplementedError

    def log_prior(self):
        return self.heads.log_prior()

    def reset_slots(self, slots, generator=None):
        raise NotImplementedError


class DeltaHdp(HdpPrior):
    """The hdp prior with every site at a point, so that two programs can be compared value by value."""

    def __init__(self, max_contexts, rows, sticks):
        super().__init__(max_contexts, SETTINGS.top_concentration, SETTINGS.row_concentration, SETTINGS.stickiness)
        # Logits: Pyro's Categorical normalises its input, so only gradients along the simplex can be compared.
        self.logits, self.sticks = nn.Parameter(rows.log()), nn.Parameter(sticks)

    @property
    def rows(self):
        return self.logits.softmax(-1)

    def guide(self):
        sample("top_sticks", dist.Delta(self.sticks, event_dim=1))
        sample("rows", dist.Delta(self.rows, event_dim=2))


@pytest.fixture(autouse=True)
def _double():
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(3)
    yield
    torch.set_default_dtype(torch.float32)


def problem(num_episodes=4, num_steps=7, lengths=(7, 3, 6, 1), obs_dim=2, act_dim=1, num_contexts=3):
    heads = PlainHeads(num_contexts, obs_dim + act_dim, obs_dim, hidden=6)
    batch = EpisodeBatch(
        obs=torch.randn(num_episodes, num_steps + 1, obs_dim),
        act=torch.randn(num_episodes, num_steps, act_dim),
        lengths=torch.tensor(lengths),
    )
    return HeadsDynamics(heads, obs_dim, act_dim), batch


def enumerated_data(batch, num_episodes):
    features = torch.cat([batch.obs[:, :-1], batch.act], -1)
    return Data(features, batch.obs[:, 1:], batch.lengths, num_episodes)


def random_prior(num_contexts=3):
    rows = dist.Dirichlet(torch.linspace(1.0, 2.0, num_contexts)).sample((num_contexts + 1,))
    return DeltaHdp(num_contexts, rows, torch.tensor([0.37, 0.61])[: num_contexts - 1])


def test_equals_the_enumerated_pyro_program_in_value_and_gradient():
    dynamics, batch = problem()
    prior = random_prior()
    parameters = {**dict(prior.named_parameters()), **dict(dynamics.named_parameters())}
    parameters = {name: value for name, value in parameters.items() if not name.startswith("raw_")}
    ours = -elbo(prior, dynamics, batch, ElboScale(num_episodes=11, num_transitions=1)).value
    theirs = enumerated_loss(SETTINGS, dynamics.heads, enumerated_data(batch, 11), prior.guide)
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-9)
    ours_grad = torch.autograd.grad(ours, list(parameters.values()))
    theirs_grad = torch.autograd.grad(theirs, list(parameters.values()))
    for name, left, right in zip(parameters, ours_grad, theirs_grad, strict=True):
        assert right.abs().max() > 1e-3, name
        torch.testing.assert_close(left, right, rtol=1e-6, atol=1e-8, msg=name)


def test_the_built_in_cartpole_model_equals_the_enumerated_program():
    """The compiled heads, in value and in the gradient of every weight."""
    _, batch = problem(obs_dim=4)
    dynamics = load_registry().build_dynamics("cartpole", TaskSpec(max_contexts=3, obs_dim=4, act_dim=1))
    rows = batch.obs[:, :-1].flatten(0, 1), batch.act.flatten(0, 1), batch.obs[:, 1:].flatten(0, 1)
    dynamics.set_normaliser(*rows)
    features = dynamics.input_scaler(dynamics.features(batch.obs[:, :-1], batch.act))
    targets = dynamics.target_scaler(batch.obs[:, 1:] - batch.obs[:, :-1])
    heads = PlainHeads(3, 6, 4, hidden=128)
    ours_of = dict(zip(("first", "second"), dynamics.heads.weights, strict=True))
    biases_of = dict(zip(("first_bias", "second_bias"), dynamics.heads.biases, strict=True))
    with torch.no_grad():
        for name, weight in ours_of.items():
            getattr(heads, name).copy_(weight.mT)
        for name, bias in biases_of.items():
            getattr(heads, name).copy_(bias[:, None])
        heads.log_std.copy_(dynamics.noise_std().log())
    prior = random_prior()
    ours = -elbo(prior, dynamics, batch, ElboScale(11, 1)).value
    ours.backward()
    prior_gradient = prior.logits.grad.clone()
    prior.zero_grad()
    theirs = enumerated_loss(SETTINGS, heads, Data(features, targets, batch.lengths, 11), prior.guide)
    theirs.backward()
    jacobian = 11 / 4 * batch.lengths.sum() * dynamics.target_scaler.log_volume()
    torch.testing.assert_close(ours, theirs + jacobian, rtol=1e-6, atol=0.0)
    torch.testing.assert_close(prior_gradient, prior.logits.grad, rtol=1e-6, atol=1e-7)
    for name, weight in ours_of.items():
        torch.testing.assert_close(weight.grad, getattr(heads, name).grad.mT, rtol=1e-6, atol=1e-7)
    for name, bias in biases_of.items():
        torch.testing.assert_close(bias.grad, getattr(heads, name).grad[:, 0], rtol=1e-6, atol=1e-7)


def test_agrees_with_the_enumerated_program_under_the_real_guide_on_average():
    """There Pyro's TraceEnum estimates the KL term from the draw: the same mean, a different draw by draw."""
    dynamics, batch = problem(num_steps=3, lengths=(3, 2, 3, 1))
    prior = HdpPrior(3, SETTINGS.top_concentration, SETTINGS.row_concentration, SETTINGS.stickiness)
    prior.start_from(ContextChain(torch.tensor([0.5, 0.2, 0.3]), torch.full((3, 3), 1 / 3)), strength=9.0)
    data = enumerated_data(batch, 4)
    estimator = TraceEnum_ELBO(max_plate_nesting=1)
    with torch.no_grad():
        theirs = torch.tensor(
            [estimator.loss(lambda: enumerated_model(SETTINGS, dynamics.heads, data), prior.guide) for _ in range(250)]
        )
        bound = elbo(prior, dynamics, batch, ElboScale(num_episodes=4, num_transitions=1, num_draws=250))
    error = theirs.std() / math.sqrt(len(theirs))
    assert abs(theirs.mean() + bound.value) < 6 * 1.5 * error


def test_the_terms_sum_to_the_bound():
    dynamics, batch = problem()
    prior = HdpPrior(3)
    bound = elbo(prior, dynamics, batch, ElboScale(num_episodes=8, num_transitions=34))
    total = bound.log_likelihood - bound.prior_kl + bound.weight_log_prior
    torch.testing.assert_close(bound.value, total)
    torch.testing.assert_close(bound.loss, -total / 34)
    torch.testing.assert_close(bound.prior_kl, prior_kl(prior))
    torch.testing.assert_close(bound.weight_log_prior, dynamics.log_prior())


def test_counts_are_those_of_the_whole_data_set():
    dynamics, batch = problem()
    bound = elbo(HdpPrior(3), dynamics, batch, ElboScale(num_episodes=12, num_transitions=1))
    (draw,) = bound.draws
    assert draw.expected_initial.sum().item() == pytest.approx(12)
    assert draw.expected_transitions.sum().item() == pytest.approx(3 * (batch.lengths - 1).sum().item())


def test_minibatch_scale_multiplies_the_likelihood_alone():
    dynamics, batch = problem()
    prior = random_prior()
    once = elbo(prior, dynamics, batch, ElboScale(4, 1))
    thrice = elbo(prior, dynamics, batch, ElboScale(12, 1))
    torch.testing.assert_close(thrice.log_likelihood, 3 * once.log_likelihood)
    torch.testing.assert_close(thrice.prior_kl, once.prior_kl)


def tiny_problem():
    """K=2, one stick: the evidence is an integral over (stick, 3 row probabilities), done on a grid."""
    log_lik = torch.tensor([[[0.3, -1.0], [-0.7, 0.4], [0.2, 0.1]], [[-1.2, 0.6], [0.5, -0.4], [0.9, -2.0]]])
    return log_lik, torch.tensor([3, 2])


class TableDynamics(ContextDynamics):
    """A table of log-likelihoods instead of a network."""

    def __init__(self, table):
        super().__init__(table.shape[-1], 1, 0)
        self.table = nn.Parameter(table.flatten(0, 1).T.contiguous())

    def log_prob(self, obs, act, next_obs):
        return self.table.T[obs[:, 0].long()]

    predict = sample = reset_slots = None

    def log_prior(self):
        return self.table.new_zeros(())


TableDynamics.__abstractmethods__ = frozenset()


def table_batch(log_lik, lengths):
    number, steps, _ = log_lik.shape
    index = torch.arange(number * steps, dtype=log_lik.dtype).reshape(number, steps, 1)
    return EpisodeBatch(torch.cat([index, index[:, -1:]], 1), index[..., :0], lengths)


def exact_log_evidence(log_lik, lengths, top_concentration, row_concentration, stickiness):
    """Integrate the likelihood over the prior by midpoints on the quantiles of every Beta."""
    from scipy.stats import beta

    points = (torch.arange(24) + 0.5) / 24
    total = 0.0
    for stick in beta.ppf(points.numpy(), 1.0, top_concentration):
        weights = torch.tensor([stick, 1 - stick])
        laws = row_concentration * weights + stickiness * torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
        axes = [torch.tensor(beta.ppf(points.numpy(), *law.tolist())) for law in laws]
        first, one, two = torch.meshgrid(*axes, indexing="ij")
        rows = torch.stack([torch.stack([p, 1 - p], -1) for p in (first, one, two)], -2)
        likelihood = torch.ones_like(first)
        for sequence, length in zip(log_lik.exp(), lengths, strict=True):
            message = rows[..., 0, :] * sequence[0]
            for t in range(1, length):
                message = (message[..., :, None] * rows[..., 1:, :]).sum(-2) * sequence[t]
            likelihood = likelihood * message.sum(-1)
        total += likelihood.mean().item() / len(points)
    return math.log(total)


# q's independence of the sticks and the rows costs about 0.9 here; Dirichlet rows alone lose little.
@pytest.mark.parametrize(("kind", "gap"), [("beta", 1.2), ("auto", 1.4), ("dirichlet", 0.2)])
def test_the_bound_stays_below_the_exact_evidence_and_comes_near(kind, gap):
    log_lik, lengths = tiny_problem()
    exact = exact_log_evidence(log_lik, lengths.tolist(), 1.5, 3.0, 0.8)
    if kind == "dirichlet":
        prior, exact = DirichletPrior(2, 3.0, 0.8), dirichlet_evidence(log_lik, lengths, 3.0, 0.8)
    else:
        prior = BetaHdpPrior(2, 1.5, 3.0, 0.8)
        if kind == "auto":
            prior = WithoutGuide(prior)
            prior.prepare()
    dynamics, batch = TableDynamics(log_lik), table_batch(log_lik, lengths)
    optimiser = torch.optim.Adam(prior.parameters(), lr=0.05)
    for _ in range(100):
        optimiser.zero_grad()
        elbo(prior, dynamics, batch, ElboScale(2, 5, num_draws=2)).loss.backward()
        optimiser.step()
    with torch.no_grad():
        draws = torch.stack([elbo(prior, dynamics, batch, ElboScale(2, 5)).value for _ in range(250)])
    error = draws.std() / math.sqrt(len(draws))
    assert draws.mean() - 6 * error < exact
    assert draws.mean() > exact - gap


def dirichlet_evidence(log_lik, lengths, row_concentration, stickiness):
    """The evidence by averaging over many chains of the prior."""
    laws = row_concentration / 2 + stickiness * torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    rows = dist.Dirichlet(laws).sample((200_000,))
    likelihood = torch.ones(len(rows))
    for sequence, length in zip(log_lik.exp(), lengths.tolist(), strict=True):
        message = rows[:, 0] * sequence[0]
        for t in range(1, length):
            message = (message[:, :, None] * rows[:, 1:]).sum(1) * sequence[t]
        likelihood = likelihood * message.sum(-1)
    return likelihood.mean().log().item()


class WithoutGuide(ContextPrior):
    """Somebody's prior with a model only."""

    def __init__(self, inner):
        super().__init__(inner.max_contexts)
        self._inner = [inner]  # in a list, so that its parameters are not ours

    def model(self):
        return self._inner[0].model()


def test_missing_steps_and_padding_carry_no_likelihood_and_no_nan():
    dynamics, batch = problem()
    prior = random_prior()
    is_observed = torch.ones(4, 7, dtype=torch.bool)
    is_observed[0, 2:4] = False
    is_observed[2, 5] = False
    clean = EpisodeBatch(batch.obs, batch.act, batch.lengths, is_observed)
    broken_obs, broken_act = batch.obs.clone(), batch.act.clone()
    broken_obs[0, 3], broken_act[2, 5] = torch.nan, torch.nan
    for episode, length in enumerate(batch.lengths):
        broken_obs[episode, length + 1 :] = torch.nan
        broken_act[episode, length:] = torch.nan
    broken = EpisodeBatch(broken_obs, broken_act, batch.lengths, is_observed)
    scale = ElboScale(4, 17)
    for each in (clean, broken):
        bound = elbo(prior, dynamics, each, scale)
        bound.loss.backward()
    gradients = [value.grad for value in (*dynamics.parameters(), prior.logits)]
    assert all(bool(gradient.isfinite().all()) for gradient in gradients)
    torch.testing.assert_close(elbo(prior, dynamics, clean, scale).value, bound.value)
    rows = step_log_lik(dynamics, broken)
    assert bool((rows[~broken.carries_likelihood()] == 0).all())
    full = step_log_lik(dynamics, batch)
    torch.testing.assert_close(rows[broken.carries_likelihood()], full[broken.carries_likelihood()])


def test_a_mask_is_a_lower_bound_and_closes_the_masked_context():
    dynamics, batch = problem()
    prior = random_prior()
    keep = torch.tensor([True, False, True])
    full = elbo(prior, dynamics, batch, ElboScale(4, 1))
    masked = elbo(prior, dynamics, batch, ElboScale(4, 1, keep=keep))
    assert masked.log_likelihood < full.log_likelihood
    assert masked.draws[0].expected_transitions[1].abs().max() == 0
    assert masked.draws[0].expected_transitions[:, 1].abs().max() == 0
    masked.value.backward()
    gradient = dynamics.heads.second.grad
    assert gradient[0].abs().max() > 0
    only_prior = torch.autograd.grad(dynamics.log_prior(), dynamics.heads.second)[0]
    torch.testing.assert_close(gradient[1], only_prior[1])
    # Two contexts alone, with the same un-normalised chain, explain the data as well.
    chain = ContextChain(prior.rows[0], prior.rows[1:])
    log_lik = step_log_lik(dynamics, batch)
    small = ContextChain(chain.initial[keep], chain.transition[keep][:, keep])
    left = log_evidence(small, log_lik[..., keep], batch.lengths).sum()
    torch.testing.assert_close(masked.log_likelihood, left.detach())


@pytest.mark.parametrize("temperature", [0.0, 0.3, 1.0, 2.0])
def test_temperature_is_a_power_of_every_steps_likelihood(temperature):
    dynamics, batch = problem()
    prior = random_prior()
    chain = ContextChain(prior.rows[0], prior.rows[1:])
    want = log_evidence(chain, temperature * step_log_lik(dynamics, batch), batch.lengths).sum()
    got = elbo(prior, dynamics, batch, ElboScale(4, 1, temperature=temperature)).log_likelihood
    torch.testing.assert_close(got, want.detach())


def test_gradients_reach_top_sticks_rows_and_heads():
    dynamics, batch = problem()
    for prior in (HdpPrior(3), BetaHdpPrior(3), DirichletPrior(3), MlePrior(3)):
        dynamics.zero_grad()
        elbo(prior, dynamics, batch, ElboScale(40, 17)).loss.backward()
        for name, parameter in (*prior.named_parameters(), *dynamics.named_parameters()):
            assert parameter.grad is not None, f"{type(prior).__name__}: {name}"
            assert bool(parameter.grad.isfinite().all()), name
            assert parameter.grad.abs().max() > 0, f"{type(prior).__name__}: {name}"


def test_relabelling_the_contexts_leaves_the_bound_alone():
    dynamics, batch = problem()
    prior = DirichletPrior(3, row_concentration=7.0, stickiness=2.0)
    with torch.no_grad():
        prior.raw_rows.normal_()
    order = torch.tensor([2, 0, 1])
    chain, log_lik = prior.mean_chain(), step_log_lik(dynamics, batch)
    before = log_evidence(chain, log_lik, batch.lengths), prior_kl(prior)
    with torch.no_grad():
        prior.raw_rows.copy_(prior.raw_rows[torch.cat([torch.zeros(1, dtype=torch.long), order + 1])][:, order].clone())
        for parameter in dynamics.parameters():
            parameter.copy_(parameter[order].clone())
    after = log_evidence(prior.mean_chain(), step_log_lik(dynamics, batch), batch.lengths), prior_kl(prior)
    torch.testing.assert_close(before, after)
    torch.testing.assert_close(step_log_lik(dynamics, batch), log_lik[..., order])


def test_one_context_is_a_plain_regression():
    dynamics, batch = problem(num_contexts=1)
    for prior in (HdpPrior(1), BetaHdpPrior(1), DirichletPrior(1), MlePrior(1)):
        bound = elbo(prior, dynamics, batch, ElboScale(4, 1))
        rows = step_log_lik(dynamics, batch)[batch.carries_likelihood()]
        torch.testing.assert_close(bound.log_likelihood, rows.sum().detach())
        assert bound.prior_kl.item() == pytest.approx(0.0, abs=1e-9)
        bound.loss.backward()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_hundred_contexts_and_sharp_emissions_stay_finite(dtype):
    torch.set_default_dtype(dtype)
    dynamics, batch = problem(num_contexts=100)
    with torch.no_grad():
        dynamics.heads.log_std.fill_(-6.0)
    prior = HdpPrior(100, row_concentration=1.0)
    bound = elbo(prior, dynamics, batch, ElboScale(4, 17))
    bound.loss.backward()
    for name, parameter in (*prior.named_parameters(), *dynamics.named_parameters()):
        assert bool(parameter.grad.isfinite().all()), name
        assert parameter.grad.dtype == dtype
