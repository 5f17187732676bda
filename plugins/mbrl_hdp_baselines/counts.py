"""Which component of the mixture explains a transition: GPMM's sequential assignment and its book-keeping.

Follows Xu et al. 2020 ("Task-agnostic online reinforcement learning with an infinite mixture of Gaussian processes").
Everything is in log space: a score that is not a number counts as impossible.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

Vector = NDArray[np.floating[Any]]


class AssignmentCounts:
    """Labels of all transitions so far, and soft counts of how components follow each other.

    Args:
        new_weight: prior weight of a new component (alpha).
        burn_in: no component is created while the newest one has fewer points than this.
        first_weight: count of every transition from a new component (`window`).
        first_self_weight: count of staying in a new component (`self`).
        stickiness: weight that is always added to staying (the article's beta; 0 in the release).

    Attributes:
        counts: soft counts, `K K`, one row per previous component.
        labels: component of every transition so far, in time.
    """

    def __init__(
        self, new_weight: float, burn_in: int, first_weight: float, first_self_weight: float, stickiness: float
    ) -> None:
        self.new_weight, self.burn_in, self.stickiness = new_weight, burn_in, stickiness
        self.first_weight, self.first_self_weight = first_weight, first_self_weight
        self.counts: Vector = np.zeros((0, 0))
        self.labels: list[int] = []

    @property
    def num_components(self) -> int:
        """Number of components."""
        return len(self.counts)

    def probabilities(self, previous: int, scores: Vector, new_score: float) -> Vector:
        """Return the probability of every component and of a new one, `K+1`.

        r_k = T[previous, k] exp(score_k) and r_new = alpha exp(new_score), normalised.

        Args:
            previous: component of the transition before.
            scores: log likelihood of the transition under every component, `K`.
            new_score: log likelihood under a new component; minus infinity to allow none.
        """
        weights = self.counts[previous].copy()
        weights[previous] += self.stickiness
        if self.labels.count(self.num_components - 1) < self.burn_in:
            new_score = -np.inf
        with np.errstate(divide="ignore"):
            log_joint = np.append(np.log(weights) + scores, np.log(self.new_weight) + new_score)
        log_joint[np.isnan(log_joint)] = -np.inf
        if np.isneginf(log_joint).all():
            log_joint[previous] = 0.0
        return np.exp(log_joint - logsumexp(log_joint))

    def begin(self) -> int:
        """Record the first transition: it makes the first component."""
        self.counts, self.labels = np.ones((1, 1)), [0]
        return 0

    def add(self, previous: int, probabilities: Vector) -> int:
        """Assign a transition to its most probable component, which may be a new one; return it.

        Soft counts go to the row of the previous component: those of the existing components alone, normalised, unless
        a new one is made.
        """
        label = int(probabilities.argmax())
        if label == self.num_components:
            self._grow()
            self.counts[previous] += probabilities
        else:
            known = probabilities[:-1]
            self.counts[previous] += known / known.sum()
        self.labels.append(label)
        return label

    def _grow(self) -> None:
        size = self.num_components
        grown = np.zeros((size + 1, size + 1))
        grown[:size, :size] = self.counts
        grown[size] = self.first_weight
        grown[size, size] = self.first_self_weight
        self.counts = grown

    def chain(self) -> list[int]:
        """Return the labels without repetitions of neighbours."""
        return [label for label, _ in groupby(self.labels)]

    def neighbours(self, component: int) -> tuple[int | None, int | None]:
        """Return what came before and after the last visit of a component; None where nothing did."""
        chain = self.chain()
        place = len(chain) - 1 - chain[::-1].index(component)
        return chain[place - 1] if place else None, chain[place + 1] if place + 1 < len(chain) else None

    def merge(self, source: int, target: int) -> int:
        """Move all points of one component to another and forget the first; return the new number of the second.

        The row of `source` is added to that of `target`; what led to `source` is credited as its number of points from
        the component before it to `target`; a component after it gets one count from `target`.
        """
        before, after = self.neighbours(source)
        self.counts[target] += self.counts[source]
        if before is not None:
            self.counts[before, target] += self.labels.count(source)
        if after is not None:
            self.counts[target, after] += 1.0
        kept = np.arange(self.num_components) != source
        self.counts = self.counts[kept][:, kept]
        number = np.cumsum(kept) - 1
        number[source] = number[target]
        self.labels = number[self.labels].tolist()
        return int(number[target])

    def state_dict(self) -> dict[str, Any]:
        """Return counts and labels."""
        return {"counts": self.counts, "labels": np.array(self.labels, dtype=np.int64)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore counts and labels."""
        self.counts, self.labels = state["counts"].copy(), state["labels"].tolist()
