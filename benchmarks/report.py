"""Time two callables against each other and print the ratio beside its target.

A benchmark is a module `benchmarks/bench_*.py` with `run() -> list[Row]`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Clock = Callable[[], float]


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
        paired: median ratio of runs next to each other; None where only the medians are known. It is what counts: a
            busy machine slows the two runs of a pair alike.
    """

    name: str
    ours: float
    peer: str
    theirs: float
    target: float | None = None
    unit: str = "ms"
    paired: float | None = None

    @property
    def ratio(self) -> float:
        """How many times better than the peer (times, memory: smaller is better)."""
        return self.theirs / self.ours if self.paired is None else self.paired

    @property
    def is_met(self) -> bool:
        """Whether the target is reached."""
        return self.target is None or self.ratio >= self.target


def time_pair(
    ours: Callable[[], object], theirs: Callable[[], object], repeats: int = 15, warm_up: int = 2
) -> tuple[float, float]:
    """Return the median milliseconds of both, run in turns so that a busy machine slows both alike."""
    first, second = time_in_turns([ours, theirs], repeats, warm_up)
    return statistics.median(first), statistics.median(second)


def paired_row(
    name: str,
    ours: Callable[[], object],
    peer: str,
    theirs: Callable[[], object],
    target: float | None,
    repeats: int,
    clock: Clock = time.perf_counter,
) -> Row:
    """Time two callables in turns and return the medians, with the median ratio of the pairs."""
    first, second = time_in_turns([ours, theirs], repeats, clock=clock)
    paired = statistics.median(other / own for own, other in zip(first, second, strict=True))
    return Row(name, statistics.median(first), peer, statistics.median(second), target, paired=paired)


def time_in_turns(
    functions: Sequence[Callable[[], object]], repeats: int, warm_up: int = 2, clock: Clock = time.perf_counter
) -> list[list[float]]:
    """Return the milliseconds of every run of every function: first one run of each, then the next of each.

    `clock` may be `time.process_time`, which other programs disturb less: they then only share the caches.
    """
    samples: list[list[float]] = [[] for _ in functions]
    for round_number in range(warm_up + repeats):
        for function, times in zip(functions, samples, strict=True):
            start = clock()
            function()
            elapsed = clock() - start
            if round_number >= warm_up:
                times.append(1e3 * elapsed)
    return samples
