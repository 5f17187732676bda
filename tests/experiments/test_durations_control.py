"""The study of control with durations: what differs between its cells, and its gates."""

from mbrl_hdp.experiments.studies import load_study, train_cell
from mbrl_hdp.experiments.studies.durations_control import PHASES
from mbrl_hdp.experiments.studies.study import CellRecord


def test_presets_are_cells_of_the_tables_and_the_variants_differ_as_they_say():
    cells = load_study("durations_control").cells(None, False)
    tables = [cell for name in ("table2", "table3") for cell in load_study(name).cells(None, False)]
    plain = [cell for cell in cells if "variant" not in cell]
    assert len(plain) == 9
    assert all(cell in tables for cell in plain)
    found = {
        (cell.get("variant"), cell.get("task", "hard")): train_cell.resolve(cell)
        for cell in cells
        if cell["seed"] == 100
    }
    assert len(found) == 6
    for place in ("hard", "drone", "intersection"):
        with_phases, without = (dict(found[variant, place]) for variant in (PHASES, None))
        assert with_phases.pop("duration")["name"] == "auto"
        assert without.pop("duration", {"name": "geometric"})["name"] == "geometric"
        assert with_phases == without


def test_gates_are_about_the_runs_with_durations():
    def record(seed, returns, **more):
        summary = {
            "returns": returns, "return_mean": sum(returns) / 2, "return_std": 1.0, "context_accuracy": 0.99,
            "wall_time_s": 90.0,
        }  # fmt: skip
        return CellRecord({"agent": "C-CEM", "seed": seed, **more}, {"summary": summary}, "c", 1.0)

    hard = [record(seed, [88.0, 88.6 + 0.1 * (seed - 100)], failure="hard", variant=PHASES) for seed in range(100, 103)]
    drone = record(100, [40.0, 40.0], task="drone")
    page = load_study("durations_control").page([*hard, drone, record(100, [1.0, 2.0], task="drone", variant=PHASES)])
    assert [(gate.found, gate.is_met) for gate in page.gates] == [("88.35, 3 seeds", True), ("1.50, 1 seeds", None)]
    assert "| C-CEM | - | 40.00 ±" in page.body
