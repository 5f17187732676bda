"""Studies: independent cells that can be run one by one, and a page made of their results."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from mbrl_hdp.experiments.fingerprint import fingerprint_of
from mbrl_hdp.experiments.studies.drawings import Drawing

Settings = dict[str, Any]
Results = dict[str, Any]
Item = TypeVar("Item")

CURRENT = "current"
NEVER_RUN = "never run"
NO_FINGERPRINT = "run before fingerprints"
BY_CODE = "stale by code"
BY_CONFIG = "stale by configuration"
STATES = (CURRENT, BY_CODE, BY_CONFIG, NO_FINGERPRINT, NEVER_RUN)
MARK = "\u2020"


@dataclass(frozen=True)
class Identity:
    """What decides the result of a cell.

    Attributes:
        config: its fully resolved configuration: no default is left out.
        code: fingerprint of the code that runs it (`experiments/fingerprint.py`).
    """

    config: Settings
    code: str


@dataclass(frozen=True)
class Confirmation:
    """Why a cell that was run with earlier code counts as up to date (`experiments/confirm.py`).

    Attributes:
        commit: version of the code on which a sample was run again.
        sample: cells of the sample; all had the same results.
        group: cells that the sample stands for, itself included.
    """

    commit: str
    sample: int
    group: int


@dataclass(frozen=True)
class CellRecord:
    """One finished cell.

    Attributes:
        settings: name of the cell: what distinguishes it from the other cells of its study.
        results: what came out.
        commit: version of the code that ran.
        time_s: seconds that it took.
        identity: what decided the result; None for cells that were run before there were fingerprints.
        state: whether it is up to date, one of `STATES`.
        confirmation: the sample that it stands by, where it was not run with the present code itself.
    """

    settings: Settings
    results: Results
    commit: str
    time_s: float
    identity: Identity | None = None
    state: str = CURRENT
    confirmation: Confirmation | None = None

    @property
    def key(self) -> str:
        """The cell's name as one word."""
        return cell_key(self.settings)

    @property
    def seed(self) -> str:
        """The seed as pages show it, with a mark if the cell is stale."""
        return f"{self.settings['seed']}" + ("" if self.state == CURRENT else f" {MARK}")


@dataclass(frozen=True)
class Gate:
    """One requirement of a study.

    Attributes:
        name: what is required.
        found: what was found.
        is_met: whether it is enough; None while cells are missing.
    """

    name: str
    found: str
    is_met: bool | None


@dataclass(frozen=True)
class Page:
    """The report of a study on its records: Markdown text, gates and figures."""

    body: str
    gates: list[Gate]
    drawings: Sequence[Drawing] = ()


@dataclass(frozen=True)
class Study:
    """A question, the cells that answer it and how they are read.

    Attributes:
        name: word on the command line.
        title: heading of the page.
        cells: settings of every cell, most important first; takes the seeds asked for (None: the study's own) and
            whether only a quick look is wanted.
        run: runs one cell; its module holds nothing that is only for pages, since all of it is fingerprinted.
        page: reads the finished cells.
        resolve: returns the fully resolved configuration of a cell.
        reads: studies whose records serve here too, where the settings are the same.
        runner: returns the function behind `run` for a cell, where cells are run by different modules.
        headline: returns the finding in one line, ours beside the paper's, for the list of all studies.
    """

    name: str
    title: str
    cells: Callable[[Sequence[int] | None, bool], list[Settings]]
    run: Callable[[Settings], Results]
    page: Callable[[list[CellRecord]], Page]
    resolve: Callable[[Settings], Settings]
    reads: tuple[str, ...] = ()
    runner: Callable[[Settings], Callable[[Settings], Results]] | None = None
    headline: Callable[[list[CellRecord]], str] | None = None

    def identity(self, settings: Settings) -> Identity:
        """Return what decides the result of a cell, as the code and the presets are now."""
        config: Settings = json.loads(json.dumps(self.resolve(settings)))
        return Identity(config, fingerprint_of(self.module_of(settings), config))

    def module_of(self, settings: Settings) -> str:
        """Return the name of the module that runs a cell."""
        run = self.run if self.runner is None else self.runner(settings)
        return run.__module__


def state_of(record: CellRecord | None, identity: Identity) -> str:
    """Return whether a cell is up to date, one of `STATES`.

    A configuration that has only got further settings, at their defaults, is the same one under other code.
    """
    if record is None:
        return NEVER_RUN
    if record.identity is None:
        return NO_FINGERPRINT
    if not _has_grown(record.identity.config, identity.config):
        return BY_CONFIG
    if record.identity.config != identity.config:
        return BY_CODE
    return CURRENT if record.identity.code == identity.code else BY_CODE


def _has_grown(before: Settings, now: Settings) -> bool:
    """Return whether all that was set before is set to the same now."""
    for key, value in before.items():
        other = now.get(key)
        if isinstance(value, dict) and isinstance(other, dict):
            if not _has_grown(value, other):
                return False
        elif key not in now or value != other:
            return False
    return True


def changed_keys(before: Settings, now: Settings, prefix: str = "") -> list[str]:
    """Return which keys of a configuration changed, as `key: before -> now`.

    Example:
        >>> changed_keys({"prior": {"stay": 0.8}}, {"prior": {"stay": 0.9}})
        ['prior.stay: 0.8 -> 0.9']
    """
    found = []
    for key in sorted({*before, *now}):
        one, two = before.get(key), now.get(key)
        if isinstance(one, dict) and isinstance(two, dict):
            found += changed_keys(one, two, f"{prefix}{key}.")
        elif one != two:
            found.append(f"{prefix}{key}: {json.dumps(one)} -> {json.dumps(two)}")
    return found


def cell_key(settings: Settings) -> str:
    """Return a cell's name: its settings as canonical JSON."""
    return json.dumps(settings, sort_keys=True)


def cell_words(settings: Settings) -> str:
    """Return a cell's name for people: what is short enough to be read."""
    shown = (
        "family",
        "switch",
        "method",
        "system",
        "variant",
        "prior",
        "max_contexts",
        "agent",
        "failure",
        "task",
        "warm_episodes",
        "profile",
        "seed",
    )
    words = {key: settings[key]["name"] if key == "prior" else settings[key] for key in shown if key in settings}
    return " ".join(f"{key}={value}" for key, value in words.items())


def table_of(items: Sequence[Item], columns: Mapping[str, Callable[[Item], str]]) -> str:
    """Write a Markdown table with one row an item; a column is its heading and what it shows of an item."""
    return table(list(columns), [[shown(item) for shown in columns.values()] for item in items])


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write a Markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
