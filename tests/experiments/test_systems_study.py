"""The study `systems`: which cells there are, and what its gates ask for."""

from mbrl_hdp.envs.systems import SYSTEMS, VARIANTS
from mbrl_hdp.experiments.studies import systems
from mbrl_hdp.experiments.studies.study import CellRecord


def record(settings, found=None, accuracy=1.0, seconds=10.0):
    true = 1 if settings["variant"].startswith("still") else 2
    results = {
        "found": true if found is None else found, "true": true, "accuracy": accuracy, "cpu_s": seconds,
        "regions": [0.0], "history": [],
    }  # fmt: skip
    return CellRecord(settings, results, "abc", 1.0)


def verdicts(records):
    return [gate.is_met for gate in systems.page(records).gates]


def test_plain_cells_have_five_seeds_and_variants_one():
    cells = systems.cells(None, False)
    plain = [cell for cell in cells if cell["variant"] == "plain"]
    assert len(plain) == 5 * len(SYSTEMS)
    assert {cell["seed"] for cell in plain} == {100, 101, 102, 103, 104}
    assert len(cells) - len(plain) == (len(VARIANTS) - 1) * len(SYSTEMS)
    assert [cell["system"].startswith("mujoco") for cell in cells] == sorted(
        cell["system"].startswith("mujoco") for cell in cells
    )


def test_gates_are_open_until_every_cell_is_there_and_then_met():
    records = [record(cell) for cell in systems.cells(None, False)]
    assert verdicts(records) == [True] * 7
    assert verdicts(records[1:]) == [None] * 7


def test_every_gate_can_be_missed():
    cells = systems.cells(None, False)
    moving = [i for i, cell in enumerate(cells) if not cell["variant"].startswith("still")]
    still = [i for i, cell in enumerate(cells) if cell["variant"].startswith("still")]
    few, many = set(moving[: len(moving) // 10 - 1]), set(moving[: len(moving) // 9 + 1])
    some = set(still[: len(still) // 20 + 1])

    def missed(change):
        return [i for i, met in enumerate(verdicts([change(i, cell) for i, cell in enumerate(cells)])) if not met]

    assert missed(lambda i, cell: record(cell, 3 if i in few else None)) == []
    assert missed(lambda i, cell: record(cell, 3 if i in many else None)) == [0, 1]
    assert missed(lambda i, cell: record(cell, accuracy=0.6 if i in many else 1.0)) == [1]
    assert missed(lambda _, cell: record(cell, accuracy=0.97)) == [2]
    assert missed(lambda i, cell: record(cell, 2 if i in some else None)) == [3]
    assert missed(lambda i, cell: record(cell, 4 if i == moving[0] else None)) == [4]
    assert missed(lambda _, cell: record(cell, seconds=70.0)) == [5]
    assert missed(lambda i, cell: record(cell, seconds=301.0 if i == 0 else 1.0)) == [6]


def test_failures_come_first_worst_first():
    cells = systems.cells(None, False)[:3]
    body = systems.page([record(cells[0]), record(cells[1], 3, 0.8), record(cells[2], 2, 0.5)]).body
    shown = body.index("## Failures")
    assert shown < body.index(f"| {cells[2]['system']} |", shown) < body.index(f"| {cells[1]['system']} |", shown)
    assert shown < body.index("## Every cell")
