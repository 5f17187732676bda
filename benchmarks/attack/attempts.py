"""What an attempt is, and how its outcome is judged."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

REFUSED, HARMLESS, BAD = "refused", "harmless", "bad"

Item = TypeVar("Item")


@dataclass(frozen=True)
class Verdict:
    """How an attempt ended.

    Attributes:
        family: what it belongs to.
        name: which attempt.
        kind: refused, harmless or bad.
        words: the line that refused it, or what went wrong.
        seconds: how long it took.
    """

    family: str
    name: str
    kind: str
    words: str
    seconds: float = 0.0

    @property
    def is_good(self) -> bool:
        """Whether the program held."""
        return self.kind != BAD


@dataclass(frozen=True)
class Family:
    """A kind of attack.

    Attributes:
        name: word on the command line.
        asks: what the program must do.
        run: runs it in a folder; True asks for the small version.
    """

    name: str
    asks: str
    run: Callable[[Path, bool], Iterator[Verdict]]


def sample(items: Sequence[Item], is_small: bool, count: int = 8) -> list[Item]:
    """Return all items, or for the small version `count` of them, evenly spread."""
    if not is_small or len(items) <= count:
        return list(items)
    return [items[round(place * (len(items) - 1) / (count - 1))] for place in range(count)]
