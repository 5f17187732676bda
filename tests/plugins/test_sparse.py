"""`sparse`: its posterior, predictive density, rollouts and equations against closed forms and Monte Carlo."""

import dataclasses

import numpy as np
import pytest
import torch
from scipy import stats

from mbrl_hdp.errors import ConfigError, DataError
from mbrl_hdp.inference.search.features import Factor
from mbrl_hdp.inference.terms import read_term, term_text
from mbrl_hdp.testing import check_dynamics
from mbrl_hdp.types import TaskSpec
from mbrl_hdp_dynamics.equations import _text as equation_text
from mbrl_hdp_dynamics.regression import PRIOR_SHAPE, regress
from mbrl_hdp_dynamics.sparse import SparseConfig, build_sparse

TERMS = ["x0*x1", "sin(1.0*r0)", "max(x3-0.25,0)*x0", "x0*x0*x1", "cos(2.0*r2)*x3"]


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def one_hot(context, size):
    return torch.nn.functional.one_hot(context, size).double()


def rows(num_rows=600):
    """Two contexts with different equations, in alternating rows."""
    obs, act = 0.5 + 2.0 * draw(num_rows, 3, seed=1), draw(num_rows, 1, seed=2)
    context = torch.arange(num_rows) % 2
    change = torch.stack(
        [
            0.1 * obs[:, 1] * (1 - 2 * context),
            0.3 * obs[:, 0].sin() + 0.2 * act[:, 0] * context,
            0.1 * obs[:, 0] * obs[:, 1] - 0.5 * context,
        ],
        -1,
    )
    return obs, act, obs + change + 0.01 * draw(num_rows, 3, seed=3), context


def fitted(num_rows=600, **settings):
    obs, act, next_obs, context = rows(num_rows)
    dynamics = build_sparse(SparseConfig(terms=TERMS, **settings), TaskSpec(3, 3, 1, seed=1))
    dynamics.set_normaliser(obs, act, next_obs)
    dynamics.fit_heads(obs, act, next_obs, one_hot(context, 3))
    return dynamics


def test_it_keeps_the_contract():
    check_dynamics(build_sparse(SparseConfig(terms=TERMS), TaskSpec(3, 3, 1, seed=1)))
    check_dynamics(build_sparse(SparseConfig(), TaskSpec(1, 2, 0)))


def test_the_evidence_is_that_of_a_multivariate_t():
    features, targets = draw(30, 4).double(), draw(30, 2, seed=5).double()
    found = regress(features, targets, torch.ones(30, dtype=torch.float64), floor=0.3)
    shape = 0.3**2 * (np.eye(30) + features.numpy() @ features.numpy().T / found.precision)
    expected = sum(stats.multivariate_t(shape=shape, df=2 * PRIOR_SHAPE).logpdf(target) for target in targets.T.numpy())
    assert found.log_evidence == pytest.approx(expected, rel=1e-10)


def test_the_posterior_is_that_of_repeated_rows():
    features, targets = draw(40, 3).double(), draw(40, 2, seed=5).double()
    count = torch.arange(40) % 3
    once = regress(features, targets, count.double(), floor=0.1)
    again = regress(
        features.repeat_interleave(count, 0),
        targets.repeat_interleave(count, 0),
        torch.ones(int(count.sum())).double(),
        0.1,
    )
    x, y, w = features.numpy(), targets.numpy(), np.diag(count.double().numpy())
    covariance = np.linalg.inv(x.T @ w @ x + once.precision * np.eye(3))
    mean = covariance @ x.T @ w @ y
    left = y - x @ mean
    rate = PRIOR_SHAPE * 0.01 + 0.5 * (np.diag(left.T @ w @ left) + once.precision * np.square(mean).sum(0))
    np.testing.assert_allclose(once.mean, mean, rtol=1e-9)
    np.testing.assert_allclose(once.factor @ once.factor.T, covariance, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(once.rate, rate, rtol=1e-9)
    assert once.shape == PRIOR_SHAPE + 0.5 * float(count.sum())
    assert once.log_evidence == pytest.approx(again.log_evidence)


def test_the_density_is_the_average_over_the_posterior():
    """With few rows the weights are uncertain: a density that ignored it would be far off."""
    dynamics = fitted(40)
    obs, act, *_ = rows(60)
    obs, act = obs[50:53], act[50:53]
    features = dynamics.features(obs, act)
    generator = torch.Generator().manual_seed(0)
    for slot in (0, 1):
        next_obs = dynamics.sample(obs, act, torch.full((3,), slot), generator).detach()
        target = dynamics.target_scaler(next_obs.double() - obs.double())
        num = 40_000
        shape = dynamics.shape[slot].expand(num, 3).contiguous()
        variance = dynamics.noise_variance()[slot] * shape / torch._standard_gamma(shape, generator=generator)
        normal = torch.randn(num, features.shape[1], 3, generator=generator, dtype=torch.float64)
        weight = dynamics.weight[slot] + variance[:, None].sqrt() * (dynamics.factor[slot] @ normal)
        mean = torch.einsum("bd,nds->nbs", features, weight)
        density = torch.distributions.Normal(mean, variance[:, None].sqrt()).log_prob(target).exp().detach()
        estimate, error = density.mean(0), density.std(0) / num**0.5
        half, leverage = dynamics.shape[slot], (features @ dynamics.factor[slot]).square().sum(-1, keepdim=True)
        scale = (dynamics.noise_variance()[slot] * (1 + leverage)).sqrt()
        exact = torch.distributions.StudentT(2 * half, features @ dynamics.weight[slot], scale).log_prob(target).exp()
        assert bool(((estimate - exact).abs() < 6 * error).all())
        total = (exact.log().sum(-1) - dynamics.target_scaler.log_volume()).float()
        torch.testing.assert_close(dynamics.log_prob(obs, act, next_obs)[:, slot], total, rtol=1e-5, atol=1e-4)
    assert float(leverage.max()) > 0.1


def test_draws_follow_the_density():
    dynamics = fitted(40)
    obs, act = (each[:1].expand(4000, -1) for each in rows(60)[:2])
    slot = torch.ones(4000, dtype=torch.long)
    drawn = dynamics.sample(obs, act, slot, torch.Generator().manual_seed(1)).detach().double()
    with torch.no_grad():
        one = dynamics.features(obs[:1], act[:1])
        scale = (dynamics.noise_variance()[1] * (1 + (one @ dynamics.factor[1]).square().sum())).sqrt()
    standard = (drawn - dynamics.predict(obs, act, slot).detach()) / (scale * dynamics.target_scaler.scale)
    for column in standard.T:
        assert stats.kstest(column.numpy(), stats.t(df=2 * float(dynamics.shape[1])).cdf).pvalue > 1e-4


def test_compiled_rollouts_are_the_steps_one_by_one():
    dynamics, obs = fitted(), rows()[0][0]
    paths = torch.randint(0, 2, (5, 7), generator=torch.Generator().manual_seed(0))
    paths[1, :4] = paths[0, :4]
    shared, before = draw(300, 7, 1), torch.cat([torch.zeros(5, 1), paths.cumsum(1)[:, :-1]], 1)
    reacting = draw(33, 7, 1) + 0.1 * before[:, None, :, None]  # to earlier contexts only
    with torch.no_grad():
        for acts in (shared, reacting):
            expected = dynamics.rollout_blocks(obs, acts, paths)
            torch.testing.assert_close(dynamics.begin_rollout(obs, paths)(acts), expected, rtol=1e-5, atol=1e-5)


def test_drawn_rollouts_have_the_distribution_of_single_steps():
    dynamics, (obs, act, *_) = fitted(40), rows(60)
    num = 20_000
    paths = torch.ones(num, 1, dtype=torch.long)
    with torch.no_grad():
        rolled = dynamics.begin_rollout(obs[0], paths, torch.Generator().manual_seed(1))(act[:1, None])[0, :, 0]
        single = dynamics.sample(
            obs[:1].expand(num, -1), act[:1].expand(num, -1), paths[:, 0], torch.Generator().manual_seed(2)
        )
    for one, two in zip(rolled.T, single.T, strict=True):
        assert stats.ks_2samp(one.numpy(), two.numpy()).pvalue > 1e-4


def test_equations_are_those_of_the_data():
    found = fitted(2000).equations(torch.tensor([0, 1]), ["a", "b", "c", "u"])
    words = [[line.split("  (noise")[0] for line in lines] for lines in found]
    numbers = [
        [float(word) for line in lines for word in line.split() if word.replace(".", "").isdigit()] for lines in words
    ]
    texts = [
        [" ".join(word for word in line.split() if not word.replace(".", "").isdigit()) for line in lines]
        for lines in words
    ]
    assert texts[0] == ["change of a = b", "change of b = sin(a)", "change of c = a * b"]
    assert texts[1] == ["change of a = - b", "change of b = sin(a) + u", "change of c = - + a * b"]
    np.testing.assert_allclose(numbers[0], [0.1, 0.3, 0.1], atol=2e-3)
    np.testing.assert_allclose(numbers[1], [0.1, 0.3, 0.2, 0.5, 0.1], atol=2e-3)


def test_a_head_without_rows_stays():
    dynamics = fitted()
    before = dynamics.weight[2].clone()
    obs, act, next_obs, context = rows()
    dynamics.fit_heads(obs, act, next_obs, one_hot(1 - context, 3))
    assert torch.equal(dynamics.weight[2], before)


def test_constant_columns_carry_no_density():
    obs, act, next_obs, context = rows()
    wide = [torch.cat([each, torch.full((len(each), 1), 7.0)], -1) for each in (obs, next_obs)]
    terms = ["x0*x1", "sin(1.0*r0)"]
    models = [build_sparse(SparseConfig(terms=terms), TaskSpec(2, size, 1)) for size in (3, 4)]
    share = one_hot(context, 2)
    values = []
    for model, (first, then) in zip(models, ((obs, next_obs), wide), strict=True):
        model.set_normaliser(first, act, then)
        model.fit_heads(first, act, then, share)
        values.append(model.log_prob(first, act, then))
    assert bool(values[1].isfinite().all())
    torch.testing.assert_close(models[1].predict(wide[0], act, context)[:, 3], wide[0][:, 3])


@pytest.mark.parametrize(
    "term", [(), (Factor(0), Factor(2)), (Factor(1, "hinge", -0.75), Factor(1, "sin", 2.0)), (Factor(0, "cos", 1e-7),)]
)
def test_terms_are_read_as_written(term):
    text = term_text(term, [1, 3, 4])
    moved = tuple(sorted(dataclasses.replace(factor, column=[1, 3, 4][factor.column]) for factor in term))
    assert read_term(text, 5) == moved


@pytest.mark.parametrize("text", ["", "y0", "x0*", "x0+x1", "sin(x0)", "x7", "max(x0,0)", "x0x1"])
def test_what_is_no_term_is_refused(text):
    with pytest.raises(ConfigError, match=r"dynamics\.terms"):
        build_sparse(SparseConfig(terms=[text]), TaskSpec(2, 3, 1))


def test_wrong_rows_are_refused():
    dynamics = fitted()
    obs, act, *_ = rows(4)
    with pytest.raises(DataError, match="obs has 2 columns"):
        dynamics.predict(obs[:, :2], act, torch.zeros(4, dtype=torch.long))
    with pytest.raises(DataError, match=r"\[0, 3\)"):
        dynamics.predict(obs, act, torch.full((4,), 3))


@pytest.mark.parametrize(("knot", "text"), [(-1.0, "max(cab speed + 2, 0)"), (1.5, "max(cab speed - 3, 0)")])
def test_knots_are_written_without_two_signs(knot, text):
    factors = (Factor(0, "hinge", knot), Factor(1))
    written = equation_text(factors, ["cab speed", "motor current"], np.zeros(2), np.full(2, 2.0))
    assert written == f"{text} * motor current"
