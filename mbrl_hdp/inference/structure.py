"""Where `fit` starts from: the contexts that the structure search finds, on much data found on a part of it."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.inference.search import Structure, find_contexts
from mbrl_hdp.inference.search.features import Features, Library
from mbrl_hdp.inference.search.moves import Candidate, settle, split
from mbrl_hdp.inference.search.rows import Rows, make_rows
from mbrl_hdp.inference.search.search import FLOOR
from mbrl_hdp.seeding import numpy_generator

# Fewer transitions say too little for a search.
FEWEST_TRANSITIONS = 200
# The search looks at no more than these; the contexts of the others follow from what it found.
MOST_TRANSITIONS = 12_000
_ROUNDS = 10


def search_structure(
    data: Trajectories, max_contexts: int, num_contexts: int | None = None, seed: int = 0, regions: str = "forbid"
) -> Structure | None:
    """Find the contexts of all episodes; None where there is too little data.

    Args:
        data: episodes.
        max_contexts: largest number of contexts.
        num_contexts: the number, where it is known.
        seed: seed of the choice of episodes where there are too many to search in.
        regions: whether contexts may be regions of the state space, `allow` or `forbid`.
    """
    num_transitions = int(data.is_observed.sum())
    if num_transitions < FEWEST_TRANSITIONS:
        return None
    part = _part(data, num_transitions, seed)
    # `forbid` is what the search does unless asked.
    asked: dict[str, Any] = {} if regions == "forbid" else {"regions": regions}
    found = find_contexts(data.select(part), num_contexts or max_contexts, **asked)
    if num_contexts is not None and found.num_contexts < num_contexts:
        found = _divided(make_rows(data.select(part)), found, num_contexts)
    return found if len(part) == data.num_episodes else _extended(data, part, found)


def _part(data: Trajectories, num_transitions: int, seed: int) -> np.ndarray:
    """Return the episodes to search in: all, or a random choice of them."""
    share = min(1.0, MOST_TRANSITIONS / num_transitions)
    count = max(1, round(share * data.num_episodes))
    order = numpy_generator(seed, "search").permutation(data.num_episodes)
    return np.sort(order[:count])


def _extended(data: Trajectories, part: np.ndarray, found: Structure) -> Structure:
    """Return the structure of all episodes: heads of the part label the others, then both are refined together."""
    rows = make_rows(data)
    padded = np.zeros((data.num_episodes, data.max_steps, found.num_contexts))
    padded[part, : found.probability.shape[1]] = found.probability
    features = Features(_Evaluator(rows), found.features.terms)
    return _structure_of(rows, settle(rows, features, rows.flatten(padded), FLOOR, _ROUNDS), found)


def _divided(rows: Rows, found: Structure, num_contexts: int) -> Structure:
    """Divide contexts until there are `num_contexts`, each time where it raises the evidence most."""
    features = Features(Library(rows), found.features.terms)
    current = settle(rows, features, rows.flatten(found.probability), FLOOR, 5)
    while current.num_contexts < num_contexts:
        halves = [split(rows, current, context)[0] for context in range(current.num_contexts)]
        current = max(halves, key=Candidate.evidence)
    return _structure_of(rows, current, found)


def _structure_of(rows: Rows, candidate: Candidate, found: Structure) -> Structure:
    is_same = len(found.regions) == candidate.num_contexts
    return dataclasses.replace(
        found,
        probability=rows.pad(candidate.state.weight),
        transition=candidate.state.transition,
        evidence=candidate.evidence() / len(rows),
        regions=found.regions if is_same else np.full(candidate.num_contexts, np.nan),
        features=candidate.features,
    )


class _Evaluator(Library):
    """A library that only evaluates terms which are chosen already."""

    def __init__(self, rows: Rows) -> None:
        self.rows, self.factors, self.values = rows, [], np.zeros((len(rows), 0))
