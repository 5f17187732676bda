"""`mbrl-hdp reproduce`: resumable cells, pages that tell what is missing, branches that equal whole runs."""

import json
import resource
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from mbrl_hdp.cli import main
from mbrl_hdp.errors import ConfigError
from mbrl_hdp.experiments import reproduce as module
from mbrl_hdp.experiments.cells import seconds_of
from mbrl_hdp.experiments.fingerprint import reached_modules, roots_of
from mbrl_hdp.experiments.reproduce import ReproduceOptions, reproduce
from mbrl_hdp.experiments.studies import (
    branches,
    cartpole_fit,
    chain_bias,
    load_study,
    robust,
    study_names,
    table1,
    table_s3,
)
from mbrl_hdp.experiments.studies.cartpole_fit import episodes, fit_settings, held_out_episodes, switch_probability
from mbrl_hdp.experiments.studies.records import _parse, append_record, records_path
from mbrl_hdp.experiments.studies.study import CellRecord, Gate, Page, Study, cell_key, changed_keys, table
from mbrl_hdp.inference.schedule import FitConfig


def counting_study(calls):
    def run(settings):
        calls.append(settings["seed"])
        return {"square": settings["seed"] ** 2}

    def cells(seeds, is_quick):
        return [{"seed": seed, "max_contexts": 2 + seed % 2} for seed in (seeds or ([7] if is_quick else [3, 4, 5]))]

    def page(records):
        total = sum(record.results["square"] for record in records)
        return Page(f"total {total}", [Gate("fifty", str(total), total == 50 if len(records) == 3 else None)])

    return Study("counting", "Squares", cells, run, page, dict)


@pytest.fixture
def calls(monkeypatch):
    calls = []
    study = counting_study(calls)
    monkeypatch.setattr(module, "study_names", lambda: ["counting"])
    monkeypatch.setattr(module, "load_study", lambda _: study)
    return calls


def test_second_call_runs_only_what_is_missing(calls, tmp_path):
    options = ReproduceOptions(out=tmp_path)
    (page,) = reproduce("counting", replace(options, seeds=[4]))
    assert calls == [4]
    assert "1 of 3 cells" in page.path.read_text()
    assert "open (cells missing)" in page.path.read_text()
    reproduce("counting", options)
    assert calls == [4, 3, 5]
    assert "| fifty | 50 | met |" in page.path.read_text()
    reproduce("counting", options)
    assert calls == [4, 3, 5]


def test_a_line_cut_short_is_run_again(calls, tmp_path):
    options = ReproduceOptions(out=tmp_path)
    reproduce("counting", options)
    path = tmp_path / "counting.jsonl"
    path.write_text("\n".join(path.read_text().splitlines()[:2]) + '\n{"settings": {"se\n')
    reproduce("counting", options)
    assert calls == [3, 4, 5, 5]
    assert "3 of 3 cells" in (tmp_path / "counting.md").read_text()


def test_sizes_split_the_cells(calls, tmp_path):
    reproduce("counting", ReproduceOptions(out=tmp_path, sizes=[3]))
    assert calls == [3, 5]


def test_a_budget_leaves_cells_that_would_not_fit(calls, tmp_path, capsys):
    """Seed 3 (three contexts) took two hours before: only cells of the other size are begun within an hour."""
    old = CellRecord({"seed": 9, "max_contexts": 3}, {"square": 81}, "abc", 7200.0)
    append_record(old, records_path("counting", tmp_path))
    assert main(["reproduce", "counting", "--budget", "1h", "--out", str(tmp_path)]) == 0
    assert calls == []  # no cell of two contexts was run yet: what is known of the study is all there is
    assert "3 cells remain that do not fit into 60 minutes" in capsys.readouterr().out
    append_record(
        CellRecord({"seed": 8, "max_contexts": 2}, {"square": 64}, "abc", 60.0), records_path("counting", tmp_path)
    )
    reproduce("counting", ReproduceOptions(out=tmp_path, budget_s=3600.0))
    assert calls == [4]
    assert "2 cells remain" in capsys.readouterr().out
    reproduce("counting", ReproduceOptions(out=tmp_path))
    assert calls == [4, 3, 5]


@pytest.mark.parametrize(("words", "seconds"), [("90m", 5400.0), ("2h", 7200.0), ("1.5h", 5400.0), ("45s", 45.0)])
def test_budgets_are_times(words, seconds):
    assert seconds_of(words) == seconds


def test_cells_side_by_side_are_those_of_one_process(tmp_path):
    """Theorem 3's cells are exact and quick; other processes return the same numbers, and the driver writes them."""
    found = {}
    for jobs in (1, 2):
        options = ReproduceOptions(out=tmp_path / str(jobs), jobs=jobs, is_quick=True)
        (page,) = reproduce("theorem3", options)
        rows = map(_parse, (page.path.parent / "theorem3.jsonl").read_text().splitlines())
        found[jobs] = {row.key: (row.results, row.identity) for row in rows}
    assert found[1]
    assert found[1] == found[2]


def test_only_selects_cells_by_their_settings(calls, tmp_path, capsys):
    main(["reproduce", "counting", "--only", "max_contexts=3", "seed=3,4", "--out", str(tmp_path)])
    assert calls == [3]
    for words, message in (("size=3", "no cell has this"), ("seed=9", "there are 3, 4, 5"), ("seed", "setting=value")):
        assert main(["reproduce", "counting", "--only", words, "--out", str(tmp_path)]) == 2
        assert message in capsys.readouterr().err
    assert calls == [3]


def test_quick_runs_do_not_mix_with_real_ones(calls, tmp_path):
    reproduce("counting", ReproduceOptions(out=tmp_path, is_quick=True))
    assert calls == [7]
    assert not (tmp_path / "counting.jsonl").exists()


def test_mistakes_are_named(tmp_path, capsys):
    with pytest.raises(ConfigError, match="robust"):
        reproduce("robst", ReproduceOptions(out=tmp_path))
    with pytest.raises(ConfigError, match="--budget"):
        seconds_of("90 parsecs")
    assert main(["reproduce", "robust", "--jobs", "0", "--out", str(tmp_path)]) == 2
    assert "--jobs" in capsys.readouterr().err


def test_every_study_has_cells_that_are_json_and_distinct():
    for name in study_names():
        study = load_study(name)
        assert study.name == name
        keys = [cell_key(cell) for cell in study.cells(None, False)]
        assert len(set(keys)) == len(keys)
        assert all(json.loads(key)["seed"] >= 100 for key in keys)


def test_default_cells_of_chain_bias_are_those_of_robust():
    known = {cell_key(cell) for cell in robust.cells(None, False)}
    default = [cell for cell in chain_bias.cells(None, False) if "row_concentration" not in cell["prior"]]
    assert default
    assert {cell_key(cell) for cell in default} <= known


class TestStale:
    """Cells of another configuration or other code are shown, marked, and run again."""

    def counts(self, tmp_path):
        rows, changes = module.stale("counting", ReproduceOptions(out=tmp_path))
        return [int(number) for number in rows[0][2:]], changes

    def rewrite(self, tmp_path, change):
        path = tmp_path / "counting.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        for row in rows[:2]:
            change(row)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    @pytest.mark.parametrize(
        ("change", "place", "words"),
        [
            (lambda row: row["identity"].update(code="0" * 16), 1, "stale by code"),
            (lambda row: row["identity"]["config"].update(max_contexts=9), 2, "stale by configuration"),
            (lambda row: row.pop("identity"), 3, "run before fingerprints"),
        ],
    )
    def test_a_changed_cell_is_found_marked_and_replaced(self, calls, tmp_path, change, place, words):
        options = ReproduceOptions(out=tmp_path)
        assert self.counts(tmp_path)[0] == [0, 0, 0, 0, 3]
        (page,) = reproduce("counting", options)
        assert self.counts(tmp_path)[0] == [3, 0, 0, 0, 0]
        assert "Stale" not in page.path.read_text()
        self.rewrite(tmp_path, change)
        found = [1, 0, 0, 0, 0]
        found[place] = 2
        assert self.counts(tmp_path)[0] == found
        reproduce("counting", replace(options, is_page_only=True))
        assert calls == [3, 4, 5]
        text = page.path.read_text()
        assert f"**Stale: 2 {words} (max_contexts=3 seed=3; max_contexts=2 seed=4).**" in text
        assert "| fifty | 50 | met † |" in text
        reproduce("counting", options)
        assert calls == [3, 4, 5, 3, 4]
        assert self.counts(tmp_path)[0] == [3, 0, 0, 0, 0]
        assert "| fifty | 50 | met |" in page.path.read_text()

    def test_the_keys_that_changed_are_named(self, calls, tmp_path):
        reproduce("counting", ReproduceOptions(out=tmp_path))
        self.rewrite(tmp_path, lambda row: row["identity"]["config"].update(max_contexts=9))
        assert self.counts(tmp_path)[1] == [
            "counting: max_contexts: 9 -> 2 (1 cell)",
            "counting: max_contexts: 9 -> 3 (1 cell)",
        ]

    def test_the_command_line_lists_and_sets_the_exit_code(self, calls, tmp_path, capsys):
        assert main(["reproduce", "--stale", "--out", str(tmp_path)]) == 1
        assert "never run" in capsys.readouterr().out
        assert main(["reproduce", "counting", "--out", str(tmp_path)]) == 0
        assert main(["reproduce", "counting", "--stale", "--out", str(tmp_path)]) == 0
        assert calls == [3, 4, 5]
        assert main(["reproduce"]) == 2
        assert "which study" in capsys.readouterr().err

    def test_rows_that_are_stale_are_marked_in_tables(self):
        stale = replace(record(5, 100, fit_results(0.99)), state="stale by code")
        assert "| 5 | 100 † |" in robust.page([stale]).body
        assert "| 5 | 100 |" in robust.page([replace(stale, state="current")]).body


def test_every_committed_row_is_still_shown():
    """A row that no planned cell matches would silently leave its page."""
    folder = Path(__file__).resolve().parents[2] / "docs" / "results"
    for name in study_names():
        study = load_study(name)
        path = records_path(name, folder)
        if path.is_file():
            keys = {cell_key(cell) for cell in study.cells(None, False)}
            rows = {record.key for record in map(_parse, path.read_text().splitlines()) if record is not None}
            assert rows <= keys, name


def test_pages_are_not_fingerprinted():
    for name in study_names():
        study = load_study(name)
        # One cell for each module that runs some.
        for module_name, cell in {study.module_of(cell): cell for cell in study.cells(None, False)}.items():
            reached = reached_modules(roots_of(module_name, study.resolve(cell)))
            assert study.page.__module__ not in reached, name
            assert "mbrl_hdp.experiments.reproduce" not in reached


def test_a_cell_s_identity_has_the_defaults(monkeypatch):
    """A default that changes is seen although the cell does not name it."""
    study = load_study("robust")
    cell = study.cells(None, False)[0]
    before = study.identity(cell)
    assert before.config["prior"]["row_concentration"] == 100.0
    assert before.config["fit"]["num_steps"] == 500
    schedule = FitConfig().schedules[0]
    assert before.config["fit"]["schedules"][0]["freeze_until"] == schedule.freeze_until
    monkeypatch.setattr(cartpole_fit, "FitConfig", partial(FitConfig, num_steps=400))
    assert changed_keys(before.config, study.identity(cell).config) == ["fit.num_steps: 500 -> 400"]


def branch(accuracy, kept=2, mass=1e-5):
    return {"accuracy": accuracy, "num_contexts": kept, "masses": [0.6, 0.4, mass], "top_weights": [0.6, 0.4, 0.0],
            "two_transition": [[0.9, 0.1], [0.1, 0.9]]}  # fmt: skip


def table1_record(size, seed, **branches):
    found = {str(eps): branches.get("every", branch(0.99)) for eps in table1.THRESHOLDS}
    settings = fit_settings(size, seed, dynamics={"name": "cartpole", "std_floor": table1.STD_FLOOR})
    return CellRecord(settings | {"thresholds": list(table1.THRESHOLDS)}, {"branches": found}, "abc", 1.0)


def test_gates_of_table1_leave_out_no_threshold_and_no_size():
    records = [table1_record(size, seed) for size in (5, 100) for seed in range(100, 110)]
    gates = table1.page(records).gates
    assert {gate.name.partition(":")[0] for gate in gates} == {
        f"eps={eps:g}, K={size}" for eps in table1.THRESHOLDS for size in (5, 100)
    }
    assert len(gates) == 2 * 3 * 2
    assert all(gate.is_met for gate in gates)
    wrong = [*records[:-1], table1_record(100, 109, every=branch(0.67))]
    missed = [gate.name for gate in table1.page(wrong).gates if gate.is_met is False]
    assert missed == [
        f"eps={eps:g}, K=100: every run keeps two contexts, accuracy above 0.95" for eps in (0, 0.01, 0.1)
    ]
    third = [*records[:-1], table1_record(100, 109, every=branch(0.99, kept=3))]
    assert [gate.name for gate in table1.page(third).gates if gate.is_met is False] == missed
    assert "3 of 30 at K=100" in table_s3.page(wrong).body
    assert {gate.name.partition(":")[0] for gate in table_s3.page(wrong).gates} == {
        f"eps={eps:g}, K=100" for eps in table1.THRESHOLDS
    }


def record(size, seed, results):
    return CellRecord(fit_settings(size, seed), results, "abc", 1.0)


def fit_results(accuracy, kept=2):
    return {
        "accuracy": accuracy, "num_contexts": kept, "masses": [0.6, 0.4, 1e-4], "switch": 0.11, "true_switch": 0.1,
        "runs": [{"schedule": "plain", "taken": True}], "fit_time_s": 2.0,
    }  # fmt: skip


def test_robust_gates_ask_for_accuracy_and_for_two_contexts():
    good = [record(5, seed, fit_results(0.99)) for seed in range(100, 118)]
    wrong = [record(5, 118, fit_results(0.99, kept=3)), record(5, 119, fit_results(0.5))]
    found = {gate.name: gate.is_met for gate in robust.page(good + wrong).gates}
    assert list(found.values()) == [False, True]
    fixed = [*good, record(5, 118, fit_results(0.96)), wrong[1]]
    assert [gate.is_met for gate in robust.page(fixed).gates] == [True, True]
    assert [gate.is_met for gate in robust.page(good[:3]).gates] == [None, None]


def test_delta_is_the_entrywise_distance():
    chain, reference = [[0.9, 0.1], [0.3, 0.7]], [[0.8, 0.2], [0.3, 0.7]]
    assert table_s3.chain_distance(chain, reference) == pytest.approx(0.2 / 2.0)
    assert table_s3.chain_distance([[1.0]], reference) == np.inf


def test_switch_probability_and_tables():
    assert switch_probability([[0.9, 0.1], [0.3, 0.7]]) == pytest.approx(0.2)
    assert table(("a", "b"), [["1", "2"]]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"


def test_paper_tables_cover_the_same_cells():
    for eps in table1.THRESHOLDS:
        assert set(table1.PAPER[eps]) == set(table_s3.PAPER[eps]) == set(table1.SIZES)


def test_training_and_held_out_episodes_differ():
    settings = fit_settings(3, 100, True)
    data, held_out = episodes(settings), held_out_episodes(settings)
    assert data.num_episodes == 20
    assert held_out.num_episodes == 100
    assert not np.allclose(data.obs[0], held_out.obs[0])


def test_a_branch_equals_the_whole_run():
    """Trunk, copy and branch give the parameters of one uninterrupted run with that threshold."""
    settings = fit_settings(3, 100, True)
    data = episodes(settings)
    tensors = branches.EpisodeTensors.of(data)
    config = branches.FitConfig(num_steps=8, batch_size=6)
    schedule = branches.TEMPERED
    step = branches.branch_step(schedule, config.num_steps)
    assert step == 4

    def fresh():
        model = branches._untrained(settings, data)
        return model, branches._start(model, tensors, config, schedule, 5)

    with torch.random.fork_rng(devices=[]):
        model, run = fresh()
        run.advance(0, step)
        state = torch.random.get_rng_state()
        branches._branch(model, run, 0.2)[1].advance(step, 8)  # another branch must not disturb this one
        torch.random.set_rng_state(state)
        branched, branch = branches._branch(model, run, 0.34)
        branch.advance(step, 8)

        whole, uninterrupted = fresh()
        whole.distillation.train_threshold = 0.34
        uninterrupted.advance(0, 8)
    assert torch.equal(branch.keep, uninterrupted.keep)
    for ours, theirs in zip(branched.parameters(), whole.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert not torch.equal(next(branched.parameters()), next(model.parameters()))


def test_a_half_written_line_costs_no_other_cell(tmp_path):
    path = tmp_path / "cells.jsonl"
    append_record(CellRecord({"seed": 1}, {}, "abc", 1.0), path)
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:20])  # a process was killed while it wrote
    append_record(CellRecord({"seed": 2}, {}, "abc", 1.0), path)
    found = [_parse(line) for line in path.read_text().splitlines()]
    assert [record and record.settings["seed"] for record in found] == [1, None, 2]


def test_a_full_disk_leaves_the_finished_cells_as_they_were(tmp_path):
    path = tmp_path / "cells.jsonl"
    append_record(CellRecord({"seed": 1}, {}, "abc", 1.0), path)
    before, limits = path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 30, limits[1]))  # writes beyond it are cut short
    try:
        with pytest.raises(OSError, match="No space left"):
            append_record(CellRecord({"seed": 2}, {}, "abc", 1.0), path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    assert path.read_bytes() == before
