"""The study `systems_fit`: which cells there are, what its gates ask for, one cell end to end."""

from mbrl_hdp.envs.systems import SYSTEMS
from mbrl_hdp.experiments.studies import systems_fit
from mbrl_hdp.experiments.studies.study import CellRecord


def record(settings, found=None, accuracy=1.0, seconds=10.0, verdict="sure"):
    true = 1 if settings["variant"].startswith("still") else 2
    results = {
        "found": true if found is None else found, "true": true, "accuracy": accuracy, "cpu_s": seconds,
        "dynamics": "sparse", "half_agreement": [1.0, 1.0], "verdict": verdict, "searched": 2, "runs": ["a"],
    }  # fmt: skip
    return CellRecord(settings, results, "abc", 1.0)


def missed(change):
    cells = systems_fit.cells(None, False)
    gates = systems_fit.page([change(i, cell) for i, cell in enumerate(cells)]).gates
    return [i for i, gate in enumerate(gates) if not gate.is_met]


def test_every_system_with_and_without_switching():
    cells = systems_fit.cells(None, False)
    assert len(cells) == 2 * len(SYSTEMS)
    assert {(cell["method"], cell["seed"]) for cell in cells} == {("fit", 100)}


def test_every_gate_can_be_missed():
    num = len(SYSTEMS)
    assert missed(lambda _, cell: record(cell)) == []
    assert missed(lambda _, cell: record(cell, seconds=70.0)) == [0]
    assert missed(lambda i, cell: record(cell, seconds=301.0 if i == 0 else 1.0)) == [1]
    plain = [i for i, cell in enumerate(systems_fit.cells(None, False)) if cell["variant"] == "plain"]
    assert missed(lambda i, cell: record(cell, 3 if i in plain[: num // 9] else None)) == [2]
    still = [i for i in range(2 * num) if i not in plain]
    assert missed(lambda i, cell: record(cell, 2 if i in still[: num // 10] else None)) == [3]
    assert missed(lambda _, cell: record(cell, accuracy=0.96)) == [4]
    assert missed(lambda i, cell: record(cell, accuracy=0.9 if i in plain[:4] else 1.0)) == [5]
    for verdict in ("fairly sure", "unsure"):
        low = {"accuracy": 0.9, "verdict": verdict}
        assert missed(lambda i, cell, low=low: record(cell, **(low if i in plain[:4] else {}))) == []


def test_gates_are_open_until_every_cell_is_there():
    records = [record(cell) for cell in systems_fit.cells(None, False)[1:]]
    assert {gate.is_met for gate in systems_fit.page(records).gates} == {None}


def test_a_cell_without_switching():
    found = systems_fit.run_cell(
        {"method": "fit", "system": "pendulum", "variant": "still", "seed": 1, "num_episodes": 12}
    )
    assert (found["found"], found["true"], found["accuracy"]) == (1, 1, 1.0)
    assert len(found["half_agreement"]) == 2
    assert found["dynamics"] == "sparse"
    assert found["verdict"] in ("sure", "fairly sure", "unsure")


def test_the_page_counts_how_often_each_verdict_is_right():
    cells = systems_fit.cells(None, False)
    low = record(cells[1], accuracy=0.9)
    body = systems_fit.page([record(cells[0]), low, record(cells[2], accuracy=0.9, verdict="unsure")]).body
    assert "| sure | 2 | 1 | 50% |" in body
    assert "| fairly sure | 0 | 0 | - |" in body
    assert "| unsure | 1 | 0 | 0% |" in body


def test_a_cell_is_decided_by_all_defaults_of_fit():
    identity = systems_fit.STUDY.identity(systems_fit.cells(None, False)[0])
    assert identity.config["dynamics"]["name"] == "auto"
    assert identity.config["fit"]["num_contexts"] is None
    assert identity.config["system"]
