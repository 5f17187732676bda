"""The README's code runs, its commands exist, its links lead somewhere."""

import re
from pathlib import Path

import pytest

from mbrl_hdp.cli import _COMMANDS

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in ("control", "environments", "logs", "report"))]
TEXT = "\n".join(page.read_text() for page in PAGES)


def test_python_blocks_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert len(blocks) >= 4
    namespace = {"__name__": "readme"}
    for number, block in enumerate(blocks):
        exec(compile(block, f"README block {number}", "exec"), namespace)
    assert "FlatPrior" in namespace


def test_own_prior_is_about_twenty_lines():
    section = README.split("## Your own prior in 20 lines")[1]
    block = re.findall(r"```python\n(.*?)```", section, re.DOTALL)[0]
    code = [line for line in block.splitlines() if line.strip() and not line.startswith(("import", "from"))]
    assert len(code) <= 20


@pytest.mark.parametrize("command", sorted(set(re.findall(r"^    \$?\s*mbrl-hdp (\w+)", TEXT, re.MULTILINE))))
def test_commands_exist(command):
    assert command in _COMMANDS


def test_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"`?make ([a-z]+)", README)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert link.startswith("https://") or (page.parent / link).exists(), link


def test_every_command_is_in_the_readme():
    assert set(re.findall(r"^    mbrl-hdp (\w+)", README, re.MULTILINE)) == set(_COMMANDS)


def test_the_refusal_shown_is_the_real_one(capsys):
    from mbrl_hdp.cli import main

    (words, message) = re.findall(r"\$ mbrl-hdp ([^\n]+)\n\s+(mbrl-hdp: [^\n]+)", README)[0]
    assert main(words.split()) == 2
    assert capsys.readouterr().err.strip() == message


def test_no_page_holds_the_marks_of_a_merge():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "conf").rglob("*.yaml")]
    assert [page.name for page in pages if re.search(r"^(<{7}|>{7}|={7}$)", page.read_text(), re.MULTILINE)] == []
