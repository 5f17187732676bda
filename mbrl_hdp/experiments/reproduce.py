"""`mbrl-hdp reproduce`: run a study cell by cell, resumable, and write its page beside the paper's numbers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mbrl_hdp.data.atomic import atomic_path
from mbrl_hdp.errors import ConfigError, MbrlHdpError, did_you_mean
from mbrl_hdp.experiments.studies import load_study, study_names
from mbrl_hdp.experiments.studies.study import CellRecord, Gate, Study, cell_key, table

# Code that decides a study's numbers: a change here that is not committed is told in the record.
_ROOMS = ("inference", "probability", "distil", "envs", "data", "belief", "control")
_SOURCES = (*(f"mbrl_hdp/{room}" for room in _ROOMS), "plugins")


@dataclass(frozen=True)
class ReproduceOptions:
    """How to run studies.

    Attributes:
        seeds: seeds to run instead of the study's own.
        jobs: processes side by side, one thread each.
        is_quick: tiny cells, to see that the command works.
        out: folder of the pages and the finished cells.
        sizes: only these max_contexts; all by default.
        share: (index, count): run only every count-th cell from index on, without writing the page.
    """

    seeds: Sequence[int] | None = None
    jobs: int = 1
    is_quick: bool = False
    out: Path = Path("docs/results")
    sizes: Sequence[int] | None = None
    share: tuple[int, int] | None = None

    @property
    def folder(self) -> Path:
        """Folder of this kind of run: quick looks never mix with real ones."""
        return self.out / "quick" if self.is_quick else self.out


def reproduce(name: str, options: ReproduceOptions) -> list[Path]:
    """Run what is missing of a study (or of `all`) and write its pages; return their paths."""
    if options.jobs < 1:
        raise ConfigError(f"--jobs must be at least 1, got {options.jobs}")
    names = study_names()
    if name != "all" and name not in names:
        raise ConfigError(f"unknown study {name!r}; {did_you_mean(name, [*names, 'all'])}")
    options.folder.mkdir(parents=True, exist_ok=True)
    return [_reproduce(load_study(each), options) for each in (names if name == "all" else [name])]


def _reproduce(study: Study, options: ReproduceOptions) -> Path:
    if options.jobs > 1 and options.share is None:
        _run_side_by_side(study.name, options)
    else:
        run_missing(study, options)
    if options.share is not None:
        return records_path(study.name, options.folder)
    return write_page(study, options)


def run_missing(study: Study, options: ReproduceOptions) -> int:
    """Run the cells that no earlier call has finished; return how many."""
    done = {record.key for record in read_records(study, options.folder)}
    cells = [cell for cell in study.cells(options.seeds, options.is_quick) if cell_key(cell) not in done]
    if options.sizes is not None:
        cells = [cell for cell in cells if cell.get("max_contexts") in options.sizes]
    if options.share is not None:
        cells = cells[options.share[0] :: options.share[1]]
    commit = code_version()
    for number, cell in enumerate(cells):
        started = time.perf_counter()
        results = study.run(cell)
        record = CellRecord(cell, results, commit, time.perf_counter() - started)
        _append(record, records_path(study.name, options.folder))
        where = " ".join(f"{key}={cell[key]}" for key in ("max_contexts", "agent", "failure", "seed") if key in cell)
        print(f"{study.name} {number + 1}/{len(cells)}: {where}, {record.time_s:.0f} s", flush=True)
    return len(cells)


def read_records(study: Study, folder: Path) -> list[CellRecord]:
    """Read the finished cells of a study, and of those that it reads along, in the order of its plan."""
    found: dict[str, CellRecord] = {}
    for name in (*study.reads, study.name):
        path = records_path(name, folder)
        lines = path.read_text().splitlines() if path.is_file() else []
        for line in lines:
            record = _parse(line)
            if record is not None:
                found[record.key] = record
    return list(found.values())


def write_page(study: Study, options: ReproduceOptions) -> Path:
    """Write a study's page from the cells that are finished."""
    planned = [cell_key(cell) for cell in study.cells(None, options.is_quick)]
    order = {key: place for place, key in enumerate(planned)}
    known = {record.key: record for record in read_records(study, options.folder)}
    records = sorted((known[key] for key in known if key in order), key=lambda record: order[record.key])
    path = options.folder / f"{study.name}.md"
    page = study.page(records) if records else None
    text = [f"# {study.title}", "", f"Written by `mbrl-hdp reproduce {study.name}`; do not edit.", ""]
    text += [f"{len(records)} of {len(planned)} cells are finished.", ""]
    if page is not None:
        text += [_gates(page.gates), "", page.body, "", _provenance(study, records), ""]
    with atomic_path(path) as temporary:
        temporary.write_text("\n".join(text))
    return path


def records_path(name: str, folder: Path) -> Path:
    """Return the file of a study's finished cells, one JSON object a line."""
    return folder / f"{name}.jsonl"


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


def share_of(words: str | None) -> tuple[int, int] | None:
    """Read `index/count`."""
    if words is None:
        return None
    index, _, count = words.partition("/")
    if not (index.isdigit() and count.isdigit() and int(index) < int(count)):
        raise ConfigError(f"--share takes index/count, as in 0/2, got {words!r}")
    return int(index), int(count)


def _git(root: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", str(root), *words], check=True, capture_output=True, text=True).stdout.strip()


def _append(record: CellRecord, path: Path) -> None:
    """Add one line in one write, so that processes side by side do not cut into each other's lines."""
    line = json.dumps({"settings": record.settings, "results": record.results, "commit": record.commit,
                       "time_s": round(record.time_s, 1)}) + "\n"  # fmt: skip
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(handle, line.encode())
        os.fsync(handle)
    finally:
        os.close(handle)


def _parse(line: str) -> CellRecord | None:
    try:
        words = json.loads(line)
    except json.JSONDecodeError:  # a process was ended while it wrote: the cell runs again
        return None
    return CellRecord(words["settings"], words["results"], words["commit"], words["time_s"])


def _run_side_by_side(name: str, options: ReproduceOptions) -> None:
    children = [subprocess.Popen(_child_words(name, options, index)) for index in range(options.jobs)]
    codes = [child.wait() for child in children]
    if any(codes):
        raise MbrlHdpError(f"{sum(map(bool, codes))} of {len(codes)} processes of {name} failed; their output says why")


def _child_words(name: str, options: ReproduceOptions, index: int) -> list[str]:
    words = [sys.executable, "-m", "mbrl_hdp", "reproduce", name, "--out", str(options.out)]
    words += ["--share", f"{index}/{options.jobs}"]
    words += ["--quick"] if options.is_quick else []
    words += ["--seeds", *map(str, options.seeds)] if options.seeds else []
    return words + (["--sizes", *map(str, options.sizes)] if options.sizes else [])


def _gates(gates: list[Gate]) -> str:
    if not gates:
        return "Nothing is asked for here; the study reports."
    marks = {True: "met", False: "**missed**", None: "open (cells missing)"}
    return table(("asked for", "found", "gate"), [[gate.name, gate.found, marks[gate.is_met]] for gate in gates])


def _provenance(study: Study, records: list[CellRecord]) -> str:
    commits = sorted({record.commit for record in records})
    seeds = sorted({record.settings["seed"] for record in records})
    total = sum(record.time_s for record in records)
    example = {key: value for key, value in records[0].settings.items() if key not in {"seed", "max_contexts"}}
    return (
        f"Seeds {', '.join(map(str, seeds))}; code {', '.join(commits)}; {total / 60:.0f} minutes of one thread (on a "
        f"machine that was shared, so times are upper bounds). Every cell with its settings is in `{study.name}.jsonl`"
        + (f" and {', '.join(f'`{name}.jsonl`' for name in study.reads)}" if study.reads else "")
        + f". Settings of the first cell: `{json.dumps(example)}`."
    )
