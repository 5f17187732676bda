"""Where `fit` starts from: the contexts that the structure search finds."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.errors import ConfigError, FitError
from mbrl_hdp.inference.progress import search_progress
from mbrl_hdp.inference.schedule import FitConfig
from mbrl_hdp.inference.search import Structure, find_contexts
from mbrl_hdp.inference.search.features import Features, Library
from mbrl_hdp.inference.search.labelling import label, part_of
from mbrl_hdp.inference.search.moves import Candidate, settle, split
from mbrl_hdp.inference.search.rows import make_rows
from mbrl_hdp.inference.search.search import FLOOR, MOST_ROWS

# Fewer transitions say too little for a search.
FEWEST_TRANSITIONS = 200


@dataclass(frozen=True)
class StructureSearch:
    """The structure search, with the settings of a fit.

    Attributes:
        config: settings of the fit.
        max_contexts: largest number of contexts.
        angles: observation columns that are known to be angles in radians.
    """

    config: FitConfig
    max_contexts: int
    angles: tuple[int, ...]

    def __call__(self, data: Trajectories) -> Structure | None:
        """Return what the search finds; None where there is too little data."""
        return search_structure(data, self.max_contexts, self.config.num_contexts, self.config.regions, self.angles)

    def wanted(self, train: Trajectories) -> Structure | None:
        """Return what the search finds; None where it is not wanted or there is too little data.

        Raises:
            ConfigError: if the number of contexts is given where nothing can hold it.
            FitError: if it is given and there is too little data to find them.
        """
        number, start = self.config.num_contexts, self.config.start
        if number is not None and (start != "search" or number > self.max_contexts):
            raise ConfigError(
                f"fit.num_contexts={number} needs fit.start=search and max_contexts of at least as many; got "
                f"fit.start={start} and max_contexts={self.max_contexts}"
            )
        if start != "search":
            return None
        found = self(train)
        if found is None and number is not None:
            raise FitError(
                f"fit.num_contexts={number}, but there is too little data to tell contexts apart; record more"
            )
        return found

    def shown(self, train: Trajectories, progress: bool | Callable[[str], None]) -> Structure | None:
        """Search as `wanted` does and show how far it is."""
        with search_progress("search", progress):
            return self.wanted(train)


def search_structure(
    data: Trajectories,
    max_contexts: int,
    num_contexts: int | None = None,
    regions: str = "forbid",
    angles: Sequence[int] = (),
) -> Structure | None:
    """Find the contexts of all episodes; None where there is too little data.

    Args:
        data: episodes.
        max_contexts: largest number of contexts.
        num_contexts: the number, where it is known.
        regions: whether contexts may be regions of the state space, `allow` or `forbid`.
        angles: observations that are known to be angles in radians.
    """
    if int(data.is_observed.sum()) < FEWEST_TRANSITIONS:
        return None
    found = find_contexts(data, num_contexts or max_contexts, regions=regions, angles=angles)
    return found if num_contexts in (None, found.num_contexts) else _divided(data, found, num_contexts, angles)


def _divided(data: Trajectories, found: Structure, num_contexts: int, angles: Sequence[int] = ()) -> Structure:
    """Divide contexts until there are `num_contexts`, each time where it raises the evidence most."""
    part = part_of(data, MOST_ROWS)
    if part is not data:
        found = find_contexts(part, num_contexts, angles=angles)
    rows = make_rows(part, angles=angles)
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
