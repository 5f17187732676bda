"""`mbrl-hdp report docs/results`: one page of all studies, which needs no other file."""

import numpy as np
from PIL import Image

from mbrl_hdp.cli import main
from mbrl_hdp.report.results_page import is_results, study_sections, to_html

PAGE = """# Table 2: returns

Written by `mbrl-hdp reproduce table2`; do not edit.

2 of 3 cells are finished. **Stale: one.**

| required | found |
| --- | --- |
| at least 1 | <script>2</script> 1e-05 |

See [result C](resultC.md) and [baselines](../baselines.md).

![A figure.](figures/curve.png)

## More
"""


def write(folder):
    (folder / "figures").mkdir()
    Image.fromarray(np.zeros((3, 4, 3), dtype=np.uint8)).save(folder / "figures" / "curve.png")
    (folder / "table2.md").write_text(PAGE)
    (folder / "resultC.md").write_text(
        "# Result C\n\nWritten by `mbrl-hdp reproduce resultC`; do not edit.\n\nWords.\n"
    )
    (folder / "planners.md").write_text("# Planners\n\nNo study.\n")


def test_sections_are_the_pages_of_studies_in_their_order(tmp_path):
    assert not is_results(tmp_path)
    write(tmp_path)
    table2, result_c = study_sections(tmp_path)
    assert (table2.title, result_c.title) == ("Table 2: returns", "Result C")
    assert table2.state == "2 of 3 cells are finished. Stale: one."
    assert table2.cells == "2 of 3 †"
    assert table2.gates == result_c.gates == ""
    assert result_c.state == result_c.cells == ""


def test_text_is_escaped_tables_scroll_and_links_lead_to_sections(tmp_path):
    write(tmp_path)
    body = study_sections(tmp_path)[0].body
    assert "<script>" not in body
    assert '<div class="scroll"><table class="rows">' in body
    assert 'href="#study-resultC"' in body
    assert 'href="../baselines.md"' in body
    assert "<h3>More</h3>" in body
    assert "1e\N{NON-BREAKING HYPHEN}05" in body
    assert "data:image/png;base64,iVBOR" in body


def test_pictures_from_elsewhere_are_left_out(tmp_path):
    write(tmp_path)
    inner = tmp_path / "inner"
    inner.mkdir()
    assert 'src="data:,"' in to_html("![x](../figures/curve.png)", inner, set())
    assert "javascript" not in to_html("[x](javascript:alert(1))", inner, set()).replace("(javascript:alert(1))", "")


def test_the_command_writes_one_page(tmp_path, capsys):
    write(tmp_path)
    assert main(["report", str(tmp_path)]) == 0
    text = (tmp_path / "report.html").read_text()
    assert str(tmp_path / "report.html") in capsys.readouterr().out
    assert '<section id="study-table2">' in text
    assert "Results of 2 studies" in text
    assert "<link" not in text.replace('<link rel="icon" href="data:,">', "")


def with_gates(folder, outcomes):
    rows = "\n".join(f"| number {place} | {place} | {outcome} |" for place, outcome in enumerate(outcomes))
    gates = f"| required | found | gate |\n| --- | --- | --- |\n{rows}"
    heading = "# Table 1\n\nWritten by `mbrl-hdp reproduce table1`; do not edit."
    (folder / "table1.md").write_text(f"{heading}\n\n3 of 3 cells are finished.\n\n{gates}\n\nWords.\n")
    return study_sections(folder)[0]


def test_requirements_are_counted_and_a_long_list_is_folded(tmp_path):
    few = with_gates(tmp_path, ["met", "**missed** †", "open (cells missing) †"])
    assert few.gates == "1 met, 1 missed, 1 open"
    assert "<details>" not in few.body
    many = with_gates(tmp_path, ["met †", "**missed**", *["met"] * 5])
    assert many.gates == "6 met, 1 missed"
    shown, _, hidden = many.body.partition("<details><summary>6 of 7 requirements are met</summary>")
    assert "number 1<" in shown
    assert "number 0<" not in shown
    assert "number 1<" not in hidden.partition("</details>")[0]
    assert "number 0<" in hidden
    assert "number 6<" in hidden
    assert "Words." in hidden


def test_questions_have_their_code(tmp_path):
    (tmp_path / "logs.md").write_text("# Logs\n\nWritten by `mbrl-hdp reproduce logs`; do not edit.\n\nWords.\n")
    assert "<code>fit</code>" in study_sections(tmp_path)[0].question
