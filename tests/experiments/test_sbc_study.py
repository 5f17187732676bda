"""Simulation-based calibration: the machinery on a case whose posterior is known, and its statistics."""

import numpy as np
import pytest
import torch
from scipy.stats import chi2

from mbrl_hdp.experiments.studies import sbc, sbc_cell
from mbrl_hdp.experiments.studies.study import CellRecord
from mbrl_hdp.hooks import load_registry
from mbrl_hdp.types import ContextChain, TaskSpec

SEEN = next(cell for cell in sbc.cells([7], False) if cell["case"] == "seen")


def test_where_contexts_are_seen_the_posterior_is_prior_plus_counts():
    settings = SEEN | {"num_draws": 1}
    registry = load_registry()
    prior = registry.build_prior("dirichlet", TaskSpec(3, 1, 0), sbc_cell.part(registry, "prior", SEEN["prior"]).config)
    start = prior.q_rows().detach().clone()
    chain = ContextChain(
        torch.tensor([0.2, 0.5, 0.3]), torch.tensor([[0.8, 0.1, 0.1], [0.3, 0.6, 0.1], [0.2, 0.1, 0.7]])
    )
    data = sbc_cell.simulate(chain, settings, np.random.default_rng(0))
    sbc_cell.learn(prior, data, settings, 0, registry.build_distillation("stationary", TaskSpec(3, 1, 0)))
    counts = np.zeros((4, 3))
    np.add.at(counts, (0, data.context[:, 0]), 1.0)
    np.add.at(counts, (1 + data.context[:, :-1].ravel(), data.context[:, 1:].ravel()), 1.0)
    np.testing.assert_allclose(prior.q_rows().detach().numpy(), start.numpy() + counts, rtol=1e-3, atol=1e-2)


def test_ranks_are_uniform_in_the_conjugate_case():
    found = sbc_cell.run(SEEN | {"num_simulations": 60, "num_draws": 19, "num_steps": 15})
    for name, ranks in found["ranks"].items():
        assert len(ranks) == 60
        counts = np.bincount(np.asarray(ranks) // 5, minlength=4)
        statistic = np.square(counts - 15.0).sum() / 15.0
        assert chi2.sf(statistic, 3) > 1e-3, name


def test_an_overconfident_posterior_is_seen():
    rng = np.random.default_rng(3)
    truth = rng.standard_normal(400)
    wide, narrow = ((scale * rng.standard_normal((400, 99)) < truth[:, None]).sum(1) for scale in (1.0, 0.4))
    assert sbc.uniformity(wide, 99) > 1e-3
    assert sbc.uniformity(narrow, 99) < 1e-6
    assert sbc_cell.is_inside(narrow, 99, 0.8).mean() < 0.6
    assert sbc_cell.is_inside(wide, 99, 0.8).mean() == pytest.approx(0.8, abs=0.06)


def test_the_interval_of_ranks_holds_its_share():
    every = np.arange(100)
    assert [int(sbc_cell.is_inside(every, 99, level).sum()) for level in sbc_cell.COVERAGES] == [50, 80, 96]


def test_the_page_counts_simulations_and_judges_the_exact_case():
    ranks = {"stay in 0": list(range(0, 100)) * 2}
    cell = next(cell for cell in sbc.cells([100], False) if cell["case"] == "seen")
    page = sbc.page([CellRecord(cell, {"ranks": ranks, "num_draws": 99}, "abc", 1.0)])
    assert [gate.is_met for gate in page.gates] == [True, True]
    piled = {"stay in 0": [50] * 200}
    assert sbc.page([CellRecord(cell, {"ranks": piled, "num_draws": 99}, "abc", 1.0)]).gates[1].is_met is False
