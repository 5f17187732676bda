"""The study `twelve_variants`: its cells differ as they say, its ceilings are on record, its page and gates."""

import pytest

from mbrl_hdp.experiments.fingerprint import reached_modules, roots_of
from mbrl_hdp.experiments.studies import load_study, train_cell, twelve_variants
from mbrl_hdp.experiments.studies.study import CellRecord, changed_keys
from mbrl_hdp.experiments.studies.task_variants import COSTLY, DEFAULT, VARIANTS, variant_ceilings, variants_of
from mbrl_hdp.experiments.studies.train_cell import TASKS


def record(task, variant, share, seed=100, **more):
    level = share * variant_ceilings()[task, variant].mean
    summary = {
        "returns": [level - 1.0, level + 1.0], "num_contexts": len(VARIANTS[variant].actuation),
        "context_accuracy": 0.99, "wall_time_s": 90.0, "scores": {"collision": 0.5}, **more,
    }  # fmt: skip
    settings = {"agent": "C-CEM", "task": task, "profile": "fast", "seed": seed}
    settings |= {} if variant == DEFAULT else {"variant": variant}
    return CellRecord(settings, {"summary": summary}, "c", 1.0)


def all_records(share, **more):
    return [record(cell["task"], cell.get("variant", DEFAULT), share, cell["seed"], **more)
            for cell in twelve_variants.cells(None, False)]  # fmt: skip


def test_default_cells_are_those_of_table3_and_the_rest_run_once():
    cells = twelve_variants.cells(None, False)
    table3 = load_study("table3").cells(None, False)
    plain = [cell for cell in cells if "variant" not in cell]
    assert len(plain) == 6
    assert all(cell in table3 for cell in plain)
    assert len(cells) == 2 * 8 + 6 + 2 * 2 + 1  # a seed each; the default's three; two more of two drones; costs
    assert {cell["seed"] for cell in cells if cell.get("variant") == "switch 0.15"} == {100, 101, 102}
    assert {cell["seed"] for cell in twelve_variants.cells([7], False)} == {7}


@pytest.mark.parametrize("task", list(TASKS))
def test_variants_change_what_their_name_says_and_the_budget(task):
    expected = {
        **{f"switch {switch}": [f"env.kwargs.switch: 0.2 -> {switch}"] for switch in (0.05, 0.1, 0.15, 0.3, 0.5)},
        "actuation 1, 0.3": ["env.kwargs.actuation: [1.0, -1.0] -> [1.0, 0.3]"],
        "actuation 1, -1, 0.3": ["env.kwargs.actuation: [1.0, -1.0] -> [1.0, -1.0, 0.3]"],
    }
    cells = {cell.get("variant", DEFAULT): train_cell.resolve(cell)
             for cell in twelve_variants.cells([100], False) if cell["task"] == task}  # fmt: skip
    if task == "intersection":
        expected[COSTLY] = ["env.kwargs.collision_cost: null -> 10.0"]
    plain = cells.pop(DEFAULT)
    assert set(cells) == {*expected, "start noise"}
    for variant, found in cells.items():
        changed = [words for words in changed_keys(plain, found) if not words.startswith("budget.num_epochs: 3 -> 1")]
        if variant == "start noise":
            assert [words.split(":")[0] for words in changed] == ["env.id", "env.kwargs.start_noise"]
        else:
            assert changed == expected[variant]
        assert found["budget"]["num_epochs"] == 1
        assert found["budget"]["warm_episodes"] == 200


def test_the_code_of_noisy_starts_identifies_their_cells_only():
    cells = {cell.get("variant"): cell for cell in twelve_variants.cells([100], False) if cell["task"] == "drone"}
    noisy, plain = (roots_of("mbrl_hdp.seeding", train_cell.resolve(cells[name])) for name in ("start noise", None))
    assert "mbrl_hdp.envs.noisy_starts" in noisy
    assert "mbrl_hdp.envs.noisy_starts" not in reached_modules(plain)


def test_every_variant_has_a_ceiling():
    ceilings = variant_ceilings()
    assert set(ceilings) == {(task, variant) for task in TASKS for variant in variants_of(task)}
    assert ceilings["drone", DEFAULT].mean == pytest.approx(31.13, abs=0.005)  # docs/ceilings.md
    assert ceilings["intersection", DEFAULT].mean == pytest.approx(566.38, abs=0.005)
    assert 550 < ceilings["intersection", COSTLY].mean < ceilings["intersection", DEFAULT].mean
    drone = [height for _, height in twelve_variants.ceiling_points("drone")]
    assert drone == sorted(drone, reverse=True)


def test_crossing_by_hand():
    points = [(0.1, 34.0), (0.2, 30.0), (0.4, 20.0)]
    assert twelve_variants.crossing(points, 33.0) == pytest.approx(0.125)
    assert twelve_variants.crossing(points, 25.0) == pytest.approx(0.3)
    assert twelve_variants.crossing(points, 20.0) == pytest.approx(0.4)
    assert twelve_variants.crossing(points, 35.0) is None
    assert twelve_variants.crossing([(0.1, 34.0)], 34.0) is None


def test_page_says_shares_and_the_switch_rate_of_the_papers_return():
    page = twelve_variants.page(all_records(0.99))
    ceiling = variant_ceilings()["drone", "actuation 1, 0.3"]
    row = next(line for line in page.body.splitlines() if line.startswith("| drone | actuation 1, 0.3 |"))
    assert f"| {ceiling.mean:.2f} ± {ceiling.standard_error:.2f}, n=1000 | 0.990 | 2 | 0.990 | 1.5 |" in row
    shrunk = [(switch, 0.99 * height) for switch, height in twelve_variants.ceiling_points("drone")]
    ours, best = (twelve_variants.crossing(p, 32.3) for p in (shrunk, twelve_variants.ceiling_points("drone")))
    assert 0.1 < ours < best < 0.2
    assert f"ours has this return at {ours:.3f}, the ceiling at {best:.3f}." in page.body
    (drawing,) = page.drawings
    assert [panel.title for panel in drawing.panels] == ["drone", "intersection"]
    name, points = drawing.panels[0].lines[0]
    assert name == "C-CEM"
    assert dict(points) == pytest.approx(dict(shrunk))
    assert f"the paper's 32.3 at switch {ours:.3f}" in twelve_variants.headline(all_records(0.99))


def test_page_says_how_often_cars_collide():
    assert "Collisions on" not in twelve_variants.page([record("intersection", COSTLY, 0.99)]).body
    shares = {DEFAULT: 0.96, COSTLY: 0.02}
    records = [record("intersection", name, 0.99, scores={"collision": share}) for name, share in shares.items()]
    assert "overlap in 0.96 of the episodes with the paper's reward" in twelve_variants.page(records).body
    assert "and in 0.02 where a collision costs." in twelve_variants.page(records).body


def test_gates():
    assert [gate.is_met for gate in twelve_variants.page(all_records(0.99)).gates] == [True] * 4
    worse = [*all_records(0.99)[1:], record("drone", "switch 0.05", 0.94)]
    found = twelve_variants.page(worse).gates
    assert [gate.is_met for gate in found] == [False, True, True, True]
    assert found[0].found == "0.940 (switch 0.05), 9 of 9 variants"
    assert [gate.is_met for gate in twelve_variants.page(all_records(0.97)).gates] == [True, True, False, True]
    three = record("drone", "switch 0.3", 0.99, num_contexts=3)
    assert [gate.is_met for gate in twelve_variants.page([three]).gates] == [None, False]
    # One seed of three is missing.
    part = [one for one in all_records(0.99) if one.settings != all_records(0.99)[3].settings]
    assert [gate.is_met for gate in twelve_variants.page(part).gates] == [None, None, True, True]


def test_a_page_of_one_cell_has_no_figure_and_no_rate():
    page = twelve_variants.page([record("drone", "start noise", 0.9)])
    assert not page.drawings
    assert "interpolation" not in page.body
    assert "| drone | start noise |" in page.body


def test_stale_groups_are_marked():
    old = CellRecord(**{**vars(record("drone", "switch 0.3", 0.9)), "state": "stale by code"})
    assert "| drone | switch 0.3 † |" in twelve_variants.page([old]).body


def test_the_tiny_version_is_one_run_from_noisy_starts():
    (cell,) = twelve_variants.cells(None, True)
    env = train_cell.resolve(cell)["env"]
    assert (env["id"], env["kwargs"]["start_noise"]) == ("mbrl_hdp.envs.noisy_starts:NoisyTakeOff-v0", 0.05)
    assert (env["kwargs"]["horizon"], cell["profile"]) == (12, "smoke")
