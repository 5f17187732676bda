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
_PNG = b"\x89PNG\r\n"
_MOST_FIGURE_BYTES = 2 << 20
_EXPONENT = re.compile(r"(\d)e-(\d)")


@dataclass(frozen=True)
class StudySection:
    """The page of one study.

    Attributes:
        name: name of the study.
        title: heading of its page.
        question: what it asks.
        cells: how many cells are finished, marked if some are stale; empty for a study without cells.
        state: the same at length: what is stale and why.
        body: the rest, as HTML.
    """

    name: str
    title: str
    question: str
    cells: str
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
    has_state = bool(blocks) and "cells are finished" in blocks[0]
    state = blocks.pop(0) if has_state else ""
    words = str(Markup(to_html(state, path.parent, known)).striptags())
    cells = words.partition(".")[0] + (f" {MARK}" if "Stale:" in words else "")
    body = Markup(to_html("\n\n".join(blocks), path.parent, known))
    return StudySection(path.stem, heading.lstrip("# "), QUESTIONS[path.stem], cells, words, body)


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
