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
    assert table2.cells == "2 of 3 cells are finished †"
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
