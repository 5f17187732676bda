"""Table 2's page: gates that can fail, curves read as written."""

import pytest

from mbrl_hdp.experiments.config import check_config, config_dir, load_config
from mbrl_hdp.experiments.studies import load_study, table2, train_cell
from mbrl_hdp.experiments.studies.study import CellRecord


def record(agent, failure, seed, value, episodes=160, curve=None, profile="fast"):
    summary = {
        "returns": [value - 1.0, value + 1.0], "return_mean": value, "return_std": 1.4,
        "return_iqm": value, "num_real_episodes": episodes,
        "num_contexts": 2, "context_accuracy": 0.98, "switch_delay": 0.2, "wall_time_s": 90.0,
        "truth_fed": {
            "return_mean": value + 1, "return_difference": 1.0, "difference_per_misidentified_switch": 0.1,
        },
        "time_breakdown_s": {"env": 1.0, "act": 2.0, "model": 3.0, "agent": 0.0, "evaluate": 4.0},
    }  # fmt: skip
    settings = {"agent": agent, "failure": failure, "profile": profile, "seed": seed}
    results = {"summary": summary, "curve": curve or [[100, value, 30.0]]}
    results["train_curve"] = [[1, value - 20.0], [2, value + 8.0], [3, value]]
    return CellRecord(settings, results, "abc", 1.0)


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
    assert train_cell.learning_curve(rows) == [[120, 85.5, 13.0]]


def test_the_plan_has_every_agent_on_every_failure_and_the_paper_s_settings_once():
    cells = load_study("table2").cells(None, False)
    own = [cell for cell in cells if cell["agent"] in train_cell.AGENTS]
    assert len(own) == 4 * 4 * 3 + 1
    presets = [train_cell.preset_of(cell) for cell in own]
    assert [name for name in presets if name.startswith("paper/")] == ["paper/cartpole_hard_c_sac"]
    assert len(set(presets)) == 4 * 4 + 1
    assert [cell for cell in cells if cell not in own] == load_study("baselines").cells(None, False)


def test_a_cell_s_identity_is_its_preset_as_train_runs_it():
    """`mbrl-hdp train experiment=NAME seed=S` has the settings that the cell is identified by, all of them."""
    cells = [cell for cell in load_study("table2").cells(None, False) if cell["agent"] in train_cell.AGENTS]
    by_preset = {train_cell.preset_of(cell): cell for cell in cells}
    for preset, cell in by_preset.items():
        config = check_config(load_config([f"experiment={preset}", f"seed={cell['seed']}"]))
        found = train_cell.resolve(cell)
        assert found == train_cell.resolved_run(config), preset
        assert (found["agent"]["name"], found["env"]["name"]) == (config.agent.name, config.env.name)
        assert ("fit" in found, "prior" in found) == (cell["agent"] in ("C-CEM", "C-SAC"),) * 2  # who learns a model
        if "fit" in found:
            assert found["budget"]["warm_model_steps"] == found["fit"]["num_steps"]
            assert found["budget"]["model_steps"] == found["refit"]["num_steps"]


def test_the_three_policies_have_the_same_settings_on_a_failure():
    for failure in train_cell.FAILURES:
        settings = []
        for agent in ("C-SAC", "FI-SAC", "NI-SAC"):
            found = train_cell.resolve({"agent": agent, "failure": failure, "profile": "fast", "seed": 100})
            found["agent"].pop("name")
            settings.append(found)
        of_model = {"prior", "distillation", "dynamics", "fit", "refit"}  # only C-SAC learns one
        assert set(settings[0]) - set(settings[1]) == of_model
        assert {key: value for key, value in settings[0].items() if key not in of_model} == settings[1], failure
        assert settings[1] == settings[2], failure


def test_settings_that_were_reported_are_in_the_presets():
    def found(agent, failure):
        return train_cell.resolve({"agent": agent, "failure": failure, "profile": "fast", "seed": 100})

    soft = found("C-CEM", "soft .1")["planner"]
    assert (soft["horizon"], soft["num_particles"], soft["context_mode"]) == (12, 24, "feedback")
    hard = found("C-CEM", "hard")["planner"]
    assert (hard["horizon"], hard["num_iterations"], hard["num_particles"]) == (8, 8, 8)
    policy = found("NI-SAC", "soft .3")
    assert (policy["agent"]["discount"], policy["agent"]["initial_temperature"]) == (0.92, 0.1)
    assert (policy["budget"]["num_epochs"], found("NI-SAC", "hard")["budget"]["num_epochs"]) == (300, 150)


def test_differences_are_between_the_same_episodes():
    ours = [record("C-SAC", "hard", seed, value) for seed, value in ((100, 80.0), (101, 90.0))]
    others = [record("NI-SAC", "hard", seed, value) for seed, value in ((101, 85.0), (102, 1.0))]
    (pair,) = table2.paired_differences(ours, others)
    assert pair.tolist() == [5.0, 5.0]
    assert "| C-SAC - NI-SAC | +5.00 [+5.00, +5.00], n=1 | - | - | - |" in table2.page([*ours, *others]).body


def test_summaries_of_before_are_read():
    new = record("C-SAC", "hard", 100, 80.0)
    old = record("C-SAC", "hard", 100, 80.0)
    old.results["summary"].pop("truth_fed")
    old.results["summary"]["switch_loss"] = {"known_return_mean": 81.0, "return_lost_per_switch": 0.1}
    assert table2.page([old]).body == table2.page([new]).body


def test_baselines_have_a_preset_for_every_cell_and_rows_beside_the_paper_s():
    study = load_study("baselines")
    cells = study.cells(None, False)
    assert len(cells) == len(train_cell.BASELINES) * 4 * 3 + 7 + 4 * 3  # ten seeds of GPMM; long runs of modern agents
    assert list(range(100, 110)) == sorted(
        cell["seed"] for cell in cells if (cell["agent"], cell["failure"]) == ("GPMM", "hard")
    )
    for preset in {train_cell.preset_of(cell) for cell in cells}:  # what each composes into: test_config.py
        assert (config_dir() / "experiment" / f"{preset}.yaml").is_file(), preset
    body = study.page([record("GPMM", "hard", seed, 30.0 + seed) for seed in (100, 101, 102)]).body
    assert "| GPMM, ours | 131.00 ± 1.41, IQM 131.00 [" in body
    assert ", n=3x2 |" in body
    # By the paper's protocol: the best training episode of each run.
    assert "| GPMM, ours | 139.00 ± 1.00, 3 of 3 runs |" in body
    assert "| GPMM, paper | 3.50 ± 18.59 |" in body


@pytest.mark.parametrize("agent", ["gpmm", "dnnmm", "anpmm", "rnn_ppo"])
def test_the_paper_s_settings_of_the_baselines_are_presets(agent):
    config = check_config(load_config([f"experiment=paper/cartpole_soft05_{agent}"]))
    assert (config.agent.name, config.profile) == (agent, "paper")
    if agent != "rnn_ppo":
        assert (config.planner.name, config.planner.horizon, config.planner.population_size) == (
            "random_shooting",
            20,
            500,
        )
