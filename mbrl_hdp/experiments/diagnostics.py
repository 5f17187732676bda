"""What does it cost to learn of a switch only after it has acted (Theorem 3)? A comparison on real runs.

The same evaluation episodes are played twice by the same agent with the same learned model: once on its own belief,
once with the true next context, as a one-hot belief, in the belief's place. For a planner, which is not trained on
beliefs, the difference is the cost of not knowing the context. A policy was trained on beliefs and never saw one-hot
ones: for it the difference also holds what it loses on inputs that it does not know, and can be negative. What knowing
the context is worth to a policy is the return of one that was trained on the truth (`agent=fi_sac`) minus its own.
The truth is read for scoring only; nothing learns from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mbrl_hdp.experiments.episodes import Record
from mbrl_hdp.inference.model import ContextModel
from mbrl_hdp.inference.scoring import align

Labels = np.ndarray[Any, Any]


@dataclass(frozen=True)
class SwitchLoss:
    """The same agent fed the one-hot truth in the place of its belief.

    Attributes:
        return_mean: mean return of the same episodes when the agent is fed the truth.
        return_difference: that minus the mean return on the belief.
        switches_per_episode: true switches in an episode, mean.
        misidentified_per_episode: those at which the belief's most likely next context was another one, mean (M of
            Theorem 3).
        difference_per_misidentified_switch: the difference divided by those; None where there were none.
    """

    return_mean: float
    return_difference: float
    switches_per_episode: float
    misidentified_per_episode: float
    difference_per_misidentified_switch: float | None


def switch_loss(records: list[Record], known: list[Record], believed: list[Labels]) -> SwitchLoss:
    """Compare episodes played on the belief with the same ones played on the one-hot truth.

    Args:
        records: episodes played on the belief.
        known: episodes of the same seeds, played on the truth.
        believed: the belief's most likely next context before every step, in true contexts' numbers, one array a
            record.
    """
    switches = wrong = 0
    for record, label in zip(records, believed, strict=True):
        truth = record.episode.context
        assert truth is not None
        is_switch = np.flatnonzero(truth[1:] != truth[:-1]) + 1
        switches += len(is_switch)
        wrong += int((label[is_switch] != truth[is_switch]).sum())
    known_mean, mean = (float(np.mean([r.episode_return for r in played])) for played in (known, records))
    return SwitchLoss(
        return_mean=known_mean,
        return_difference=known_mean - mean,
        switches_per_episode=switches / len(records),
        misidentified_per_episode=wrong / len(records),
        difference_per_misidentified_switch=(known_mean - mean) * len(records) / wrong if wrong else None,
    )


def slots_of_truth(records: list[Record], model: ContextModel, num_contexts: int) -> list[int] | None:
    """Return the model's slot of every true context, None if a true context has none (or the truth is unknown)."""
    if any(r.labels is None or r.episode.context is None for r in records):
        return None
    labels = np.concatenate([r.labels for r in records if r.labels is not None])
    truth = np.concatenate([r.episode.context for r in records if r.episode.context is not None])
    to_true = align(labels, truth).to_true
    places: dict[int, int] = {int(true): int(model.slots[k]) for k, true in enumerate(to_true) if true >= 0}
    return [places[c] for c in range(num_contexts)] if set(range(num_contexts)) <= set(places) else None


def believed_contexts(records: list[Record], slots: list[int]) -> list[Labels]:
    """Return the most likely next context before every step, in true contexts' numbers; -1 for a slot of none."""
    to_true = {slot: true for true, slot in enumerate(slots)}
    found = []
    for record in records:
        assert record.beliefs is not None
        most_likely = record.beliefs[:-1].argmax(-1)
        found.append(np.array([to_true.get(int(slot), -1) for slot in most_likely]))
    return found
