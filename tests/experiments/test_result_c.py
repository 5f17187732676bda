"""Result C, sample efficiency and the RNN's variants: their cells are those of others, their gates can fail."""

import pytest

from mbrl_hdp.experiments.studies import load_study, result_c, rnn_variants, sample_efficiency, train_cell
from mbrl_hdp.experiments.studies.drawings import BeliefPanel, CoursePanel, Drawing
from mbrl_hdp.experiments.studies.study import CellRecord, cell_key
from mbrl_hdp.report.study_figures import draw


def record(agent, seed, value, curve, failure="hard", course=None, **settings):
    summary = {"returns": [value - 1.0, value + 1.0], "return_mean": value, "num_real_episodes": int(curve[-1][0]),
               "num_contexts": 2}  # fmt: skip
    named = {"agent": agent, "failure": failure, "profile": "fast", "seed": seed, **settings}
    return CellRecord(named, {"summary": summary, "curve": curve, "course": course}, "c", 1.0)


def curve(*points):
    return [[episodes, value, 1.0] for episodes, value in points]


def test_cells_are_those_of_table_2():
    shared = {cell_key(cell) for cell in load_study("table2").cells(None, False)}
    own = load_study("resultC").cells(None, False)
    assert {cell_key(cell) for cell in own} <= shared
    assert {cell["failure"] for cell in own} == {"hard", "soft .5"}
    assert {cell["agent"] for cell in own if cell["failure"] == "soft .5"} == {"GPMM"}
    assert {cell["agent"] for cell in own} == {*train_cell.AGENTS, *train_cell.BASELINES}


def test_mean_curves_are_taken_where_all_seeds_have_a_point():
    group = [record("A", 100, 1.0, curve((10, 1.0), (20, 3.0))), record("A", 101, 1.0, curve((10, 2.0), (30, 9.0)))]
    assert result_c.mean_curve(group) == [(10, 1.5)]
    assert result_c.mean_curve([]) == []


COURSE = {"truth": [0, 0, 1, 1], "labels": [3, 3, 3, 1], "belief": None}
BELIEF = COURSE | {"labels": [1, 1, 1, 1], "belief": [[0.4, 0.6], [0.4, 0.6], [0.2, 0.8], [0.2, 0.8]]}


def records(c_sac=85.0, c_cem_soon=100):
    found = []
    for seed in (100, 101, 102):
        found += [record("FI-SAC", seed, 86.0, curve((150, 82.0))), record("C-SAC", seed, c_sac, curve((200, 82.0))),
                  record("C-CEM", seed, 87.0, curve((c_cem_soon, 81.0)))]  # fmt: skip
    return [*found, record("GPMM", 100, 3.0, curve((15, 3.0)), course=COURSE),
            record("RNN-PPO", 100, 3.0, curve((100, -5.0), (10_000, 3.0)), course=BELIEF)]  # fmt: skip


def test_gates_compare_the_paper_s_agents():
    assert [gate.is_met for gate in result_c.page(records()).gates] == [True, True]
    assert [gate.is_met for gate in result_c.page(records(c_sac=83.0)).gates] == [False, True]
    assert [gate.is_met for gate in result_c.page(records(c_cem_soon=220)).gates] == [True, False]
    assert [gate.is_met for gate in result_c.page(records()[:5]).gates] == [None, None]
    assert result_c.page(records()[9:]).gates == []


def test_time_courses_are_scored_and_drawn():
    page = result_c.page(records())
    # Z3 is matched to C0, Z1 to C1: three of four steps.
    assert "| GPMM | hard | 100 | 2 | 0.750 | 0.500 | - | - |" in page.body
    assert "| RNN-PPO | hard | 100 | 1 | 0.500 | 0.500 | 0.30, 0.70 | 0.100 |" in page.body
    curves, courses = page.drawings
    assert [panel.has_log_x for panel in curves.panels] == [False, True]
    assert [type(panel) for panel in courses.panels] == [CoursePanel, BeliefPanel]
    assert "never" in page.body


def test_a_belief_is_drawn_with_the_truth_above_it():
    axes = draw(Drawing("b", "b", [BeliefPanel("belief", BELIEF["truth"], BELIEF["belief"])])).axes[0]
    assert [line.get_ydata().tolist() for line in axes.lines] == [[0.4, 0.4, 0.2, 0.2], [0.6, 0.6, 0.8, 0.8]]
    assert [(bar.get_x(), bar.get_width()) for bar in axes.patches] == [(0, 2), (2, 2)]


def warm(number, seed, points, model=sample_efficiency.CHOSEN):
    return record("C-CEM", seed, 88.0, curve(*points), warm_episodes=number, model=model)


@pytest.mark.parametrize(("soon", "is_met"), [(10, True), (11, False)])
def test_sample_efficiency_asks_for_every_seed_of_one_warm_start(soon, is_met):
    late = [warm(number, seed, [(number, 3.0), (20, 86.0)]) for number in (3, 10) for seed in (100, 101, 102)]
    good = [warm(5, seed, [(5, 3.0), (soon if seed == 101 else 6, 85.0)]) for seed in (100, 101, 102)]
    (gate,) = sample_efficiency.page([*late, *good]).gates
    assert gate.is_met is is_met
    assert f"5: {3 if is_met else 2} of 3" in gate.found
    assert sample_efficiency.page(late[:2]).gates[0].is_met is None
    # Networks are shown beside it; the gate is about what the data chooses.
    networks = [warm(5, seed, [(5, 90.0)], sample_efficiency.NETWORK) for seed in (100, 101, 102)]
    page = sample_efficiency.page([*late, *networks])
    assert page.gates[0].found == "3: 0 of 3; 10: 0 of 3"
    assert "| network | 5 | 90.00, n=3x10 |" in page.body
    assert sample_efficiency.headline([*late, *networks]).endswith(
        "by random ones: 3: 20, 10: 20, 5, network: 5; the paper takes 300"
    )


def test_sample_efficiency_cells_are_runs_of_one_episode_an_epoch():
    cells = load_study("sample_efficiency").cells(None, False)
    assert [cell["warm_episodes"] for cell in cells[:6]] == [3, 5, 10, 20, 50, 100]
    assert [cell["warm_episodes"] for cell in cells[18:]] == [5, 20] * 3
    assert {cell["model"] for cell in cells[:18]} == {sample_efficiency.CHOSEN}
    assert train_cell.resolve(cells[1])["dynamics"]["name"] == "auto"
    assert train_cell.resolve(cells[18])["dynamics"]["name"] == "cartpole"
    budget = train_cell.resolve(cells[1])["budget"]
    assert (budget["warm_episodes"], budget["episodes_per_epoch"], budget["eval_every"]) == (5, 1, 1)
    assert budget["num_epochs"] == sample_efficiency.LATER + 1


def test_variants_of_the_rnn_change_what_they_say():
    cells = load_study("rnn_variants").cells(None, False)
    shared = {cell_key(cell) for cell in load_study("baselines").cells(None, False)}
    assert sum(cell_key(cell) in shared for cell in cells) == 2 * 2 * 3  # RNN-PPO and RecurrentPPO
    for name, (_, overrides) in rnn_variants.VARIANTS.items():
        ((key, value),) = [word.removeprefix("agent.").split("=") for word in overrides]
        cell = next(cell for cell in cells if cell.get("variant") == name)
        assert str(train_cell.resolve(cell)["agent"][key]) == value
