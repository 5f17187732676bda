"""Which files a name stands for: text, packed text, all of a folder, or what a pattern (`runs/*.csv`) matches."""

from __future__ import annotations

import re
from pathlib import Path

TEXTS = (".csv", ".tsv", ".txt", ".dat", ".log")
PACKED = (".gz", ".bz2", ".xz")


def is_text(path: Path) -> bool:
    """Return whether a name is that of delimited text, packed or not."""
    name = path.with_suffix("") if path.suffix.lower() in PACKED else path
    return name.suffix.lower() in TEXTS


def text_parts(path: str | Path) -> list[Path]:
    """Return the text files of a folder or pattern, `run_2` before `run_10`; none for anything else."""
    place = Path(path)
    if place.is_dir():
        found = place.iterdir()
    elif any(sign in str(path) for sign in "*?[") and not place.exists():
        root = Path(place.anchor or ".")
        found = root.glob(str(place.relative_to(place.anchor) if place.anchor else place))
    else:
        return []
    parts = [part for part in found if part.is_file() and is_text(part) and not part.name.startswith(".")]
    return sorted(parts, key=lambda part: [int(w) if w.isdecimal() else w for w in re.split(r"(\d+)", str(part))])
