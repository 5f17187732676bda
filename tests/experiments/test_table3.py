"""The study of the drone and the intersection: its presets are its cells, and what its page reports."""

import pytest

from mbrl_hdp.experiments.config import check_config, config_dir, load_config
from mbrl_hdp.experiments.loop import run_budget
from mbrl_hdp.experiments.studies import load_study, table3, train_cell
from mbrl_hdp.experiments.studies.study import CellRecord
from mbrl_hdp.experiments.studies.table3 import episodes_to_share
from mbrl_hdp.hooks import load_registry


def record(agent, task, seed, returns, **more):
    summary = {
        "returns": returns, "return_mean": sum(returns) / len(returns), "return_std": 1.0, "num_real_episodes": 240,
        "num_contexts": 2, "context_accuracy": 1.0, "scores": {"tilt_mean": 0.25}, "wall_time_s": 90.0, **more,
    }  # fmt: skip
    curve = [[200, 20.0, 9.0], [220, 28.0, 12.0]]
    return CellRecord({"agent": agent, "task": task, "seed": seed}, {"summary": summary, "curve": curve}, "c", 1.0)


def test_every_cell_is_a_preset_and_the_papers_numbers_are_beside_it():
    cells = load_study("table3").cells(None, False)
    assert len(cells) == 4 * 2 * 3
    by_preset = {train_cell.preset_of(cell): cell for cell in cells}
    assert len(by_preset) == 8
    config = check_config(load_config(["experiment=drone_c_cem"]))
    assert (config.planner.horizon, config.profile, config.env.kwargs["backend"]) == (4, "fast", "pybullet")
    paper = check_config(load_config(["experiment=paper/drone_c_sac"]))
    assert (paper.prior.top_concentration, paper.prior.row_concentration, paper.prior.stickiness) == (1, 5000, 3)
    assert (paper.agent.discount, paper.agent.temperature_lr, paper.profile) == (0.999, 1e-4, "paper")


def test_the_page_has_gates_only_for_what_has_run():
    records = [record("C-CEM", "drone", seed, [29.0, 31.0 + seed - 100]) for seed in (100, 101, 102)]
    page = load_study("table3").page([*records, record("C-SAC", "drone", 100, [1.0, 2.0])])
    assert [(gate.found, gate.is_met) for gate in page.gates] == [("30.50, 3 seeds", True), ("1.50, 1 seeds", None)]
    assert "| C-CEM, ours | 30.50 ±" in page.body
    assert "tilt_mean 0.25" in page.body
    assert "| 240 (220) |" in page.body


def test_the_papers_number_of_episodes_is_that_of_its_presets():
    for task in ("drone", "intersection"):
        for agent, name in train_cell.AGENTS.items():
            config = check_config(load_config([f"experiment=paper/{task}_{name}"]))
            budget = run_budget(config, load_registry())
            later = (budget.num_epochs - 1) * budget.episodes_per_epoch
            assert budget.warm_episodes + later == table3.PAPER_EPISODES[agent]


def test_episodes_to_a_share_of_the_final_return():
    curve = [[200, 20.0, 9.0], [220, 28.0, 12.0], [240, 27.0, 15.0]]
    assert episodes_to_share(curve, 30.0) == 220
    assert episodes_to_share(curve, 30.0, share=0.5) == 200
    assert episodes_to_share(curve, 40.0) is None
    assert episodes_to_share(curve, -5.0) is None


@pytest.mark.parametrize("task", ["drone", "intersection"])
def test_every_agent_has_presets(task):
    """That each composes, and into what its name says, is tested for all presets at once (test_config.py)."""
    for agent in ("c_cem", "c_sac", "fi_sac", "ni_sac"):
        for name in (f"{task}_{agent}", f"paper/{task}_{agent}"):
            assert (config_dir() / "experiment" / f"{name}.yaml").is_file(), name
