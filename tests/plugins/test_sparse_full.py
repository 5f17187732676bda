"""`sparse` with correlated noise: heads, densities, draws and tables against numpy and scipy."""

import dataclasses

import numpy as np
import pytest
import torch
from scipy import stats

from mbrl_hdp.inference.row_density import CompiledRow
from mbrl_hdp.testing import check_dynamics
from mbrl_hdp.types import TaskSpec
from mbrl_hdp_dynamics.auto import AutoConfig
from mbrl_hdp_dynamics.sparse import SparseConfig, build_sparse

COVARIANCE = np.array([[0.04, -0.05, 0.0], [-0.05, 0.09, 0.01], [0.0, 0.01, 0.01]])
SLOPES = np.array([[0.5, -1.0, 0.0], [2.0, 0.25, 0.3], [0.0, 1.5, -1.0], [1.0, 0.0, 0.7]])


def noisy(num_rows, seed=0):
    """One context: three targets with correlated noise, four inputs."""
    rng = np.random.default_rng(seed)
    obs, act = rng.normal(size=(num_rows, 3)), rng.normal(size=(num_rows, 1))
    noise = rng.multivariate_normal(np.zeros(3), COVARIANCE, num_rows)
    change = np.concatenate([obs, act], 1) @ SLOPES + noise
    return tuple(torch.as_tensor(each) for each in (obs, act, obs + change))


def fitted(num_rows, noise="full", seed=0):
    dynamics = build_sparse(SparseConfig(noise=noise), TaskSpec(2, 3, 1, seed=1))
    rows = noisy(num_rows, seed)
    dynamics.set_normaliser(*rows)
    share = torch.zeros(num_rows, 2, dtype=torch.float64)
    share[:, 1] = 1.0
    dynamics.fit_heads(*rows, share)
    return dynamics


def covariance(dynamics, slot):
    """Return the noise covariance in the data's units."""
    scale = dynamics.target_scaler.scale
    return (dynamics.noise_covariance()[slot] * scale[:, None] * scale).detach().numpy()


def test_it_keeps_the_contract():
    check_dynamics(build_sparse(SparseConfig(terms=["x0*x1"], noise="full"), TaskSpec(3, 3, 1, seed=1)))


def test_heads_and_covariance_are_the_true_ones():
    dynamics = fitted(20_000)
    with torch.no_grad():
        weight = dynamics.weight[1] / dynamics.term_scaler.scale[:, None] * dynamics.target_scaler.scale
        slopes = weight[1:] / dynamics.input_scaler.scale[:, None]
    np.testing.assert_allclose(slopes, SLOPES, atol=0.01)
    np.testing.assert_allclose(covariance(dynamics, 1), COVARIANCE, atol=0.002)
    std = dynamics.noise_std()[1].detach() * dynamics.target_scaler.scale
    np.testing.assert_allclose(std, np.sqrt(np.diag(COVARIANCE)), rtol=0.02)


def test_the_covariance_is_that_of_the_rows_that_count():
    """Few rows of unequal weight, against the formula with inverses."""
    dynamics, rows = build_sparse(SparseConfig(noise="full"), TaskSpec(1, 3, 1, seed=1)), noisy(60)
    dynamics.set_normaliser(*rows)
    share = torch.as_tensor(np.random.default_rng(1).uniform(0.2, 3.0, (60, 1)))
    dynamics.fit_heads(*rows, share)
    with torch.no_grad():
        x = dynamics.features(*rows[:2]).numpy()
        y = dynamics.target_scaler(rows[2] - rows[0]).numpy()
        inner = np.linalg.inv((dynamics.factor[0] @ dynamics.factor[0].T).numpy())
    counts = np.diag(share[:, 0].numpy())
    scatter = y.T @ counts @ y - y.T @ counts @ x @ np.linalg.solve(inner, x.T @ counts @ y)
    floor = dynamics.config.std_floor**2
    expected = (0.5 * floor * np.eye(3) + 0.5 * scatter) / (0.5 + 0.5 * share.sum().item()) + floor * np.eye(3)
    np.testing.assert_allclose(dynamics.noise_covariance()[0].detach(), expected, rtol=1e-8)


def test_the_density_of_many_rows_is_normal():
    dynamics, (obs, act, next_obs) = fitted(50_000), noisy(30, seed=9)
    mean = dynamics.predict(obs, act, torch.ones(30, dtype=torch.long)).detach().numpy()
    expected = stats.multivariate_normal(np.zeros(3), covariance(dynamics, 1)).logpdf(next_obs.numpy() - mean)
    np.testing.assert_allclose(dynamics.log_prob(obs, act, next_obs)[:, 1].detach(), expected, atol=5e-3)


def test_the_density_integrates_to_one_where_rows_are_few():
    """Importance sampling with a wider t: its mean weight is the integral."""
    dynamics, (obs, act, _) = fitted(25), noisy(1, seed=9)
    mean = dynamics.predict(obs, act, torch.ones(1, dtype=torch.long)).detach().numpy()[0]
    wide = stats.multivariate_t(mean, 1.5 * covariance(dynamics, 1), df=4, seed=2)
    drawn = wide.rvs(100_000)
    found = dynamics.log_prob(obs.expand(100_000, -1), act.expand(100_000, -1), torch.as_tensor(drawn))[:, 1].detach()
    weight = np.exp(found.numpy() - wide.logpdf(drawn))
    assert abs(weight.mean() - 1.0) < 6.0 * weight.std() / np.sqrt(100_000)
    assert weight.std() < 2.0


def test_without_correlation_it_is_the_density_of_normal_noise():
    full, plain = fitted(40), fitted(40, noise="normal")
    rows = noisy(20, seed=9)
    assert float((full.log_prob(*rows) - plain.log_prob(*rows))[:, 1].detach().abs().max()) > 0.1
    with torch.no_grad():
        full.lower.zero_()
        full.log_variance.copy_(plain.log_variance)
    torch.testing.assert_close(full.log_prob(*rows), plain.log_prob(*rows))


def test_missing_columns_are_integrated_out():
    dynamics, (obs, act, next_obs) = fitted(20_000), noisy(6, seed=9)
    mean = dynamics.predict(obs, act, torch.ones(6, dtype=torch.long)).detach().numpy()
    patterns = [[0], [2], [1, 2], [0, 2], [0, 1, 2], []]
    holey = torch.full_like(next_obs, torch.nan)
    for row, seen in enumerate(patterns):
        holey[row, seen] = next_obs[row, seen]
    found = dynamics.log_prob_seen(obs, act, holey)[:, 1].detach()
    noise = covariance(dynamics, 1)
    for row, seen in enumerate(patterns[:-1]):
        part = stats.multivariate_normal(mean[row, seen], noise[np.ix_(seen, seen)])
        assert float(found[row]) == pytest.approx(part.logpdf(next_obs[row, seen].numpy()), abs=5e-3)
    assert float(found[-1]) == 0.0
    some = dynamics.log_prob_seen(obs, act, holey, torch.tensor([1]))[:, 0].detach()
    torch.testing.assert_close(some, found)


def test_constant_columns_carry_no_density():
    obs, act, next_obs = noisy(300)
    wide = [torch.cat([each[:, :1], torch.full((300, 1), 7.0), each[:, 1:]], -1) for each in (obs, next_obs)]
    values = []
    for width, (first, then) in zip((3, 4), ((obs, next_obs), wide), strict=True):
        model = build_sparse(SparseConfig(noise="full"), TaskSpec(1, width, 1))
        model.set_normaliser(first, act, then)
        model.fit_heads(first, act, then, torch.ones(300, 1))
        values.append(model.log_prob(first, act, then).detach())
    torch.testing.assert_close(*values, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", ["rows", "blocks", "rollouts"])
def test_draws_are_correlated_as_the_noise_is(kind):
    dynamics, (obs, act, _) = fitted(20_000), noisy(1, seed=9)
    num, generator = 40_000, torch.Generator().manual_seed(1)
    rows, slot = (obs.expand(num, -1), act.expand(num, -1)), torch.ones(num, dtype=torch.long)
    with torch.no_grad():
        if kind == "rows":
            drawn = dynamics.sample(*rows, slot, generator)
        elif kind == "blocks":
            drawn = dynamics.sample_blocks(*(each[None] for each in rows), slot[:1], generator)[0]
        else:
            drawn = dynamics.begin_rollout(obs[0], slot[:, None], generator)(act[:1, None])[0, :, 0]
    found, expected = np.cov((drawn.double() - obs).T.numpy()), covariance(dynamics, 1)
    variances = np.diag(expected)
    error = np.sqrt((np.outer(variances, variances) + expected**2) / num)
    assert (np.abs(found - expected) < 6.0 * error).all()


def test_uncertain_weights_are_correlated_as_the_noise_is():
    """With few rows a drawn path differs from the mean mostly by its weights, far from the data."""
    dynamics, num = fitted(30), 40_000
    obs, act = torch.full((1, 3), 20.0, dtype=torch.float64), torch.full((1, 1), -20.0, dtype=torch.float64)
    with torch.no_grad():
        leverage = float((dynamics.features(obs, act) @ dynamics.factor[1]).square().sum())
        rolled = dynamics.begin_rollout(obs[0], torch.ones(num, 1, dtype=torch.long), torch.Generator().manual_seed(1))
        drawn = rolled(act[:1, None])[0, :, 0].double()
    assert leverage > 20.0
    found, expected = np.corrcoef((drawn - obs).T.numpy()), covariance(dynamics, 1)
    std = np.sqrt(np.diag(expected))
    np.testing.assert_allclose(found, expected / np.outer(std, std), atol=0.03)


def test_the_table_has_the_density_of_the_model():
    dynamics, rows = fitted(60), noisy(20, seed=9)
    quick = CompiledRow(dynamics.density_table(torch.tensor([1, 0])))
    found = np.stack([quick(*(each[step].numpy() for each in rows)) for step in range(20)])
    np.testing.assert_allclose(found, dynamics.log_prob(*rows).detach().numpy()[:, [1, 0]], rtol=1e-9)


def test_equations_name_the_noise_of_each_column():
    lines = fitted(20_000).equations(torch.tensor([1]))[0]
    found = [float(line.rpartition("(noise ")[2].rstrip(")")) for line in lines]
    np.testing.assert_allclose(found, np.sqrt(np.diag(COVARIANCE)), rtol=0.05)


def test_fresh_slots_have_no_correlation():
    dynamics = fitted(200)
    assert float(dynamics.lower[1].detach().abs().max()) > 0.1
    dynamics.reset_slots(torch.tensor([1]))
    assert float(dynamics.lower.detach().abs().max()) == 0.0


def test_auto_offers_correlated_noise_once():
    (name, config), *none = AutoConfig(sparse=SparseConfig(std_floor=0.01)).for_noise("full")
    assert (name, config) == ("sparse", SparseConfig(std_floor=0.01, noise="full"))
    assert none == []
    for settings in ({"correlated_noise": False}, {"models": ["linear"]}, {"sparse": SparseConfig(noise="full")}):
        assert dataclasses.replace(AutoConfig(), **settings).for_noise("full") == []
