"""Do independent routes to the contexts label the same steps alike? Agreement on labels, not on the number alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from operator import itemgetter

import numpy as np
from jaxtyping import Int

from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.inference.episodes import some_episodes
from mbrl_hdp.inference.model import ContextModel
from mbrl_hdp.inference.search import Structure
from mbrl_hdp.inference.search.regions import region_share
from mbrl_hdp.inference.search.rows import make_rows
from mbrl_hdp.seeding import numpy_generator
from mbrl_hdp.workers import OpenWorkers, ThisProcess, open_workers, run_side_by_side

# Labels with a smaller adjusted Rand index are not the same.
SAME_LABELS = 0.9
# With fewer episodes there are no halves to speak of.
FEWEST_EPISODES = 10
# Transitions whose labels are compared, at most.
_MOST_TRANSITIONS = 20_000
# Two contexts are the same if this share of the steps of either one is the other's too.
_SAME_SHARE = 0.8
# A context with a larger share of its switching explained by state and action looks like a region.
REGION = 0.3

# One half of the episodes, the other half -> labels of the first.
Find = Callable[[Trajectories, Trajectories], Int[np.ndarray, "N T"] | None]


def adjusted_rand(one: Int[np.ndarray, "*n"], two: Int[np.ndarray, "*n"]) -> float:
    """Return the adjusted Rand index of two labellings: 1 if they are the same up to names, about 0 by chance.

    (index - expected) / (largest - expected), where index counts the pairs of steps that both put together. Steps
    labelled -1 on either side do not count. For two contexts that act equally often, labels that differ in a share e
    of the steps have an index of about (1 - 2 e)^2.

    Example:
        >>> adjusted_rand(np.array([0, 0, 1, 1]), np.array([5, 5, 2, 2]))
        1.0
    """
    is_known = (one >= 0) & (two >= 0)
    _, first = np.unique(one[is_known], return_inverse=True)
    _, second = np.unique(two[is_known], return_inverse=True)
    if first.size < 2:
        return float("nan")
    counts = np.zeros((first.max() + 1, second.max() + 1))
    np.add.at(counts, (first, second), 1.0)
    together, by_one, by_two = (_pairs(each) for each in (counts, counts.sum(1), counts.sum(0)))
    expected = by_one * by_two / _pairs(np.array([counts.sum()]))
    largest = 0.5 * (by_one + by_two)
    # Both put all steps together, or all apart.
    return 1.0 if largest == expected else float((together - expected) / (largest - expected))


def _pairs(counts: np.ndarray) -> float:
    return float((counts * (counts - 1.0)).sum() / 2.0)


def agreement_with(taken: ContextModel, others: Sequence[ContextModel], data: Trajectories) -> list[float]:
    """Return the adjusted Rand index of other models' labels with those of one, on the same episodes."""
    part = some_episodes(data, _MOST_TRANSITIONS)
    labels = taken.most_likely(part)
    return [adjusted_rand(labels, labels if other is taken else other.most_likely(part)) for other in others]


def half_agreement(
    model: ContextModel, data: Trajectories, find: Find, seed: int, open_workers: OpenWorkers = open_workers
) -> list[float]:
    """Find contexts in each half of the episodes anew; return how far a model's labels agree with both.

    Nothing of the model is handed over, so that labels which another choice of episodes would not have brought forth
    are seen. Empty where there is too little data.

    Args:
        model: the model whose labels are judged.
        data: episodes that it was learned from.
        find: labels one half; the other may decide between several answers. None where the steps are too few.
        seed: seed of the halves.
        open_workers: opens a place where the halves are labelled side by side, if `find` can be sent there.
    """
    if data.num_episodes < FEWEST_EPISODES:
        return []
    order = numpy_generator(seed, "halves").permutation(data.num_episodes)
    one, two = (data.select(np.sort(part)) for part in np.array_split(order, 2))
    halves = {0: (one, two), 1: (two, one)}
    can_be_sent = isinstance(find, partial)  # another function has hold of this process's plugins
    with open_workers() if can_be_sent else nullcontext(ThisProcess()) as workers:
        found = sorted(run_side_by_side(workers, partial(_find_half, find, halves), halves), key=itemgetter(0))
    return [adjusted_rand(model.most_likely(halves[k][0]), labels) for k, labels in found if labels is not None]


def _find_half(
    find: Find, halves: dict[int, tuple[Trajectories, Trajectories]], number: int
) -> Int[np.ndarray, "N T"] | None:
    return find(*halves[number])


def shares_by_context(model: ContextModel, data: Trajectories, structure: Structure) -> list[float]:
    """Return for every context of a model the share of the entropy of leaving it that state and action explain.

    It is the share of the search's context that acts in most of its steps, computed anew where there is none.
    """
    labels, known = model.most_likely(data), structure.labels
    shares: list[float] = []
    for context in range(model.num_contexts):
        counts = np.bincount(known[(labels == context) & (known >= 0)], minlength=structure.num_contexts)
        share = float(structure.regions[counts.argmax()])
        is_same = counts.max() > _SAME_SHARE * max(counts.sum(), (known == counts.argmax()).sum())
        shares.append(share if is_same and np.isfinite(share) else own_share(model, data, context))
    return shares


def own_share(model: ContextModel, data: Trajectories, context: int) -> float:
    """Return the share of the entropy of leaving a context that state and action explain, from the model's labels."""
    part = some_episodes(data, _MOST_TRANSITIONS)
    rows = make_rows(part)
    return region_share(rows, model.most_likely(part)[rows.episode, rows.step], context)
