"""docs/reliability.md: the tables between its markers are written by the attack itself."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from benchmarks.attack.attempts import BAD, HARMLESS, REFUSED, Verdict


def write_page(path: Path, verdicts: Sequence[Verdict]) -> None:
    """Replace the row of every family that ran; the other rows stay."""
    from benchmarks.attack.families import FAMILIES
    from mbrl_hdp.experiments.reproduce import code_version

    page = path.read_text()
    for name in dict.fromkeys(verdict.family for verdict in verdicts):
        found = [verdict for verdict in verdicts if verdict.family == name]
        counts = [sum(verdict.kind == kind for verdict in found) for kind in (REFUSED, HARMLESS, BAD)]
        slowest = max(verdict.seconds for verdict in found)
        cells = [name, FAMILIES[name].asks, str(len(found)), *map(str, counts), f"{slowest:.1f}", code_version()]
        row = "| " + " | ".join(cells) + " |"
        pattern = re.compile(rf"^\| {re.escape(name)} \|.*$", re.M)
        if not pattern.search(page):
            raise SystemExit(f"{path} has no row for {name}")
        page = pattern.sub(lambda _: row, page)  # noqa: B023 - used at once
    path.write_text(page)
