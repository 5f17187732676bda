"""The simulated cluster against answers that are known."""

import math

import numpy as np
import pytest

from benchmarks.cluster_model import Cell, ClusterModel, Simulation, expected_seconds, simulate
from benchmarks.cluster_plan import measured_seconds, planned_cells


def test_without_faults_it_is_list_scheduling():
    cells = [Cell(2, 5.0)] * 7  # ten seconds each, three cores: three rounds
    assert simulate(ClusterModel(1, 3), cells, 0).makespan_s == 30.0
    uneven = [Cell(1, 4.0), Cell(1, 3.0), Cell(1, 3.0), Cell(1, 2.0)]  # longest first: 4+2 and 3+3
    assert simulate(ClusterModel(2, 1), uneven, 0).makespan_s == 6.0
    assert simulate(ClusterModel(1, 1, start_s=1.5), uneven, 0).makespan_s == 12.0 + 4 * 1.5


def test_the_store_writes_one_checkpoint_at_a_time():
    """Three cores end an epoch at the same time: the last one waits for two others, and later they come in turn."""
    found = simulate(ClusterModel(1, 3, checkpoint_s=2.0), [Cell(2, 10.0)] * 3, 0)
    assert found.longest_wait_s == 4.0
    assert found.store_s == 12.0
    assert found.makespan_s == 10.0 + 6.0 + 10.0 + 2.0


@pytest.mark.parametrize(("epochs", "epoch_s", "rate"), [(1, 1800.0, 1.0), (6, 300.0, 4.0)])
def test_deaths_cost_what_the_closed_form_says(epochs, epoch_s, rate):
    """A renewal argument: with memoryless deaths an epoch of t seconds takes (exp(r t) - 1) / r on average."""
    cell, model = Cell(epochs, epoch_s), ClusterModel(1, 1, worker_deaths=rate)
    found = np.array([simulate(model, [cell], seed).makespan_s for seed in range(2000)])
    wanted = expected_seconds(cell, rate)
    assert wanted == pytest.approx(epochs * math.expm1(rate * epoch_s / 3600) / (rate / 3600))
    assert abs(found.mean() - wanted) < 6 * found.std() / np.sqrt(len(found))
    assert wanted > 1.1 * cell.seconds


def test_nothing_is_lost_but_what_was_begun():
    model = ClusterModel(3, 2, worker_deaths=3.0, machine_deaths=0.5, checkpoint_s=0.5)
    found = simulate(model, [Cell(5, 200.0)] * 20, 3)
    assert found.num_deaths > 5
    useful = 20 * 5 * 200.0
    assert found.busy_s - found.lost_s == pytest.approx(useful, rel=0.05)  # and some waiting for the store
    assert found.busy_s - found.lost_s >= useful


def test_an_absent_machine_does_no_work():
    cells = [Cell(1, 100.0)] * 4
    for is_away, wanted in ((False, 200.0), (True, 400.0)):
        simulation = Simulation(ClusterModel(2, 1), cells, np.random.default_rng(0))
        simulation.is_away[0] = is_away
        assert simulation.run().makespan_s == wanted


def test_the_plan_s_cells_are_those_of_the_study():
    cells = planned_cells(2, measured_seconds(), np.random.default_rng(0))
    assert len(cells) == 2 * 4 * 4 + 1
    assert all(cell.num_epochs > 1 and cell.epoch_s > 0 for cell in cells)
