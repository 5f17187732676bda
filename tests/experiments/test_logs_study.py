"""The study `logs`: which cells there are, what its gates ask for, how its page lists failures."""

from __future__ import annotations

from typing import Any

from mbrl_hdp.envs.recordings import RECORDINGS
from mbrl_hdp.experiments.studies import logs
from mbrl_hdp.experiments.studies.study import CellRecord


def result(cell: dict[str, Any], found: int = 2, accuracy: float = 1.0, verdict: str = "sure") -> CellRecord:
    """Return a cell with two true contexts."""
    results = {
        "found": found, "true": 2, "accuracy": accuracy, "verdict": verdict, "doubts": [], "past": 0, "start": "search",
        "dynamics": "sparse", "searched": 2, "cpu_s": 10.0,
    }  # fmt: skip
    return CellRecord(cell, results, "abc", 1.0)


def test_every_log_with_both_seeds() -> None:
    cells = logs.cells(None, False)
    assert len(cells) == 2 * len(RECORDINGS)
    assert {cell["seed"] for cell in cells} == {100, 101}


def test_gates_can_be_missed_and_stay_open_until_all_is_there() -> None:
    cells = logs.cells(None, False)
    assert [gate.is_met for gate in logs.page([result(cell) for cell in cells]).gates] == [True, True]
    too_many = len(cells) // 4 + 1
    wrong = [result(cell, found=3, accuracy=0.5, verdict="unsure") for cell in cells[:too_many]]
    gates = logs.page(wrong + [result(cell) for cell in cells[too_many:]]).gates
    assert [gate.is_met for gate in gates] == [False, True]
    lies = [result(cell, accuracy=0.9) for cell in cells[:2]]
    assert [gate.is_met for gate in logs.page(lies + [result(cell) for cell in cells[2:]]).gates] == [True, False]
    assert {gate.is_met for gate in logs.page([result(cell) for cell in cells[1:]]).gates} == {None}


def test_failures_come_first_and_every_log_is_described() -> None:
    cells = logs.cells(None, False)
    body = logs.page([result(cells[0]), result(cells[1], accuracy=0.4)]).body
    assert body.index("0.4000") < body.index("1.0000")
    assert all(f"- {name}: " in body for name in RECORDINGS)
