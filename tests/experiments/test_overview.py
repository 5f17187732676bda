"""README's table of results: generated, honest about what is stale, and current."""

from pathlib import Path

import pytest

from mbrl_hdp.errors import DataError
from mbrl_hdp.experiments import overview
from mbrl_hdp.experiments.overview import BEGIN, END, QUESTIONS, StudyState, study_state, with_block
from mbrl_hdp.experiments.studies import study_names
from mbrl_hdp.experiments.studies.records import append_record, records_path
from mbrl_hdp.experiments.studies.study import CellRecord, Gate, Page, Study

ROOT = Path(__file__).resolve().parents[2]


def test_every_study_has_a_question():
    assert set(QUESTIONS) == set(study_names())


def test_the_tables_are_current():
    """After a change of code or new cells: make pages."""
    states = overview.all_states(ROOT / "docs" / "results")
    for path, block in (
        (ROOT / "README.md", overview.paper_table(states, "docs/results")),
        (ROOT / "docs" / "results" / "README.md", overview.full_table(states)),
    ):
        text = path.read_text()
        assert with_block(text, block, path) == text, f"{path} is out of date: run `make pages`"


def study(page=None):
    return Study(
        "squares", "Squares", lambda _seeds, _quick: [{"seed": seed} for seed in (3, 4, 5)],
        lambda settings: {"square": settings["seed"] ** 2},
        page or (lambda records: Page("", [Gate("nine", "9", True), Gate("ten", "9", False), Gate("all", "", None)])),
        dict, headline=lambda records: f"ours {records[0].results['square']} / paper 9",
    )  # fmt: skip


def test_a_state_counts_cells_gates_and_stale_ones(tmp_path):
    squares = study()
    assert study_state(squares, tmp_path).cell_words == "0 of 3"
    for seed in (3, 4):
        cell = {"seed": seed}
        record = CellRecord(cell, squares.run(cell), "abc", 90.0, squares.identity(cell))
        append_record(record, records_path("squares", tmp_path))
    found = study_state(squares, tmp_path)
    assert (found.cell_words, found.gate_words, found.minutes) == ("2 of 3", "1 met, 1 missed, 1 open", 3.0)
    assert found.headline == "ours 9 / paper 9"
    assert found.missed == ["ten: 9"]
    append_record(CellRecord({"seed": 4}, {"square": 16}, "abc", 1.0), records_path("squares", tmp_path))
    found = study_state(squares, tmp_path)
    assert (found.cell_words, found.gate_words, found.missed) == ("2 of 3 †", "1 met, 1 missed, 1 open †", ["ten: 9 †"])


def test_only_pages_that_exist_are_linked():
    states = [StudyState("theorem1", 3, 0, 0, (), "", 0.0), StudyState("table2", 3, 1, 1, (), "x", 2.0)]
    lines = overview.paper_table(states, "docs/results").splitlines()
    assert lines[2].startswith("| theorem1 | Theorem 1")
    assert lines[3].startswith("| [table2](docs/results/table2.md) |")
    assert lines[3].endswith("| 1 of 3 † | - | x |")


def test_a_file_without_markers_is_refused(tmp_path):
    text = f"before\n{BEGIN}\nold\n{END}\nafter"
    assert with_block(text, "new", tmp_path) == f"before\n{BEGIN}\nnew\n{END}\nafter"
    with pytest.raises(DataError, match="has no lines"):
        with_block("nothing", "new", tmp_path)
