"""The studies `twelve_fit` and `twelve_auto`: their cells, their gates, one tiny cell end to end."""

import pytest

from mbrl_hdp.experiments.studies import load_study, twelve_cell, twelve_fit
from mbrl_hdp.experiments.studies.study import CellRecord


def records(**results):
    good = {"num_contexts": 2, "accuracy": 0.999, "switch": 0.1, "true_switch": 0.1, "dynamics": "a", "searched": 2}
    cells = twelve_fit.cells(None, False)
    found = [good if cell["seed"] > 100 else good | results for cell in cells]
    return [CellRecord(cell, result | {"cpu_s": 1.0}, "c", 1.0) for cell, result in zip(cells, found, strict=True)]


@pytest.mark.parametrize("wrong", [{"num_contexts": 3}, {"num_contexts": 1}, {"accuracy": 0.98}])
def test_one_wrong_seed_misses_the_gate(wrong):
    assert [gate.is_met for gate in twelve_fit.page(records()).gates] == [True, True]
    assert [gate.is_met for gate in twelve_fit.page(records(**wrong)).gates] == [False, False]
    assert [gate.is_met for gate in twelve_fit.page(records()[2:]).gates] == [None, None]


def test_auto_is_told_nothing():
    known, auto = (load_study(name).cells(None, False) for name in ("twelve_fit", "twelve_auto"))
    assert {(cell["task"], cell["dynamics"]["name"], cell["is_dt_known"]) for cell in known} == {
        ("drone", "drone", True),
        ("intersection", "vehicle", True),
    }
    assert {(cell["dynamics"]["name"], cell["is_dt_known"]) for cell in auto} == {("auto", False)}
    assert all(cell["num_trajectories"] == 200 and cell["max_contexts"] == 10 and not cell["fit"] for cell in known)


def test_a_tiny_cell():
    (cell,) = [cell for cell in twelve_fit.cells([3], True) if cell["task"] == "intersection"]
    found = twelve_cell.run_cell(cell | {"fit": cell["fit"] | {"start": "random"}})
    assert found["dynamics"] == "vehicle"
    assert 0.4 < found["accuracy"] <= 1.0
