"""The finished cells of studies, one JSON object a line: read, judged whether they are up to date, and added to."""

from __future__ import annotations

import csv
import errno
import fcntl
import json
import os
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from mbrl_hdp.data.atomic import atomic_path
from mbrl_hdp.experiments.studies.study import (
    BY_CONFIG,
    CURRENT,
    NEVER_RUN,
    STATES,
    CellRecord,
    Confirmation,
    Identity,
    Settings,
    Study,
    cell_key,
    changed_keys,
    state_of,
)


def records_path(name: str, folder: Path) -> Path:
    """Return the file of a study's finished cells."""
    return folder / f"{name}.jsonl"


def read_records(study: Study, folder: Path, cells: list[Settings]) -> dict[str, CellRecord]:
    """Return the finished ones of these cells by name, each with its state.

    A later line replaces an earlier one of the same cell. Cells of the studies that this one reads along count too; of
    two files the one with an up-to-date cell counts.
    """
    wanted = {cell_key(cell): cell for cell in cells}
    found: dict[str, CellRecord] = {}
    for name in (*study.reads, study.name):
        for key, record in last_records(records_path(name, folder)).items():
            if key in wanted:
                state = state_of(record, study.identity(wanted[key]))
                if key not in found or found[key].state != CURRENT:
                    found[key] = replace(record, state=state)
    return {key: found[key] for key in wanted if key in found}


def last_records(path: Path) -> dict[str, CellRecord]:
    """Return the last line of every cell in a file, by the cell's name; whether it is up to date is not judged."""
    records = map(_parse, path.read_text().splitlines() if path.is_file() else [])
    return {record.key: record for record in records if record is not None}


def append_record(record: CellRecord, path: Path) -> None:
    """Add one whole line or none; processes side by side wait for each other.

    A line that a killed process left half-written stays a line of its own, which readers skip.

    Raises:
        OSError: if the disk is full; the file is then as it was.
    """
    left_out = {"state"} if record.confirmation is not None else {"state", "confirmation"}
    words = {name: value for name, value in asdict(record).items() if name not in left_out}
    line = (json.dumps(words | {"time_s": round(record.time_s, 1)}) + "\n").encode()
    with open(path, "a+b", buffering=0) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        size = file.seek(0, os.SEEK_END)
        if size and os.pread(file.fileno(), 1, size - 1) != b"\n":
            line = b"\n" + line
        try:
            if file.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            os.fsync(file)
        except OSError:
            file.truncate(size)
            raise


def state_counts(records: dict[str, CellRecord], cells: list[Settings]) -> dict[str, int]:
    """Count the cells of a study by state."""
    states = Counter(records[key].state if key in records else NEVER_RUN for key in map(cell_key, cells))
    return {state: states[state] for state in STATES}


def changes(study: Study, records: dict[str, CellRecord]) -> list[str]:
    """Return which keys of the configuration changed since the cells were run, with the number of cells."""
    count: Counter[str] = Counter()
    for record in records.values():
        if record.state == BY_CONFIG and record.identity is not None:
            count.update(changed_keys(record.identity.config, study.identity(record.settings).config))
    return [f"{words} ({number} cell{'s' if number > 1 else ''})" for words, number in sorted(count.items())]


def write_csv(records: list[CellRecord], path: Path) -> None:
    """Write a row a cell for spreadsheets: settings and results that are single values, state, commit, seconds."""
    rows = [
        flat({"setting": record.settings, "result": record.results})
        | {"state": record.state, "commit": record.commit, "time_s": round(record.time_s, 1)}
        for record in records
    ]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    with atomic_path(path) as temporary, temporary.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def flat(words: Any, prefix: str = "") -> dict[str, Any]:
    """Return the single values of nested words by their full keys; lists are left to the JSON lines.

    Example:
        >>> flat({"prior": {"name": "hdp"}, "seeds": [1, 2]})
        {'prior.name': 'hdp'}
    """
    if isinstance(words, dict):
        found: dict[str, Any] = {}
        for key, value in words.items():
            found |= flat(value, f"{prefix}{key}.")
        return found
    return {} if isinstance(words, list) else {prefix.rstrip("."): words}


def _parse(line: str) -> CellRecord | None:
    try:
        words: dict[str, Any] = json.loads(line)
    except json.JSONDecodeError:  # a process was ended while it wrote: the cell runs again
        return None
    identity, confirmation = words.get("identity"), words.get("confirmation")
    settings = words["settings"]
    if identity is None:
        settings.pop("overrides", None)  # rows from before fingerprints named their settings so; presets do now
    return CellRecord(
        settings,
        words["results"],
        words["commit"],
        words["time_s"],
        None if identity is None else Identity(**identity),
        confirmation=None if confirmation is None else Confirmation(**confirmation),
    )
