"""Do independent routes to the contexts label the same steps alike? Agreement on labels, not on the number alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Int

from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.inference.episodes import some_episodes
from mbrl_hdp.inference.model import ContextModel
from mbrl_hdp.inference.search import Structure
from mbrl_hdp.seeding import numpy_generator

# With fewer episodes there are no halves to speak of.
FEWEST_EPISODES = 10
# Transitions whose labels are compared, at most.
_MOST_TRANSITIONS = 20_000


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
    model: ContextModel, data: Trajectories, search: Callable[[Trajectories], Structure | None], seed: int
) -> list[float]:
    """Search for contexts in each half of the episodes anew; return how far a model's labels agree with both.

    Nothing of the model is handed over to the searches, so that labels which another choice of episodes would not have
    brought forth are seen. Empty where there is too little data.

    Args:
        model: the model whose labels are judged.
        data: episodes that it was learned from.
        search: finds the contexts of episodes; None where they are too few.
        seed: seed of the halves.
    """
    if data.num_episodes < FEWEST_EPISODES:
        return []
    order = numpy_generator(seed, "halves").permutation(data.num_episodes)
    halves = [data.select(np.sort(part)) for part in np.array_split(order, 2)]
    found = [(half, search(half)) for half in halves]
    return [adjusted_rand(model.most_likely(half), each.labels) for half, each in found if each is not None]


def shares_by_context(model: ContextModel, data: Trajectories, structure: Structure) -> list[float | None]:
    """Return for every context of a model the region share of the search's context that acts in most of its steps.

    None where no context of the search acts in more than half of them.
    """
    labels, known = model.most_likely(data), structure.labels
    shares: list[float | None] = []
    for context in range(model.num_contexts):
        counts = np.bincount(known[(labels == context) & (known >= 0)], minlength=structure.num_contexts)
        share = float(structure.regions[counts.argmax()])
        shares.append(share if 2 * counts.max() > counts.sum() and np.isfinite(share) else None)
    return shares
