"""What a study is: independent cells that can be run one by one, and a page made of their results."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Settings = dict[str, Any]
Results = dict[str, Any]


@dataclass(frozen=True)
class CellRecord:
    """One finished cell.

    Attributes:
        settings: everything that decides the result.
        results: what came out.
        commit: version of the code that ran.
        time_s: seconds that it took.
    """

    settings: Settings
    results: Results
    commit: str
    time_s: float

    @property
    def key(self) -> str:
        """Identity of the cell."""
        return cell_key(self.settings)


@dataclass(frozen=True)
class Gate:
    """One thing that a study must show.

    Attributes:
        name: what is asked for.
        found: what was found.
        is_met: whether it is enough; None while cells are missing.
    """

    name: str
    found: str
    is_met: bool | None


@dataclass(frozen=True)
class Page:
    """What a study says about its records: Markdown text and its gates."""

    body: str
    gates: list[Gate]


@dataclass(frozen=True)
class Study:
    """A question, the cells that answer it and how they are read.

    Attributes:
        name: word on the command line.
        title: heading of the page.
        cells: settings of every cell, most telling first; takes the seeds asked for (None: the study's own) and
            whether only a quick look is wanted.
        run: runs one cell.
        page: reads the finished cells.
        reads: studies whose records serve here too, where the settings are the same.
    """

    name: str
    title: str
    cells: Callable[[Sequence[int] | None, bool], list[Settings]]
    run: Callable[[Settings], Results]
    page: Callable[[list[CellRecord]], Page]
    reads: tuple[str, ...] = ()


def cell_key(settings: Settings) -> str:
    """Return a cell's identity: its settings as canonical JSON."""
    return json.dumps(settings, sort_keys=True)


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write a Markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
