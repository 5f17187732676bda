"""`mbrl-hdp reproduce NAME --confirm N`: does the present code still lead to the results of earlier code?

A change of code makes every cell stale that reaches the changed module, also where it cannot change a result: a new
option, a rewritten loop. So a sample of the cells that are stale by code alone, or have no fingerprint, is run again.
If every result is the same but for rounding, times aside, the other cells of that earlier code (of that commit, where
there is no fingerprint) get the present one, with a note of the sample that they stand by. If one differs, they stay
stale. Processors differ in their last digits, and iterations that end at a tolerance magnify that; one label of 10,000
that differs is a difference.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mbrl_hdp.errors import short
from mbrl_hdp.experiments.studies.records import append_record, read_records, records_path
from mbrl_hdp.experiments.studies.study import (
    BY_CODE,
    NO_FINGERPRINT,
    CellRecord,
    Confirmation,
    Settings,
    Study,
    cell_words,
)

_WITHOUT_MEANING = frozenset({"git_commit", "versions", "schema_version"})
# Rows of a learning curve end with seconds (`studies/train_cell.py`).
_CURVE = "curve"
# Numbers that differ by a smaller share, or by less than this, are the same.
_SAME_SHARE, _SAME_SIZE = 5e-5, 1e-5


@dataclass(frozen=True)
class Outcome:
    """What became of the cells of one earlier version of the code.

    Attributes:
        num_stale: cells that were stale by code, or had no fingerprint.
        num_run: cells of the sample that were run again.
        differences: what differs in which cell of the sample, one line each.
    """

    num_stale: int
    num_run: int
    differences: tuple[str, ...]

    @property
    def is_confirmed(self) -> bool:
        """Whether the whole sample was the same."""
        return not self.differences

    @property
    def words(self) -> str:
        """The outcome as one line."""
        sample = f"{self.num_run} of {self.num_stale} stale cells run again"
        if self.is_confirmed:
            return f"{sample}: the same results, so the other {self.num_stale - self.num_run} are confirmed"
        return f"{sample}: {len(self.differences)} differ, so the others stay stale; {'; '.join(self.differences)}"


def confirm(
    study: Study, folder: Path, cells: Sequence[Settings], size: int, run: Callable[[Settings], CellRecord]
) -> Iterator[Outcome]:
    """Run a sample of the cells that are stale by code, and keep the others if it is the same.

    Args:
        study: the study.
        folder: folder of its finished cells.
        cells: the cells that count.
        size: cells to run again for each earlier version of the code.
        run: runs a cell.
    """
    path = records_path(study.name, folder)
    groups: defaultdict[str, list[CellRecord]] = defaultdict(list)
    for record in read_records(study, folder, list(cells)).values():
        if record.state in (BY_CODE, NO_FINGERPRINT):
            groups[record.commit if record.identity is None else record.identity.code].append(record)
    for group in groups.values():
        sample = spread(group, size)
        differences = []
        for before in sample:
            after = run(before.settings)
            append_record(after, path)
            changed = different_keys(before.results, after.results)
            if changed:
                differences.append(f"{cell_words(before.settings)}: {', '.join(changed[:3])}")
        if not differences:
            for before in (record for record in group if record not in sample):
                note = Confirmation(after.commit, len(sample), len(group))
                append_record(replace(before, identity=study.identity(before.settings), confirmation=note), path)
        yield Outcome(len(group), len(sample), tuple(differences))


def spread(group: Sequence[CellRecord], size: int) -> list[CellRecord]:
    """Return so many records, evenly spread over the group.

    Every one of them was run itself, where possible: what already stands by a sample is no evidence.
    """
    own = [record for record in group if record.confirmation is None] or list(group)
    count = min(size, len(own))
    return [own[number * len(own) // count] for number in range(count)]


def different_keys(before: Any, after: Any, prefix: str = "") -> list[str]:
    """Return where two results differ; times, commits, versions and what was not recorded before do not count.

    Example:
        >>> different_keys({"accuracy": 0.9, "cpu_s": 3.0}, {"accuracy": 0.8, "cpu_s": 5.0})
        ['accuracy: 0.9 -> 0.8']
    """
    if isinstance(before, dict) and isinstance(after, dict):
        found = []
        for key in before:
            if not (key.endswith("_s") or key in _WITHOUT_MEANING):
                one, two = (_untimed(key, results.get(key)) for results in (before, after))
                found += different_keys(one, two, f"{prefix}{key}.")
        return found
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        pairs = enumerate(zip(before, after, strict=True))
        return [line for number, (one, two) in pairs for line in different_keys(one, two, f"{prefix}{number}.")]
    return [] if _is_same(before, after) else [f"{prefix.rstrip('.')}: {short(str(before))} -> {short(str(after))}"]


def _is_same(before: Any, after: Any) -> bool:
    if isinstance(before, float) and isinstance(after, float):
        return math.isclose(before, after, rel_tol=_SAME_SHARE, abs_tol=_SAME_SIZE) or (
            math.isnan(before) and math.isnan(after)
        )
    return bool(before == after)


def _untimed(key: str, value: Any) -> Any:
    return [row[:-1] for row in value] if key == _CURVE and isinstance(value, list) else value
