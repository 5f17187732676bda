"""`sparse` with Student t noise: its EM against direct maximisation, densities, draws and tables against scipy's t."""

import dataclasses

import numpy as np
import pytest
import torch
from scipy import optimize, stats

from mbrl_hdp.inference.row_density import CompiledRow
from mbrl_hdp.testing import check_dynamics
from mbrl_hdp.types import TaskSpec
from mbrl_hdp_dynamics.auto import AutoConfig
from mbrl_hdp_dynamics.regression import PRIOR_SHAPE
from mbrl_hdp_dynamics.sparse import SparseConfig, build_sparse
from mbrl_hdp_dynamics.student import likeliest_degrees, log_prior_degrees, regress_student

DEGREES = (2.5, 8.0)
SLOPES = np.array([[0.5, -1.0], [2.0, 0.25], [0.0, 1.5]])


def noisy(num_rows, seed=0):
    """One context: two targets with different tails, three inputs."""
    rng = np.random.default_rng(seed)
    obs, act = rng.normal(size=(num_rows, 2)), rng.normal(size=(num_rows, 1))
    noise = np.stack(
        [scale * rng.standard_t(degrees, num_rows) for scale, degrees in zip((0.1, 0.3), DEGREES, strict=True)], 1
    )
    change = np.concatenate([obs, act], 1) @ SLOPES + noise
    return tuple(torch.as_tensor(each) for each in (obs, act, obs + change))


def fitted(num_rows, noise="student", seed=0):
    dynamics = build_sparse(SparseConfig(noise=noise), TaskSpec(2, 2, 1, seed=1))
    rows = noisy(num_rows, seed)
    dynamics.set_normaliser(*rows)
    share = torch.zeros(num_rows, 2, dtype=torch.float64)
    share[:, 1] = 1.0
    dynamics.fit_heads(*rows, share)
    return dynamics


def density(dynamics, obs, act, slot):
    """Return the density of a step's scaled change as scipy's t."""
    with torch.no_grad():
        features = dynamics.features(obs, act)
        leverage = (features @ dynamics.factor[slot]).square().sum(-1, keepdim=True)
        scale = (dynamics.noise_variance()[slot] * (1.0 + leverage)).sqrt() * dynamics.target_scaler.scale
        mean = dynamics.target_scaler.undo(features @ dynamics.weight[slot])
    degrees = 1.0 / (1.0 / dynamics.degrees()[slot] + 0.5 / dynamics.shape[slot])
    return stats.t(df=degrees.detach().numpy(), loc=mean.numpy(), scale=scale.numpy())


def test_it_keeps_the_contract():
    check_dynamics(build_sparse(SparseConfig(terms=["x0*x1"], noise="student"), TaskSpec(3, 3, 1, seed=1)))


def test_the_optimum_is_that_of_direct_maximisation():
    """Against a minimiser that knows nothing of weights of rows; the precision of the weights' prior is negligible."""
    rng = np.random.default_rng(3)
    design = np.concatenate([np.ones((3000, 1)), rng.normal(size=(3000, 2))], 1)
    weight, floor = rng.uniform(0.2, 2.0, 3000), 0.05
    target = design @ [0.3, -1.0, 2.0] + 0.2 * rng.standard_t(3.0, 3000)
    prior_rate = PRIOR_SHAPE * floor**2

    def loss(values):
        mean, variance, degrees = values[:3], np.exp(values[3]), np.exp(values[4])
        rows = weight @ stats.t.logpdf(target, degrees, design @ mean, np.sqrt(variance))
        # log p(variance) such that the mode is rate / shape, as the regression has it
        return -(rows - PRIOR_SHAPE * np.log(variance) - prior_rate / variance + log_prior_degrees(degrees))

    best = optimize.minimize(loss, [0.0, 0.0, 0.0, 0.0, 1.0], method="BFGS", options={"gtol": 1e-6}).x
    found = regress_student(*(torch.as_tensor(each) for each in (design, target, weight)), floor)
    np.testing.assert_allclose(found.mean, best[:3], atol=2e-3)
    assert found.variance == pytest.approx(np.exp(best[3]), rel=0.01)
    assert found.degrees == pytest.approx(np.exp(best[4]), rel=0.02)


@pytest.mark.parametrize("degrees", [1.5, 3.0, 10.0])
def test_degrees_are_those_of_scipy(degrees):
    values = stats.t(df=degrees).rvs(20_000, random_state=4)
    exact = stats.t.fit(values, floc=0.0, fscale=1.0)[0]
    found = likeliest_degrees(torch.as_tensor(values).square(), torch.ones(20_000, dtype=torch.float64))
    assert found == pytest.approx(exact, rel=0.02)


def test_a_worse_start_is_not_taken():
    """One row in five lies on another line: EM that begins there, with next to no noise, would stay."""
    rng = np.random.default_rng(6)
    features = torch.as_tensor(rng.normal(size=(500, 1)))
    slope = torch.where(torch.arange(500) % 5 == 0, -1.0, 1.0).double()
    target = features[:, 0] * slope + 0.01 * torch.as_tensor(rng.normal(size=500))
    ones = torch.ones(500, dtype=torch.float64)
    found = regress_student(features, target, ones, 1e-3, start=(-torch.ones(1, dtype=torch.float64), 1e-4, 1.0))
    assert float(found.mean) == pytest.approx(1.0, abs=0.01)
    assert float(regress_student(features, target, ones, 1e-3).mean) == float(found.mean)


def test_rows_count_as_often_as_they_are_repeated():
    features, _, _ = (each[:80] for each in noisy(80))
    target = features @ torch.tensor([1.0, -0.5], dtype=torch.float64) + torch.as_tensor(
        0.2 * np.random.default_rng(5).standard_t(2.0, 80)
    )
    count = torch.arange(80) % 4
    once = regress_student(features, target, count.double(), 0.01)
    again = regress_student(
        features.repeat_interleave(count, 0),
        target.repeat_interleave(count),
        torch.ones(int(count.sum()), dtype=torch.float64),
        0.01,
    )
    torch.testing.assert_close(once.mean, again.mean)
    assert (once.variance, once.degrees) == pytest.approx((again.variance, again.degrees))


def test_heads_scales_and_degrees_are_the_true_ones():
    dynamics = fitted(6000)
    with torch.no_grad():
        weight = dynamics.weight[1] / dynamics.term_scaler.scale[:, None] * dynamics.target_scaler.scale
        scale = dynamics.noise_variance()[1].sqrt() * dynamics.target_scaler.scale
    np.testing.assert_allclose(weight[1:], SLOPES, atol=0.02)
    np.testing.assert_allclose(scale, [0.1, 0.3], rtol=0.05)
    np.testing.assert_allclose(dynamics.degrees()[1].detach(), DEGREES, rtol=0.15)


def test_the_weights_are_as_uncertain_as_rows_that_count_less_make_them():
    """With a weak prior, rows' leverages under the covariance of weighted regression sum to the number of weights."""
    dynamics, (obs, act, next_obs) = fitted(400), noisy(400)
    with torch.no_grad():
        features = dynamics.features(obs, act)
        square = (dynamics.target_scaler(next_obs - obs) - features @ dynamics.weight[1]).square()
        degrees = dynamics.degrees()[1]
        share = ((degrees + 1.0) / (degrees + square / dynamics.noise_variance()[1])).mean(-1)
        leverage = (features @ dynamics.factor[1]).square().sum(-1)
    assert float(share @ leverage) == pytest.approx(4.0, rel=1e-3)
    assert float(share.std()) > 0.2


def test_spikes_do_not_move_the_heads():
    obs, act, next_obs = noisy(1000)
    spiked = next_obs.clone()
    spiked[::50, 0] += 30.0
    share = torch.ones(1000, 1, dtype=torch.float64)
    moved = {}
    for noise in ("normal", "student"):
        models = [build_sparse(SparseConfig(noise=noise), TaskSpec(1, 2, 1)) for _ in range(2)]
        for model, after in zip(models, (next_obs, spiked), strict=True):
            model.set_normaliser(obs, act, next_obs)
            model.fit_heads(obs, act, after, share)
        moved[noise] = float((models[0].weight - models[1].weight)[..., 0].detach().abs().max())
    assert moved["student"] < 0.02 < 0.2 < moved["normal"]


def test_the_density_is_the_t_of_scipy():
    dynamics, (obs, act, next_obs) = fitted(60), noisy(30, seed=9)
    expected = density(dynamics, obs, act, 1).logpdf(next_obs - obs).sum(-1)
    found = dynamics.log_prob(obs, act, next_obs)[:, 1].detach()
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_without_heavy_tails_the_density_is_that_of_normal_noise():
    """With infinite degrees of the noise, what is left are those of the variance's posterior."""
    dynamics = fitted(40)
    with torch.no_grad():
        dynamics.degrees = lambda: torch.full((2, 2), torch.inf)
        torch.testing.assert_close(dynamics.half_degrees()[1], dynamics.shape[1].expand(2))


def test_the_table_has_the_density_of_the_model():
    dynamics, rows = fitted(60), noisy(20, seed=9)
    quick = CompiledRow(dynamics.density_table(torch.tensor([1, 0])))
    found = np.stack([quick(*(each[step].numpy() for each in rows)) for step in range(20)])
    np.testing.assert_allclose(found, dynamics.log_prob(*rows).detach().numpy()[:, [1, 0]], rtol=1e-9)


@pytest.mark.parametrize("is_block", [False, True])
def test_draws_follow_the_density(is_block):
    dynamics, (obs, act, _) = fitted(60), noisy(1, seed=9)
    num, generator = 8000, torch.Generator().manual_seed(1)
    rows = obs.expand(num, -1), act.expand(num, -1)
    with torch.no_grad():
        if is_block:
            drawn = dynamics.sample_blocks(*(each[None] for each in rows), torch.tensor([1]), generator)[0]
        else:
            drawn = dynamics.sample(*rows, torch.ones(num, dtype=torch.long), generator)
    expected = density(dynamics, obs, act, 1)
    for column in range(2):
        law = stats.t(
            df=expected.kwds["df"][column], loc=expected.kwds["loc"][0, column], scale=expected.kwds["scale"][0, column]
        )
        assert stats.kstest((drawn - obs).numpy()[:, column], law.cdf).pvalue > 1e-4


def test_drawn_rollouts_have_tails_at_every_step():
    """Weights are drawn once for a path, noise at every step: with many rows steps are independent draws of the t."""
    dynamics, (obs, act, _) = fitted(3000), noisy(1, seed=9)
    paths = torch.ones(20_000, 2, dtype=torch.long)
    with torch.no_grad():
        states = dynamics.begin_rollout(obs[0], paths, torch.Generator().manual_seed(1))(act[:1, None].expand(1, 2, 1))
        first = (states[0, :, 0] - obs[0]).numpy()
        second = (
            states[1, :, 0] - dynamics.predict(states[0, :, 0].double(), act.expand(20_000, -1), paths[:, 0])
        ).numpy()
    expected = density(dynamics, obs, act, 1)
    for column in range(2):
        df, loc, scale = (np.ravel(expected.kwds[name])[column] for name in ("df", "loc", "scale"))
        assert stats.kstest(first[:, column], stats.t(df=df, loc=loc, scale=scale).cdf).pvalue > 1e-4
        assert stats.kstest(second[:, column], stats.t(df=df, scale=scale).cdf).pvalue > 1e-4
        # A width that is drawn once for a path would make both steps large together.
        both = stats.spearmanr(np.abs(first[:, column] - loc), np.abs(second[:, column])).statistic
        assert abs(both) < 6.0 / np.sqrt(20_000)


def test_a_head_goes_on_from_where_it_is():
    """Fitted again on the same rows it stays; on others it is what a fresh one would be."""
    dynamics, rows = fitted(500), noisy(500)
    before = [value.clone() for value in dynamics.parameters()]
    share = torch.zeros(500, 2, dtype=torch.float64)
    share[:, 1] = 1.0
    dynamics.fit_heads(*rows, share)
    for old, new in zip(before, dynamics.parameters(), strict=True):
        torch.testing.assert_close(old, new, rtol=1e-2, atol=1e-2)
    other = noisy(500, seed=8)
    dynamics.fit_heads(*other, share)
    fresh = build_sparse(SparseConfig(noise="student"), TaskSpec(2, 2, 1, seed=1))
    fresh.load_state_dict({**fresh.state_dict(), **{k: v for k, v in dynamics.state_dict().items() if "scaler" in k}})
    fresh.fit_heads(*other, share)
    torch.testing.assert_close(dynamics.weight[1], fresh.weight[1], rtol=1e-2, atol=1e-2)


def test_fresh_slots_have_fresh_degrees():
    dynamics = fitted(200)
    dynamics.reset_slots(torch.tensor([1]))
    np.testing.assert_allclose(dynamics.degrees().detach(), 5.0)


def test_auto_offers_heavy_tails_once():
    (name, config), *none = AutoConfig(sparse=SparseConfig(std_floor=0.01)).for_noise("student")
    assert (name, config) == ("sparse", SparseConfig(std_floor=0.01, noise="student"))
    assert none == []
    for settings in ({"heavy_tails": False}, {"models": ["linear"]}, {"sparse": SparseConfig(noise="student")}):
        assert dataclasses.replace(AutoConfig(), **settings).for_noise("student") == []
