"""Early stopping: end a run when its objective has stopped improving, and go back to its best state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

State = TypeVar("State")


@dataclass
class EarlyStop(Generic[State]):
    """Watches one run.

    An objective is looked at every `every` steps from `first_step` on: `measure()` where there is one, else the mean of
    what the steps said since the last look. After `patience` looks without a gain of more than `tolerance` the run is
    over.

    Attributes:
        patience: looks without a gain that end the run.
        tolerance: gains up to this do not count.
        every: steps between two looks.
        first_step: the run is left alone before this step.
        snapshot: returns a copy of the run's state.
        measure: returns the objective, to be made large; None takes the steps' own values.
        best: state with the largest objective seen, None before the first look.
    """

    patience: int
    tolerance: float
    every: int
    first_step: int
    snapshot: Callable[[], State]
    measure: Callable[[], float] | None = None
    best: State | None = field(default=None, init=False)
    _best_value: float = field(default=-float("inf"), init=False)
    _reference: float = field(default=-float("inf"), init=False)
    _num_stale: int = field(default=0, init=False)
    _recent: list[float] = field(default_factory=list, init=False)

    def is_over(self, step: int, value: float) -> bool:
        """Return whether the run should end after `step` (counted from 0), whose own objective was `value`."""
        if step < self.first_step:
            return False
        self._recent.append(value)
        if len(self._recent) < self.every:
            return False
        found = self.measure() if self.measure is not None else sum(self._recent) / len(self._recent)
        self._recent.clear()
        if found > self._best_value:
            self.best, self._best_value = self.snapshot(), found
        is_gain = found > self._reference + self.tolerance
        self._reference = found if is_gain else self._reference
        self._num_stale = 0 if is_gain else self._num_stale + 1
        return self._num_stale >= self.patience
