"""The study `scaling`: exponents of growth and its gates."""

import pytest

from mbrl_hdp.experiments.studies import scaling
from mbrl_hdp.experiments.studies.study import CellRecord


def record(cell, seconds):
    number = cell.get("num_contexts", 2)
    size = 100 * cell["num_episodes"]
    results = {"found": number, "true": number, "accuracy": 1.0, "cpu_s": seconds, "num_transitions": size}
    return CellRecord(cell, results, "abc", 1.0)


def test_the_exponent_of_a_power_is_found():
    assert scaling.exponent([2, 4, 8], [3.0, 12.0, 48.0]) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("by_size", "by_number", "verdicts"),
    [(1.0, 2.0, [True, True]), (1.3, 2.0, [False, True]), (0.5, 2.4, [True, False])],
)
def test_gates_ask_for_linear_and_quadratic_growth(by_size, by_number, verdicts):
    records = [
        record(cell, cell["num_contexts"] ** by_number if "num_contexts" in cell else cell["num_episodes"] ** by_size)
        for cell in scaling.cells(None, False)
    ]
    assert [gate.is_met for gate in scaling.page(records).gates] == verdicts
    assert scaling.page(records[1:]).gates[0].is_met is None
