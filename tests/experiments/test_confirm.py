"""`mbrl-hdp reproduce --confirm`: cells of earlier code are kept only if a sample that is run again is the same."""

import json

import pytest

from mbrl_hdp.errors import ConfigError
from mbrl_hdp.experiments import reproduce as module
from mbrl_hdp.experiments.confirm import different_keys
from mbrl_hdp.experiments.reproduce import ReproduceOptions, reproduce
from mbrl_hdp.experiments.studies.records import append_record, read_records, records_path
from mbrl_hdp.experiments.studies.study import (
    BY_CODE,
    BY_CONFIG,
    CURRENT,
    NO_FINGERPRINT,
    CellRecord,
    Gate,
    Identity,
    Page,
    Study,
    state_of,
)

SEEDS = range(10)


def square(settings):
    return {"square": settings["seed"] ** 2, "cpu_s": 0.1}


@pytest.fixture
def calls(monkeypatch):
    calls = []

    def run(settings):
        calls.append(settings["seed"])
        return square(settings)

    study = Study(
        "squares", "Squares", lambda seeds, is_quick: [{"seed": seed} for seed in SEEDS], run,
        lambda records: Page("", [Gate("all", str(len(records)), len(records) == len(SEEDS))]), dict,
    )  # fmt: skip
    monkeypatch.setattr(module, "study_names", lambda: ["squares"])
    monkeypatch.setattr(module, "load_study", lambda _: study)
    return study, calls


def write(study, folder, seeds, config=None, results=square, code="earlier"):
    for seed in seeds:
        cell = {"seed": seed}
        identity = Identity(cell if config is None else config, code)
        append_record(
            CellRecord(cell, results(cell) | {"cpu_s": 9.0}, "c0ffee", 1.0, identity), records_path(study.name, folder)
        )


def states(study, folder):
    found = read_records(study, folder, study.cells(None, False)).values()
    return {record.settings["seed"]: record.state for record in found}


def test_the_same_sample_keeps_the_others(calls, tmp_path, capsys):
    study, run = calls
    write(study, tmp_path, SEEDS)
    assert set(states(study, tmp_path).values()) == {BY_CODE}
    reproduce("squares", ReproduceOptions(out=tmp_path, confirm=3))
    assert run == [0, 3, 6]
    assert set(states(study, tmp_path).values()) == {CURRENT}
    assert "3 of 10 stale cells run again: the same results, so the other 7 are confirmed" in capsys.readouterr().out
    page = (tmp_path / "squares.md").read_text()
    assert "7 were run with earlier code only; 3 of the 10 cells" in page
    assert "Stale" not in page


def test_a_different_sample_keeps_nothing(calls, tmp_path, capsys):
    study, _run = calls
    write(study, tmp_path, SEEDS, results=lambda cell: {"square": cell["seed"] ** 2 + (cell["seed"] == 6)})
    reproduce("squares", ReproduceOptions(out=tmp_path, confirm=3))
    found = states(study, tmp_path)
    assert {seed for seed, state in found.items() if state == CURRENT} == {0, 3, 6}
    assert "1 differ, so the others stay stale; seed=6: square: 37 -> 36" in capsys.readouterr().out


def test_cells_without_a_fingerprint_are_confirmed_by_commit(calls, tmp_path):
    study, run = calls
    for seed in SEEDS:
        cell, commit = {"seed": seed}, "c0ffee" if seed < 6 else "decade"
        results = square(cell) if seed < 6 else {"square": -1}
        append_record(CellRecord(cell, results, commit, 1.0), records_path(study.name, tmp_path))
    assert set(states(study, tmp_path).values()) == {NO_FINGERPRINT}
    reproduce("squares", ReproduceOptions(out=tmp_path, confirm=1))
    assert run == [0, 6]
    found = states(study, tmp_path)
    assert {seed for seed, state in found.items() if state == CURRENT} == {*range(7)}


@pytest.mark.parametrize(
    ("before", "state"),
    [
        ({"seed": 1, "fit": {"steps": 5}}, BY_CODE),  # the other settings are new
        ({"seed": 1}, BY_CODE),
        ({"seed": 1, "fit": {"steps": 5, "start": "search"}, "past": None}, CURRENT),
        ({"seed": 1, "fit": {"steps": 4, "start": "search"}}, BY_CONFIG),
        ({"seed": 1, "fit": {"steps": 5, "old": 1}}, BY_CONFIG),
        ({"seed": 1, "fit": 3}, BY_CONFIG),
    ],
)
def test_a_setting_that_did_not_exist_is_a_change_of_code(before, state):
    now = Identity({"seed": 1, "fit": {"steps": 5, "start": "search"}, "past": None}, "present")
    assert state_of(CellRecord({}, {}, "c0ffee", 1.0, Identity(before, "present")), now) == state


def test_versions_of_the_code_are_confirmed_one_by_one(calls, tmp_path):
    study, _run = calls
    write(study, tmp_path, range(4))
    write(study, tmp_path, range(4, 10), results=lambda cell: {"square": -1}, code="earlier still")
    reproduce("squares", ReproduceOptions(out=tmp_path, confirm=1))
    found = states(study, tmp_path)
    assert {seed for seed, state in found.items() if state == CURRENT} == {0, 1, 2, 3, 4}


def test_another_configuration_is_never_confirmed(calls, tmp_path):
    study, run = calls
    write(study, tmp_path, SEEDS, config={"seed": -1})
    reproduce("squares", ReproduceOptions(out=tmp_path, confirm=3))
    assert run == []
    assert set(states(study, tmp_path).values()) == {BY_CONFIG}


def test_what_stands_by_a_sample_is_no_evidence_for_the_next(calls, tmp_path):
    study, run = calls
    write(study, tmp_path, SEEDS)
    reproduce("squares", ReproduceOptions(out=tmp_path, confirm=2))
    path = records_path("squares", tmp_path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(line | {"identity": line["identity"] | {"code": "x"}}) + "\n" for line in lines))
    run.clear()
    reproduce("squares", ReproduceOptions(out=tmp_path, confirm=5))
    assert run == [0, 5]


def test_missing_leaves_stale_cells(calls, tmp_path):
    study, run = calls
    write(study, tmp_path, range(8))
    reproduce("squares", ReproduceOptions(out=tmp_path, is_missing_only=True))
    assert run == [8, 9]


def test_a_record_without_confirmation_is_written_as_before(calls, tmp_path):
    _study, _run = calls
    reproduce("squares", ReproduceOptions(out=tmp_path))
    lines = [json.loads(line) for line in records_path("squares", tmp_path).read_text().splitlines()]
    assert all(set(line) == {"settings", "results", "commit", "time_s", "identity"} for line in lines)


def test_a_negative_sample_is_refused(calls, tmp_path):
    with pytest.raises(ConfigError, match="--confirm"):
        reproduce("squares", ReproduceOptions(out=tmp_path, confirm=-1))


class TestDifferentKeys:
    def test_times_commits_and_versions_do_not_count(self):
        before = {"a": [1, {"b": 2}], "fit_time_s": 1, "summary": {"git_commit": "x", "versions": {"numpy": "1"}}}
        after = {"a": [1, {"b": 2}], "fit_time_s": 2, "summary": {"git_commit": "y", "versions": {}}}
        assert different_keys(before, after) == []

    def test_places_are_named(self):
        assert different_keys({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}) == ["a.1.b: 2 -> 3"]

    def test_new_and_lost_keys_and_lengths(self):
        assert different_keys({"a": 1}, {"a": 1, "b": 2}) == []  # not recorded before
        assert different_keys({"a": 1}, {}) == ["a: 1 -> None"]
        assert different_keys([1], [1, 2]) == [": [1] -> [1, 2]"]

    def test_last_digits_depend_on_the_processor(self):
        assert different_keys({"a": 1.3479313051225}, {"a": 1.3479313051226}) == []
        assert different_keys({"a": -2.00001}, {"a": -2.0}) == []
        assert different_keys({"a": 0.9910}, {"a": 0.9911}) != []  # one label of 10,000
        assert different_keys({"a": 10_000_000}, {"a": 10_000_001}) != []  # counts are exact
        assert different_keys({"a": 1e-6}, {"a": 0.0}) == []
        assert different_keys({"a": 1e-4}, {"a": 0.0}) != []

    def test_nan_equals_nan(self):
        assert different_keys({"a": float("nan")}, {"a": float("nan")}) == []
        assert different_keys({"a": float("nan")}, {"a": 1.0}) != []


def test_stale_pages_and_confirmations_are_counted_apart(calls, tmp_path):
    study, _run = calls
    write(study, tmp_path, SEEDS)
    reproduce("squares", ReproduceOptions(out=tmp_path, confirm=3, only={"seed": ["0", "1", "2", "3"]}))
    found = states(study, tmp_path)
    assert [found[seed] == CURRENT for seed in SEEDS] == [True] * 4 + [False] * 6
    page = (tmp_path / "squares.md").read_text()
    assert "6 stale by code" in page
    assert "1 were run with earlier code only; 3 of the 4 cells" in page


def test_seconds_of_a_learning_curve_are_times():
    before, after = {"curve": [[10, 1.5, 30.0]]}, {"curve": [[10, 1.5, 31.0]]}
    assert different_keys(before, after) == []
    assert different_keys(before, {"curve": [[10, 1.6, 30.0]]}) == ["curve.0.1: 1.5 -> 1.6"]
    assert different_keys({"curve": None}, before) != []
