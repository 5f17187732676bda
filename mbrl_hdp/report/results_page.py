"""The pages of all studies as sections of one HTML page, with their figures inside."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

from mbrl_hdp.data.plain_files import file_problem, read_words
from mbrl_hdp.experiments.overview import QUESTIONS
from mbrl_hdp.experiments.studies.study import MARK

_WRITTEN = "Written by `mbrl-hdp reproduce"
_FINISHED = " cells are finished"
_GATES = "| required | found | gate |"
# Of a longer list of requirements those that are met are folded away.
_MANY_GATES = 6
_PNG = b"\x89PNG\r\n"
_MOST_FIGURE_BYTES = 2 << 20
_EXPONENT = re.compile(r"(\d)e-(\d)")


@dataclass(frozen=True)
class StudySection:
    """The page of one study.

    Attributes:
        name: name of the study.
        title: heading of its page.
        question: what it asks, as HTML.
        cells: finished of planned cells, marked if some are stale; empty for a study without cells.
        gates: how many requirements are met, missed and open; empty for a study without any.
        state: the cells at length: what is stale and why.
        body: the rest, as HTML.
    """

    name: str
    title: str
    question: Markup
    cells: str
    gates: str
    state: str
    body: Markup


def study_files(folder: Path) -> list[Path]:
    """Return the pages of studies in a folder, in the order in which they are read."""
    found = [folder / f"{name}.md" for name in QUESTIONS]
    return [path for path in found if path.is_file() and _WRITTEN in read_words(path)]


def is_results(folder: Path) -> bool:
    """Return whether a folder holds pages that `mbrl-hdp reproduce` wrote."""
    return folder.is_dir() and bool(study_files(folder))


def study_sections(folder: Path) -> list[StudySection]:
    """Read the pages of all studies in a folder."""
    files = study_files(folder)
    known = {path.stem for path in files}
    return [_section(path, known) for path in files]


def _section(path: Path, known: set[str]) -> StudySection:
    heading, _, rest = read_words(path).partition("\n")
    blocks = [block for block in rest.strip().split("\n\n") if not block.startswith(_WRITTEN)]
    has_state = bool(blocks) and _FINISHED in blocks[0]
    state = blocks.pop(0) if has_state else ""
    words = str(Markup(to_html(state, path.parent, known)).striptags())
    cells = words.partition(_FINISHED)[0] + (f" {MARK}" if "Stale:" in words else "")
    gates = blocks.pop(0) if blocks and blocks[0].startswith(_GATES) else ""
    counts = _gate_counts(gates)
    body = _folded(gates, counts, path.parent, known) + to_html("\n\n".join(blocks), path.parent, known)
    question = Markup(MarkdownIt("commonmark", {"html": False}).renderInline(QUESTIONS[path.stem]))
    shown = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    return StudySection(path.stem, heading.lstrip("# "), question, cells, shown, words, Markup(body))


def _gate_counts(gates: str) -> dict[str, int]:
    rows = gates.splitlines()[2:]
    return {word: sum(_outcome(row) == word for row in rows) for word in ("met", "missed", "open")}


def _outcome(row: str) -> str:
    """Return whether a requirement is met, missed or open: the first word of the last cell of its row."""
    return row.rstrip("| ").rpartition("| ")[2].partition(" ")[0].strip("*")


def _folded(gates: str, counts: dict[str, int], folder: Path, known: set[str]) -> str:
    """Return the table of requirements; of a long one those that are met are folded away."""
    head, rows = gates.splitlines()[:2], gates.splitlines()[2:]
    if len(rows) <= _MANY_GATES:
        return to_html(gates, folder, known)
    met = [row for row in rows if _outcome(row) == "met"]
    others = [row for row in rows if _outcome(row) != "met"]
    shown = to_html("\n".join([*head, *others]), folder, known) if others else ""
    hidden = to_html("\n".join([*head, *met]), folder, known)
    return f"{shown}<details><summary>{counts['met']} of {len(rows)} requirements are met</summary>{hidden}</details>"


def to_html(text: str, folder: Path, known: set[str]) -> str:
    """Return Markdown as HTML that needs no other file.

    HTML in the text is escaped. Pictures of the folder are put inside; links to other studies lead to their sections.

    Args:
        text: the Markdown.
        folder: where its pictures are.
        known: studies that have a section.
    """
    reader = MarkdownIt("commonmark", {"html": False}).enable("table")
    reader.add_render_rule("table_open", lambda *_: '<div class="scroll"><table class="rows">')
    reader.add_render_rule("table_close", lambda *_: "</table></div>")
    tokens = reader.parse(text)
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(int(token.tag[1]) + 1, 6)}"  # a section has the heading of level 2
        for child in token.children or ():
            _move_inside(child, folder, known)
    return str(reader.renderer.render(tokens, reader.options, {}))


def _move_inside(token: Token, folder: Path, known: set[str]) -> None:
    """Make a picture part of the page, a link to another study one to its section, and keep numbers on one line."""
    if token.type == "image":
        token.attrs["src"] = _picture(folder, str(token.attrs["src"]))
        token.attrs["class"] = "rollout"
    elif token.type == "text":
        token.content = _EXPONENT.sub("\\1e\N{NON-BREAKING HYPHEN}\\2", token.content)
    elif token.type == "link_open":
        target = str(token.attrs["href"])
        if target.endswith(".md") and target.removesuffix(".md") in known:
            token.attrs["href"] = f"#study-{target.removesuffix('.md')}"


def _picture(folder: Path, source: str) -> str:
    """Return a PNG of the folder as a data address, an empty one where there is none."""
    path = (folder / source).resolve()
    is_inside = path.is_relative_to(folder.resolve()) and path.is_file()
    content: Any = path.read_bytes() if is_inside and file_problem(path, _MOST_FIGURE_BYTES) is None else b""
    return "data:image/png;base64," + base64.b64encode(content).decode() if content.startswith(_PNG) else "data:,"


def title_of(sections: Sequence[StudySection]) -> str:
    """Return the title of the page."""
    return f"Results of {len(sections)} studies"
