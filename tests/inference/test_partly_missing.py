"""A transition with a missing sensor still informs through the others."""

import numpy as np
import pytest
import torch

from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.hooks import load_registry
from mbrl_hdp.inference.elbo import step_log_lik
from mbrl_hdp.inference.episodes import EpisodeTensors
from mbrl_hdp.types import TaskSpec


@pytest.fixture(scope="module")
def dynamics():
    registry = load_registry()
    task = TaskSpec(max_contexts=3, obs_dim=2, act_dim=1, seed=0)
    model = registry.build_dynamics("delta_mlp", task, registry.get("dynamics", "delta_mlp").spec.config())
    rng = np.random.default_rng(0)
    obs = torch.as_tensor(rng.normal(size=(50, 2)) * [1.0, 30.0], dtype=torch.float32)
    change = torch.as_tensor(rng.normal(size=(50, 2)) * [0.5, 7.0], dtype=torch.float32)
    model.set_normaliser(obs, torch.randn(50, 1), obs + change)
    with torch.no_grad():
        model.raw_log_std.copy_(torch.tensor([[-0.3, -1.0], [0.2, -0.5], [-0.7, 0.1]]))
    return model


def test_the_missing_sensor_is_integrated_out(dynamics):
    obs, act = torch.tensor([[0.3, 12.0]]), torch.tensor([[0.5]])
    grid = torch.linspace(-150.0, 170.0, 20001)
    rows = torch.stack([torch.full_like(grid, 0.9), grid], -1)
    with torch.no_grad():
        joint = dynamics.log_prob(obs.expand(len(grid), -1), act.expand(len(grid), -1), rows)
        wanted = joint.double().logsumexp(0) + np.log(320.0 / 20000)
        found = dynamics.log_prob_seen(obs, act, torch.tensor([[0.9, torch.nan]]))[0]
        some = dynamics.log_prob_seen(obs, act, torch.tensor([[0.9, torch.nan]]), torch.tensor([2, 0]))[0]
    torch.testing.assert_close(found.double(), wanted, rtol=0, atol=1e-4)
    torch.testing.assert_close(some, found[[2, 0]])


@pytest.mark.parametrize("noise", ["normal", "student", "full"])
def test_sparse_heads_integrate_it_out_as_well(noise):
    registry, rng = load_registry(), np.random.default_rng(0)
    config = registry.get("dynamics", "sparse").spec.config(noise=noise)
    model = registry.build_dynamics("sparse", TaskSpec(max_contexts=2, obs_dim=2, act_dim=1, seed=0), config)
    obs, act = (torch.as_tensor(rng.normal(size=(60, width)), dtype=torch.float32) for width in (2, 1))
    change = torch.cat([0.5 * act, -7.0 * act], -1) + torch.as_tensor(rng.normal(size=(60, 2)) * [0.1, 2.0]).float()
    rows = obs, act, obs + change
    model.set_normaliser(*rows)
    model.fit_heads(*rows, torch.as_tensor(rng.dirichlet([1.0, 1.0], 60)))
    grid = torch.linspace(-300.0, 300.0, 60001)
    many = torch.stack([torch.full_like(grid, 0.4), grid], -1)
    start, push, seen = torch.tensor([[0.3, 1.0]]), torch.tensor([[0.5]]), torch.tensor([[0.4, torch.nan]])
    with torch.no_grad():
        joint = model.log_prob(start.expand(len(grid), -1), push.expand(len(grid), -1), many)
        wanted = joint.double().logsumexp(0) + np.log(0.01)
        found = model.log_prob_seen(start, push, seen)[0]
        some = model.log_prob_seen(start, push, seen, torch.tensor([1]))[0]
        whole = model.log_prob_seen(*(each[:5] for each in rows))
    torch.testing.assert_close(found.double(), wanted, rtol=0, atol=2e-3 if noise == "normal" else 2e-2)
    assert abs(float(found[0] - found[1])) > 0.01
    torch.testing.assert_close(some, found[[1]])
    torch.testing.assert_close(whole, model.log_prob(*(each[:5] for each in rows)).detach())


def test_a_hole_costs_one_change_not_two_transitions(dynamics):
    rng = np.random.default_rng(1)
    obs = rng.normal(size=(2, 9, 2)) * [1.0, 30.0]
    act = rng.normal(size=(2, 8, 1))
    holey = obs.copy()
    holey[0, 4, 1] = np.nan
    whole = step_log_lik(dynamics, EpisodeTensors.of(Trajectories(obs, act)).batch()).detach()
    found = step_log_lik(dynamics, EpisodeTensors.of(Trajectories(holey, act, allow_missing=True)).batch()).detach()
    changed = (found != whole).any(-1)
    assert changed.nonzero().tolist() == [[0, 3], [0, 4]]
    assert (found[changed] != 0).all()
    # Into the hole: the same start, the first column's density alone. Out of it: from the mean of the neighbours.
    start = torch.tensor(obs[0, 3:5], dtype=torch.float32)
    start[1, 1] = 0.5 * float(obs[0, 3, 1] + obs[0, 5, 1])
    after = torch.tensor(obs[0, 4:6], dtype=torch.float32)
    after[:, 1] = torch.nan
    wanted = dynamics.log_prob_seen(start, torch.tensor(act[0, 3:5], dtype=torch.float32), after).detach()
    torch.testing.assert_close(found[0, 3:5], wanted)


def test_three_percent_of_missing_cells_drop_few_transitions(dynamics):
    rng = np.random.default_rng(2)
    obs = rng.normal(size=(6, 200, 2))
    obs[rng.random(obs.shape) < 0.03] = np.nan
    data = Trajectories(obs, np.zeros((6, 199, 1)), allow_missing=True)
    log_lik = step_log_lik(dynamics, EpisodeTensors.of(data).batch())
    carries = (log_lik != 0).any(-1).numpy()
    assert (~data.is_observed).mean() > 0.09
    assert (~carries).mean() < 0.02
    assert not carries[~data.is_step].any()


def test_models_that_cannot_marginalise_leave_such_rows_out(dynamics, monkeypatch):
    monkeypatch.setattr(type(dynamics), "log_prob_seen", lambda *_: None)
    obs = np.random.default_rng(3).normal(size=(1, 5, 2))
    obs[0, 2, 0] = np.nan
    data = Trajectories(obs, np.zeros((1, 4, 1)), allow_missing=True)
    log_lik = step_log_lik(dynamics, EpisodeTensors.of(data).batch())
    assert (log_lik != 0).any(-1).tolist() == data.is_observed.tolist() == [[True, False, False, True]]
