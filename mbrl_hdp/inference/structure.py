"""Where `fit` starts from: the contexts that the structure search finds."""

from __future__ import annotations

import dataclasses

import numpy as np

from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.inference.search import Structure, find_contexts
from mbrl_hdp.inference.search.features import Features, Library
from mbrl_hdp.inference.search.labelling import label, part_of
from mbrl_hdp.inference.search.moves import Candidate, settle, split
from mbrl_hdp.inference.search.rows import make_rows
from mbrl_hdp.inference.search.search import FLOOR, MOST_ROWS

# Fewer transitions say too little for a search.
FEWEST_TRANSITIONS = 200


def search_structure(
    data: Trajectories, max_contexts: int, num_contexts: int | None = None, regions: str = "forbid"
) -> Structure | None:
    """Find the contexts of all episodes; None where there is too little data.

    Args:
        data: episodes.
        max_contexts: largest number of contexts.
        num_contexts: the number, where it is known.
        regions: whether contexts may be regions of the state space, `allow` or `forbid`.
    """
    if int(data.is_observed.sum()) < FEWEST_TRANSITIONS:
        return None
    found = find_contexts(data, num_contexts or max_contexts, regions=regions)
    return found if num_contexts in (None, found.num_contexts) else _divided(data, found, num_contexts)


def _divided(data: Trajectories, found: Structure, num_contexts: int) -> Structure:
    """Divide contexts until there are `num_contexts`, each time where it raises the evidence most."""
    part = part_of(data, MOST_ROWS)
    if part is not data:
        found = find_contexts(part, num_contexts)
    rows = make_rows(part)
    features = Features(Library(rows), found.features.terms)
    current = settle(rows, features, rows.flatten(found.probability), FLOOR, 5)
    while current.num_contexts < num_contexts:
        halves = [split(rows, current, context) for context in range(current.num_contexts)]
        current = max(halves, key=Candidate.evidence)
    return dataclasses.replace(
        found,
        probability=rows.pad(current.state.weight) if part is data else label(data, rows, current),
        transition=current.state.transition,
        evidence=current.evidence() / len(rows),
        regions=np.full(num_contexts, np.nan),
        features=current.features,
    )
