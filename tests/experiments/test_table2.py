"""Table 2's page: gates that can fail, curves read as written."""

import pytest

from mbrl_hdp.experiments.studies import load_study, table2
from mbrl_hdp.experiments.studies.study import CellRecord


def record(agent, failure, seed, value, episodes=160, curve=None, profile="fast"):
    summary = {
        "returns": [value - 1.0, value + 1.0], "return_mean": value, "return_std": 1.4, "num_real_episodes": episodes,
        "num_contexts": 2, "context_accuracy": 0.98, "switch_delay": 0.2, "wall_time_s": 90.0,
        "switch_loss": {"known_return_mean": value + 1, "return_lost_per_switch": 0.1},
        "time_breakdown_s": {"env": 1.0, "act": 2.0, "model": 3.0, "agent": 0.0, "evaluate": 4.0},
    }  # fmt: skip
    settings = {"agent": agent, "failure": failure, "profile": profile, "seed": seed, "overrides": []}
    return CellRecord(settings, {"summary": summary, "curve": curve or [[100, value, 30.0]]}, "abc", 1.0)


def gates(records):
    return {gate.name: gate.is_met for gate in table2.page(records).gates}


def test_a_gate_is_on_the_mean_of_three_seeds_and_on_the_episodes():
    name = "C-CEM, hard: at least 87 within 240 episodes"
    assert gates([record("C-CEM", "hard", s, v) for s, v in ((100, 86.5), (101, 87.5), (102, 87.6))])[name] is True
    assert gates([record("C-CEM", "hard", s, v) for s, v in ((100, 84.0), (101, 87.5), (102, 87.6))])[name] is False
    assert gates([record("C-CEM", "hard", s, 90.0, 241) for s in (100, 101, 102)])[name] is False
    assert gates([record("C-CEM", "hard", s, 90.0) for s in (100, 101)])[name] is None


def test_the_run_with_the_paper_s_budget_has_a_gate_of_its_own():
    name = "C-SAC, hard, profile=paper, seed 100: at least 85.4 within 600 episodes"
    for value, episodes, is_met in ((85.5, 599, True), (85.3, 599, False), (86.0, 601, False)):
        found = gates([record("C-SAC", "hard", 100, value, episodes, profile="paper")])
        assert found == {name: is_met}


def test_a_collapse_is_seen():
    name = "C-CEM, hard: no evaluation more than 5 below the best before it"
    fine, bad = [[100, 80.0, 1.0], [120, 76.0, 2.0]], [[100, 88.0, 1.0], [120, 82.9, 2.0], [140, 89.0, 3.0]]
    curves = dict(zip((100, 101, 102), (fine, fine, fine), strict=True))
    assert gates([record("C-CEM", "hard", s, 88.0, curve=c) for s, c in curves.items()])[name] is True
    curves[101] = bad
    assert gates([record("C-CEM", "hard", s, 88.0, curve=c) for s, c in curves.items()])[name] is False
    assert table2.largest_fall([88.0, 82.9, 89.0]) == pytest.approx(5.1)


def test_the_curve_counts_seconds_without_evaluations():
    rows = [
        {"num_real_episodes": "100", "return_mean": "", "env_s": "1", "act_s": "", "model_s": "2", "evaluate_s": "50"},
        {"num_real_episodes": "120", "return_mean": "85.5", "env_s": "1", "act_s": "3", "model_s": "2", "agent_s": "4"},
    ]
    assert table2.learning_curve(rows) == [[120, 85.5, 13.0]]


def test_the_plan_has_every_agent_on_every_failure_and_the_paper_s_budget_once():
    cells = load_study("table2").cells(None, False)
    assert len(cells) == 4 * 4 * 3 + 1
    assert [cell["profile"] for cell in cells].count("paper") == 1
    for cell in cells:
        is_soft_cem = cell["agent"] == "C-CEM" and cell["failure"] != "hard"
        assert ("planner.num_particles=24" in cell["overrides"]) == is_soft_cem
    by_failure = {(cell["failure"], tuple(cell["overrides"][2:])) for cell in cells if cell["agent"][1:] != "-CEM"
                  and cell["profile"] == "fast"}  # fmt: skip
    assert len(by_failure) == 4, "the three SAC agents must have the same settings on a failure"
