"""`mbrl-hdp reproduce`: run a study cell by cell, resumable, and write its page beside the paper's numbers.

A cell is run again when its resolved configuration or the code that decides it is not what it was (`Study.identity`).
"""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from mbrl_hdp.data.atomic import atomic_path
from mbrl_hdp.errors import ConfigError, did_you_mean
from mbrl_hdp.experiments.cells import TimeBudget, run_cell, run_cells
from mbrl_hdp.experiments.config import MAX_SEED
from mbrl_hdp.experiments.confirm import confirm
from mbrl_hdp.experiments.studies import load_study, study_names
from mbrl_hdp.experiments.studies.drawings import Drawing
from mbrl_hdp.experiments.studies.records import changes, read_records, state_counts, write_csv
from mbrl_hdp.experiments.studies.study import (
    CURRENT,
    MARK,
    NEVER_RUN,
    STATES,
    CellRecord,
    Gate,
    Settings,
    Study,
    cell_key,
    cell_words,
    table,
)
from mbrl_hdp.workers import LOCAL, open_workers

# A change here that is not committed is mentioned in the record.
_SOURCES = ("mbrl_hdp", "plugins", "conf")
_MANY_STALE = 20
# Folder of the figures, beside the pages.
FIGURES = "figures"


@dataclass(frozen=True)
class ReproduceOptions:
    """How to run studies.

    Attributes:
        seeds: seeds to run instead of the study's own.
        jobs: processes side by side on this machine, one thread each.
        is_quick: tiny cells, to see that the command works.
        out: folder of the pages and the finished cells.
        sizes: only these max_contexts; all by default.
        is_page_only: write the pages from the cells that are there; run nothing.
        only: run only the cells whose setting of this name has one of these values; all by default.
        is_missing_only: leave stale cells as they are.
        confirm: cells to run again for each earlier version of the code, instead of all that are stale by code.
        on: where the cells are run, `local` or `ray`.
        budget_s: seconds within which to end; cells that would not fit are left.
    """

    seeds: Sequence[int] | None = None
    jobs: int = 1
    is_quick: bool = False
    out: Path = Path("docs/results")
    sizes: Sequence[int] | None = None
    is_page_only: bool = False
    only: Mapping[str, Sequence[str]] = field(default_factory=dict)
    is_missing_only: bool = False
    confirm: int = 0
    on: str = LOCAL
    budget_s: float | None = None

    @property
    def folder(self) -> Path:
        """Folder of this kind of run: quick looks never mix with real ones."""
        return self.out / "smoke" if self.is_quick else self.out


@dataclass(frozen=True)
class WrittenPage:
    """A page that was written, and the figures that it shows, which are drawn into the folder `figures` beside it."""

    path: Path
    drawings: Sequence[Drawing] = ()


def reproduce(name: str, options: ReproduceOptions) -> list[WrittenPage]:
    """Run the cells of a study (or of `all`) that are not up to date and write its pages; return them."""
    if options.jobs < 1:
        raise ConfigError(f"--jobs must be at least 1, got {options.jobs}")
    if options.confirm < 0:
        raise ConfigError(f"--confirm must be at least 1 cell, got {options.confirm}")
    if any(not 0 <= seed <= MAX_SEED for seed in options.seeds or ()):
        raise ConfigError(f"--seeds takes numbers from 0 to {MAX_SEED}, got {list(options.seeds or ())}")
    studies = _studies(name)
    if options.sizes is not None:
        known = {size for study in studies for size in _sizes(study.cells(options.seeds, options.is_quick))}
        if not known & set(options.sizes):
            there = _listed(sorted(known)) or "no sizes"
            raise ConfigError(f"--sizes {_listed(options.sizes)}: {name} has no such cell; it has {there}")
    _check_only(studies, options)
    if any(place.exists() and not place.is_dir() for place in (options.folder, *options.folder.parents)):
        raise ConfigError(f"--out {options.out}: there is a file of that name; choose a folder")
    options.folder.mkdir(parents=True, exist_ok=True)
    budget = TimeBudget(options.budget_s)
    return [_reproduce(study, options, budget) for study in studies]


def _check_only(studies: Sequence[Study], options: ReproduceOptions) -> None:
    """Raise if `--only` selects no cell at all."""
    cells = [cell for study in studies for cell in study.cells(options.seeds, options.is_quick)]
    known = {key for cell in cells for key in cell}
    for key, values in options.only.items():
        if key not in known:
            raise ConfigError(f"--only {key}=...: no cell has this setting; {did_you_mean(key, sorted(known))}")
        there = sorted({_shown(cell[key]) for cell in cells if key in cell})
        if not set(values) & set(there):
            raise ConfigError(f"--only {key}={','.join(values)}: no such cell; there are {', '.join(there)}")


def _is_selected(cell: Settings, only: Mapping[str, Sequence[str]]) -> bool:
    return all(key in cell and _shown(cell[key]) in values for key, values in only.items())


def _shown(value: object) -> str:
    """Return a setting as `--only` takes it: parts of the model by their names."""
    return str(value["name"] if isinstance(value, dict) and "name" in value else value)


def stale(name: str, options: ReproduceOptions) -> tuple[list[list[str]], list[str]]:
    """Return a row for each study (or for one) with its cells by state, and which keys of the configuration changed.

    Returns:
        Rows of study, number of cells and their number in each of `STATES`; lines on what changed.
    """
    rows, lines = [], []
    for study in _studies(name):
        cells = study.cells(None, options.is_quick)
        records = read_records(study, options.folder, cells)
        rows.append([study.name, str(len(cells)), *map(str, state_counts(records, cells).values())])
        lines += [f"{study.name}: {words}" for words in changes(study, records)]
    return rows, lines


def listing() -> list[list[str]]:
    """Return a row for each study: name, number of cells, sizes, title."""
    rows = []
    for study in _studies("all"):
        cells = study.cells(None, False)
        rows.append([study.name, str(len(cells)), _listed(_sizes(cells)), study.title])
    return rows


def _sizes(cells: Sequence[Settings]) -> list[int]:
    return sorted({cell["max_contexts"] for cell in cells if "max_contexts" in cell})


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def _studies(name: str) -> list[Study]:
    names = study_names()
    if name != "all" and name not in names:
        raise ConfigError(f"unknown study {name!r}; {did_you_mean(name, [*names, 'all'])}")
    return [load_study(each) for each in (names if name == "all" else [name])]


def _reproduce(study: Study, options: ReproduceOptions, budget: TimeBudget) -> WrittenPage:
    if not options.is_page_only and options.confirm:
        run = partial(run_cell, study, code_version())
        for outcome in confirm(study, options.folder, _asked(study, options), options.confirm, run):
            print(f"{study.name}: {outcome.words}", flush=True)
    elif not options.is_page_only:
        run_missing(study, options, budget)
    return write_page(study, options)


def _asked(study: Study, options: ReproduceOptions) -> list[Settings]:
    """Return the cells of a study that the options select."""
    cells = study.cells(options.seeds, options.is_quick)
    if options.sizes is not None:
        known = _sizes(cells)
        cells = [cell for cell in cells if cell.get("max_contexts") in options.sizes]
        if not cells:
            print(
                f"{study.name} has no cell of --sizes {_listed(options.sizes)}; it has {_listed(known) or 'no sizes'}"
            )
    cells = [cell for cell in cells if _is_selected(cell, options.only)]
    return cells


def run_missing(study: Study, options: ReproduceOptions, budget: TimeBudget) -> int:
    """Run the cells that were never run or are stale; return how many."""
    cells = _asked(study, options)
    records = read_records(study, options.folder, cells)
    done = {key for key, record in records.items() if options.is_missing_only or record.state == CURRENT}
    cells = [cell for cell in cells if cell_key(cell) not in done]
    if not cells:
        return 0
    with open_workers(options.on, min(options.jobs, len(cells))) as workers:
        return run_cells(study, cells, options.folder, code_version(), workers, budget)


def write_page(study: Study, options: ReproduceOptions) -> WrittenPage:
    """Write a study's page from the cells that are finished; stale ones are shown and marked."""
    cells = study.cells(None, options.is_quick)
    own = {cell_key(cell) for cell in cells}
    cells += [cell for cell in study.cells(options.seeds, options.is_quick) if cell_key(cell) not in own]
    known = read_records(study, options.folder, cells)
    records = [known[key] for key in map(cell_key, cells) if key in known]
    path = options.folder / f"{study.name}.md"
    if options.is_page_only and cells and not records:  # nothing to show yet
        return WrittenPage(path)
    page = study.page(records) if records or not cells else None
    text = [f"# {study.title}", "", f"Written by `mbrl-hdp reproduce {study.name}`; do not edit.", ""]
    if cells:
        text += [
            f"{len(records)} of {len(cells)} cells are finished.{_stale_words(records)}{_confirmed_words(records)}",
            "",
        ]
    if page is not None:
        is_stale = any(record.state != CURRENT for record in records)
        text += [_gates(page.gates, is_stale), ""] if cells else []
        text += [page.body, ""]
        for drawing in page.drawings:
            text += [f"![{drawing.caption}]({FIGURES}/{drawing.name}.png)", "", drawing.caption, ""]
    if records:
        text += [_provenance(study, records), ""]
        write_csv(records, path.with_suffix(".csv"))
    with atomic_path(path) as temporary:
        temporary.write_text("\n".join(text))
    return WrittenPage(path, page.drawings if page is not None else ())


def _stale_words(records: list[CellRecord]) -> str:
    """Return which cells are stale and why, in Markdown; nothing if none is."""
    by_state = {
        state: [r for r in records if r.state == state] for state in STATES if state not in (CURRENT, NEVER_RUN)
    }
    lines = []
    for state, group in by_state.items():
        if group and len(group) == len(records):
            lines.append(f"all {len(group)} {state}")
        elif group:
            shown = [cell_words(record.settings) for record in group[:_MANY_STALE]]
            more = f"; and {len(group) - _MANY_STALE} more" if len(group) > _MANY_STALE else ""
            lines.append(f"{len(group)} {state} ({'; '.join(shown)}{more})")
    if not lines:
        return ""
    return (
        f" **Stale: {'; '.join(lines)}.** Stale cells were measured with other code or other settings than the present "
        f"ones, or before that was recorded. They and gates are marked {MARK}; `mbrl-hdp reproduce` runs them again."
    )


def _confirmed_words(records: list[CellRecord]) -> str:
    """Return which cells stand by a sample that was run again; nothing if none does."""
    notes = Counter(r.confirmation for r in records if r.confirmation is not None and r.state == CURRENT)
    lines = [
        f"{number} were run with earlier code only; {note.sample} of the {note.group} cells of it were run again "
        f"at {note.commit}, with the same results but for rounding"
        for note, number in notes.items()
    ]
    return f" Confirmed by sample: {'; '.join(lines)}." if lines else ""


def code_version() -> str:
    """Return the commit of this checkout, with `+changes` where code that matters is not committed."""
    root = Path(__file__).resolve().parents[2]
    try:
        commit = _git(root, "rev-parse", "--short=12", "HEAD")
        changes = _git(root, "status", "--porcelain", "--untracked-files=no", "--", *_SOURCES)
    except (OSError, subprocess.CalledProcessError):
        from mbrl_hdp import __version__

        return f"release {__version__}"
    return commit + ("+changes" if changes else "")


def only_of(words: Sequence[str]) -> dict[str, list[str]]:
    """Read `setting=value,value` for each word.

    Example:
        >>> only_of(["agent=C-CEM,C-SAC", "task=drone"])
        {'agent': ['C-CEM', 'C-SAC'], 'task': ['drone']}
    """
    found = {}
    for word in words:
        key, equals, values = word.partition("=")
        if not (key and equals and values):
            raise ConfigError(f"--only takes setting=value, as in agent=C-CEM, got {word!r}")
        found[key] = values.split(",")
    return found


def _git(root: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", str(root), *words], check=True, capture_output=True, text=True).stdout.strip()


def _gates(gates: list[Gate], is_stale: bool) -> str:
    if not gates:
        return "This study has no gates; it reports."
    marks = {True: "met", False: "**missed**", None: "open (cells missing)"}
    note = f" {MARK}" if is_stale else ""
    rows = [[gate.name, gate.found, marks[gate.is_met] + note] for gate in gates]
    return table(("required", "found", "gate"), rows)


def _provenance(study: Study, records: list[CellRecord]) -> str:
    commits = sorted({record.commit for record in records})
    seeds = sorted({record.settings["seed"] for record in records})
    total = sum(record.time_s for record in records)
    example = {key: value for key, value in records[0].settings.items() if key not in {"seed", "max_contexts"}}
    return (
        f"Seeds {', '.join(map(str, seeds))}; code {', '.join(commits)}; {total / 60:.0f} minutes of one thread (on a "
        f"machine that was shared, so times are upper bounds). Every cell with its settings is in `{study.name}.jsonl`"
        + (f" and {', '.join(f'`{name}.jsonl`' for name in study.reads)}" if study.reads else "")
        + f", its single values in `{study.name}.csv`. Settings of the first cell: `{json.dumps(example)}`."
    )
