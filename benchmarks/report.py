"""Time two callables against each other and print the ratio beside its target.

A benchmark is a module `benchmarks/bench_*.py` with `run() -> list[Row]`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One measured ratio.

    Attributes:
        name: what was measured, with its sizes.
        ours: median of our measure (milliseconds unless `unit` says otherwise).
        peer: name of the peer.
        theirs: median of the peer's measure.
        target: smallest peer/ours ratio required; None where the row is only reported.
        unit: unit of `ours` and `theirs`.
    """

    name: str
    ours: float
    peer: str
    theirs: float
    target: float | None = None
    unit: str = "ms"

    @property
    def ratio(self) -> float:
        """How many times better than the peer (times, memory: smaller is better)."""
        return self.theirs / self.ours

    @property
    def is_met(self) -> bool:
        """Whether the target is reached."""
        return self.target is None or self.ratio >= self.target


def time_pair(
    ours: Callable[[], object], theirs: Callable[[], object], repeats: int = 15, warm_up: int = 2
) -> tuple[float, float]:
    """Return the median milliseconds of both, run in turns so that a busy machine slows both alike."""
    samples: tuple[list[float], list[float]] = ([], [])
    for round_number in range(warm_up + repeats):
        for function, times in zip((ours, theirs), samples, strict=True):
            start = time.perf_counter()
            function()
            elapsed = time.perf_counter() - start
            if round_number >= warm_up:
                times.append(1e3 * elapsed)
    return statistics.median(samples[0]), statistics.median(samples[1])
