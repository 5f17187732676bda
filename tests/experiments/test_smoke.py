"""Every study runs in its smallest form, writes its page, CSV and JSON lines, and shows the figures that it draws.

All share one folder: studies that read each other's cells do not run them twice.
"""

import csv
import importlib.util
import json

import pytest

from mbrl_hdp.cli import main
from mbrl_hdp.experiments.studies import load_study, study_names

# Figures that do not depend on what comes out.
FIGURES = {
    "resultC": {"resultC_curves"},
    "merging": {"merging_courses"},
    "nonmarkov": {"nonmarkov_chain", "nonmarkov_course"},
    "statedependent": {"statedependent_chain", "statedependent_course"},
    "newcontexts": {"newcontexts_chains", "newcontexts_courses"},
    "sixteen": {"sixteen_course"},
    "nu_study": {"nu_study"},
    "sample_efficiency": {"sample_efficiency"},
}
# Their smallest cells still fit several systems with defaults: minutes.
LONG = {"novelty", "belief_reliability", "durations"}
NEEDS = {"rnn_variants": "sb3_contrib", "peers": "dynamax", "table3": "pybullet"}


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return tmp_path_factory.mktemp("results")


@pytest.mark.parametrize("name", [name for name in study_names() if name not in LONG])
def test_a_study_runs_and_writes_its_files(name, out, monkeypatch, capsys):
    if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f"{NEEDS[name]} is not installed")
    monkeypatch.chdir(out)
    assert main(["reproduce", name, "--profile", "smoke", "--out", "."]) == 0
    assert f"smoke/{name}.md" in capsys.readouterr().out
    folder, study = out / "smoke", load_study(name)
    page, cells = (folder / f"{name}.md").read_text(), study.cells(None, True)
    assert page.startswith(f"# {study.title}\n")
    drawn = {path.stem for path in (folder / "figures").glob("*.png") if f"(figures/{path.name})" in page}
    assert drawn >= FIGURES.get(name, set())
    if cells:
        assert f"{len(cells)} of {len(cells)} cells are finished." in page
        assert "Stale" not in page
        with (folder / f"{name}.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert [int(row["setting.seed"]) for row in rows] == [cell["seed"] for cell in cells]


def test_the_cells_are_json_lines_and_shared_between_studies(out):
    """resultC reads the cells of table2 and baselines: none is run again for it."""
    found = {name: out / "smoke" / f"{name}.jsonl" for name in ("table2", "resultC", "baselines")}
    if not found["table2"].is_file():
        pytest.skip("the studies above were not selected")
    rows = [json.loads(line) for line in found["table2"].read_text().splitlines()]
    assert [row["settings"]["agent"] for row in rows] == ["C-CEM", "DNNMM"]
    assert set(rows[0]["results"]) == {"summary", "curve", "train_curve", "course"}
    assert len(rows[0]["results"]["course"]["truth"]) == len(rows[0]["results"]["course"]["labels"]) == 12
    assert not found["resultC"].exists()
    assert not found["baselines"].exists()
