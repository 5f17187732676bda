"""Read small files of words (JSON, YAML) that somebody else may have written: plain data, within limits, no code."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import yaml

from mbrl_hdp.errors import CheckpointError

MAX_BYTES = 64 << 20
"""Largest file of words that is read; run.json grows by one row an epoch."""
_MAX_DEPTH = 30


def file_problem(path: Path, max_bytes: int | None = None) -> str | None:
    """Return why a path cannot be read as an ordinary file, None if it can.

    Folders, pipes and devices are refused: reading a pipe may wait for ever, a device may have no end.
    """
    try:
        found = path.stat()
    except FileNotFoundError:
        return "does not exist"
    except (OSError, ValueError) as error:
        return f"cannot be read: {getattr(error, 'strerror', None) or error}"
    if stat.S_ISDIR(found.st_mode):
        return "is a folder, not a file"
    if not stat.S_ISREG(found.st_mode):
        return "is a pipe or a device, not an ordinary file; save its content to a file first"
    if max_bytes is not None and found.st_size > max_bytes:
        return f"has {found.st_size:,} bytes; at most {max_bytes:,} are read"
    return None


def read_words(path: Path) -> str:
    """Read a small text file.

    Raises:
        CheckpointError: naming the file and why it cannot be read.
    """
    problem = file_problem(path, MAX_BYTES)
    if problem is not None:
        raise CheckpointError(f"{path} {problem}")
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        CheckpointError: if it is missing, damaged, nested too deeply or no object.
    """
    return parse_json(read_words(path), str(path))


def parse_json(text: str, name: str) -> dict[str, Any]:
    """Parse a JSON object; `name` is what an error calls it."""
    try:
        words = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{name} is damaged: {error}") from error
    if not isinstance(words, dict):
        raise CheckpointError(f"{name} is damaged: it holds a {type(words).__name__}, not an object")
    return words


def check_plain_yaml(text: str, name: str) -> None:
    """Refuse YAML that is more than nested words: aliases (which multiply), tags (which build objects), deep nesting.

    Raises:
        CheckpointError: naming the line.
    """
    depth = 0
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            where = f"{name}, line {event.start_mark.line + 1}"
            if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
                raise CheckpointError(f"{where}: aliases and anchors (*, &) are not allowed; write the value out")
            if getattr(event, "tag", None) is not None:
                raise CheckpointError(f"{where}: the tag {event.tag!r} is not allowed; only plain values are read")
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > _MAX_DEPTH:
                raise CheckpointError(f"{where}: nested more than {_MAX_DEPTH} deep")
    except (yaml.YAMLError, RecursionError) as error:
        raise CheckpointError(f"{name} is damaged: {' '.join(str(error).split())}") from error
