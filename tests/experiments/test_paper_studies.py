"""The studies of the paper's results and of its appendix judge and draw rightly; that they run: test_smoke.py."""

from types import SimpleNamespace

import pytest

from mbrl_hdp.experiments.studies import load_study, merging, new_contexts, result_a, result_b
from mbrl_hdp.experiments.studies.cartpole_fit import episodes, fit_settings, resolve
from mbrl_hdp.experiments.studies.drawings import ChainPanel, CoursePanel, CurvePanel, Drawing
from mbrl_hdp.experiments.studies.sets import accuracy_by_group, learned_sets, sets_in_words
from mbrl_hdp.experiments.studies.sixteen import GROUPS
from mbrl_hdp.experiments.studies.study import CellRecord
from mbrl_hdp.report.study_figures import draw


def test_an_environment_preset_decides_the_data_and_the_identity_of_a_cell():
    stripes = fit_settings(3, 0, True, env="cartpole_stripes")
    found = resolve(stripes)["env"]
    assert found["kwargs"]["chain"]["kind"] == "stripes"
    context = episodes(stripes).context
    position = episodes(stripes).obs[:, :-1, 0]
    # Stripes of 0.1 m: context 0 where floor(10 x) is even.
    assert ((position / 0.1 // 1 % 2).astype(int) == context).mean() > 0.99
    assert "env" not in resolve(fit_settings(3, 0, True))


CONFUSION = [[90, 70, 0, 5], [10, 20, 50, 5], [0, 10, 50, 90]]


def test_sets_hold_what_is_labelled_alike():
    assert learned_sets(CONFUSION) == [[0, 1], [2], [3]]
    assert sets_in_words(CONFUSION, "abcd") == "{a, b (70%)}, {c (50%)}, {d}"


def test_groups_are_scored_by_the_contexts_that_stand_for_them():
    # Learned contexts 0 and 1 have most steps of group 0, 2 of group 1.
    assert accuracy_by_group(CONFUSION, [0, 0, 0, 1]) == pytest.approx([240 / 300, 0.9])


def test_the_groups_of_sixteen_are_gravity_and_mass():
    contexts = resolve(fit_settings(3, 0, True, env="cartpole_sixteen"))["env"]["kwargs"]["contexts"]
    pairs = [(context["gravity"], context["cart_mass"]) for context in contexts]
    assert len(set(zip(pairs, GROUPS, strict=True))) == len(set(pairs)) == len(set(GROUPS))


def record(results, **settings):
    return CellRecord({"seed": 100, **settings}, results, "c0ffee", 1.0)


def branch(two_accuracy, masses, stay=(0.9, 0.9, 0.1), contexts=2):
    transition = [[0.0] * 3 for _ in range(3)]
    for slot, value in enumerate(stay):
        transition[slot][slot] = value
    return {
        "two_accuracy": two_accuracy, "masses": masses, "num_contexts": contexts, "accuracy": two_accuracy,
        "chain": {"initial": [0.4, 0.5, 0.1], "transition": transition, "stationary": masses},
        "course": {"truth": [0, 0, 1], "labels": [1, 1, 2]}, "to_true": [-1, 0, 1],
        "confusion": [[0, 0], [2, 0], [0, 1]],
    }  # fmt: skip


def test_result_a_judges_and_draws_lucky_and_unlucky_seeds():
    records = []
    for seed in result_a.SEEDS:
        for prior, accuracy, third in (("hdp", 0.99, 0.01), ("dirichlet", 0.99, 0.03), ("mle", 0.99, 0.05)):
            plain = branch(0.5 if prior == "mle" and seed == 103 else accuracy, [0.5, 0.4, third])
            results = {"branches": {"0.0": plain, "0.1": branch(0.99, [0.5, 0.5, 0.0])}}
            records.append(record(results, prior={"name": prior}, max_contexts=5) if seed == 100 else
                           CellRecord({"seed": seed, "prior": {"name": prior}}, results, "c0ffee", 1.0))  # fmt: skip
    page = result_a.page(records)
    assert [gate.is_met for gate in page.gates] == [True, True]
    assert "| MLE, eps 0 | 19 of 20 |" in page.body
    assert page.drawings[0].name == "resultA_chains_unlucky"
    assert "seed 103" in page.drawings[0].caption
    assert "seed 100" in page.drawings[2].caption
    swapped = [CellRecord(r.settings | {"prior": {"name": {"hdp": "mle", "mle": "hdp"}.get(r.settings["prior"]["name"],
               r.settings["prior"]["name"])}}, r.results, r.commit, r.time_s) for r in records]  # fmt: skip
    assert [gate.is_met for gate in result_a.page(swapped).gates] == [False, False]


def test_result_b_reads_the_longest_stay_among_spurious_slots():
    assert result_b.spurious_stay(branch(0.9, [0.1, 0.5, 0.4], stay=(0.3, 0.9, 0.8))) == 0.3


def test_result_b_leaves_out_cells_without_chains():
    old = branch(0.9, [0.5, 0.4, 0.1])
    del old["chain"]
    page = result_b.page([record({"branches": {"0.0": old, "0.01": old, "0.1": old}})])
    assert "1 cells are left out" in page.body
    assert page.gates == []


def test_merging_counts_sets():
    results = {"confusion": CONFUSION, "num_contexts": 3, "accuracy": 0.7, "to_true": [0, 2, 3],
               "course": {"truth": [0, 1], "labels": [0, 2]}}  # fmt: skip
    merged = results | {"confusion": [[150, 150, 10, 10], [0, 0, 90, 90]]}
    cells = [
        CellRecord({"seed": seed, "thresholds": [0.0, 0.05, 0.1]},
                   {"branches": {"0.0": results, "0.05": results, "0.1": merged}}, "c0ffee", 1.0)
        for seed in merging.SEEDS
    ]  # fmt: skip
    page = merging.page(cells)
    assert [gate.is_met for gate in page.gates] == [False, True, True]  # three sets, not five
    assert [gate.found for gate in page.gates] == ["3", "yes", "0: 3, 0.05: 3, 0.1: 2"]


def test_new_contexts_are_judged_by_their_own_steps():
    after = {"confusion": [[90, 5, 0, 0], [10, 95, 0, 0], [0, 0, 80, 0], [0, 0, 20, 99]], "to_true": [0, 1, 2, 3]}
    assert new_contexts.recall(after) == pytest.approx([0.9, 0.95, 0.8, 1.0])


def test_the_cells_of_result_b_are_those_of_table_1():
    shared = load_study("table1").cells(None, False)
    own = load_study("resultB").cells(None, False)
    assert own
    assert all(cell in shared for cell in own)


def test_a_figure_draws_every_kind_of_panel():
    panels = [
        ChainPanel("chain", [0.5, 0.5], [[0.9, 0.1], [0.2, 0.8]], [0.67, 0.33]),
        CoursePanel("course", [0, 0, 1, 1], [3, 3, 2, 2], [-1, -1, 1, 0]),
        CurvePanel("curve", "x", "y", [("a", [(0, 1), (1, 2)]), ("a", [(0, 2), (1, 3)])], [("level", 1.5)]),
        CurvePanel("alone in its row", "x", "y", [("a", [(0, 1), (1, 2)])]),
    ]
    axes = draw(Drawing("all", "caption", panels)).axes
    assert [ax.get_title() for ax in axes if ax.get_visible()] == [panel.title for panel in panels]
    bars = {bar.get_y(): bar.get_facecolor() for bar in axes[1].patches if bar.get_x() == 0}
    assert len(set(bars.values())) == 1  # Z3 was matched to C0: same colour


def test_an_unknown_panel_is_refused():
    with pytest.raises(TypeError, match="no drawing"):
        draw(Drawing("x", "x", [SimpleNamespace(title="x")]))
