"""Which true contexts a model puts together: the sets in which the paper writes what was learned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

# A true context that shares its steps between learned ones is named with each that has at least this share.
PARTLY = 0.25


def learned_sets(confusion: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return, for every learned context that is some true context's likeliest, the true contexts it stands for.

    Args:
        confusion: number of steps by learned (rows) and true (columns) context.

    Example:
        >>> learned_sets([[90, 80, 0], [10, 20, 50], [0, 0, 0]])
        [[0, 1], [2]]
    """
    best = np.asarray(confusion).argmax(0)
    return [np.flatnonzero(best == learned).tolist() for learned in sorted(set(best.tolist()))]


def sets_in_words(confusion: Sequence[Sequence[int]], names: Sequence[str]) -> str:
    """Write the sets with the names of the true contexts; a share below 75 % in its set is added in brackets.

    Example:
        >>> sets_in_words([[90, 80, 0], [10, 20, 50]], ["a", "b", "c"])
        '{a, b}, {c}'
    """
    counts = np.asarray(confusion, dtype=np.float64)
    shares = counts / np.maximum(counts.sum(0), 1.0)
    sets = learned_sets(confusion)
    ordered = sorted(sets, key=lambda members: members[0])
    return ", ".join("{" + ", ".join(_word(shares, names, member) for member in members) + "}" for members in ordered)


def _word(shares: np.ndarray[Any, Any], names: Sequence[str], member: int) -> str:
    share = float(shares[:, member].max())
    return names[member] if share >= 1.0 - PARTLY else f"{names[member]} ({share:.0%})"


def accuracy_by_group(confusion: Sequence[Sequence[int]], groups: Sequence[int]) -> list[float]:
    """Return, for every group of true contexts, the share of its steps whose learned context stands for that group.

    A learned context stands for the group that has most of its steps.

    Args:
        confusion: number of steps by learned (rows) and true (columns) context.
        groups: group of every true context, numbered from 0.

    Example:
        >>> accuracy_by_group([[9, 9, 2], [1, 1, 8]], [0, 0, 1])
        [0.9, 0.8]
    """
    counts = np.asarray(confusion, dtype=np.float64)
    by_group = np.stack([counts[:, np.asarray(groups) == group].sum(1) for group in range(max(groups) + 1)], 1)
    stands_for = by_group.argmax(1)
    return [
        float(by_group[stands_for == group, group].sum() / by_group[:, group].sum()) for group in range(max(groups) + 1)
    ]
