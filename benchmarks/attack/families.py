"""The families of attacks by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.attack import command_lines, damage, data_files, exploits, faults, kills, soak
from benchmarks.attack.attempts import Family, Verdict

FAMILIES: dict[str, Family] = {
    module.FAMILY.name: module.FAMILY for module in (exploits, damage, command_lines, data_files, faults, kills, soak)
}
QUICK = tuple(name for name in FAMILIES if name not in {"kills", "soak"})


def run_family(name: str, root: Path, is_small: bool) -> Iterator[Verdict]:
    """Run one family in a folder."""
    return FAMILIES[name].run(root, is_small)
