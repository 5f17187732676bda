"""What the labels themselves say about switching, beside what the model says: moves and how long contexts last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from mbrl_hdp.inference.analysis import Analysis
from mbrl_hdp.inference.calibration import Calibration, calibrate
from mbrl_hdp.inference.duration import labelled_stays

_MOST_POINTS = 80


@dataclass(frozen=True)
class Dwell:
    """How long a context lasts, counted in labels.

    Attributes:
        num_ended: times that it was left before its episode ended.
        num_cut: times that the end of the episode came first.
        mean: steps per time that it was left, stays that were cut included; None if it was never left.
        steps: numbers of steps n, increasing from 0.
        survival: share of stays that last longer than n steps (Kaplan-Meier estimate: cut stays count until then).
    """

    num_ended: int
    num_cut: int
    mean: float | None
    steps: list[int]
    survival: list[float]


@dataclass(frozen=True)
class Counted:
    """What was counted in the labels of the data.

    Attributes:
        moves: steps from every context (row) to every context (column).
        dwells: how long every context lasts.
        calibration_before: probabilities before a step is seen (what a controller has) against the truth.
        calibration_after: probabilities once it is seen.
    """

    moves: list[list[int]]
    dwells: list[Dwell]
    calibration_before: Calibration | None
    calibration_after: Calibration | None


def count_labels(found: Analysis, to_true: Sequence[int] | None) -> Counted:
    """Count what the labels of data say.

    Args:
        found: `model.analyse(data)`.
        to_true: true context that every learned one was matched to, -1 for none; None where the truth is unknown.
    """
    num_contexts, truth = found.filtered.shape[-1], found.data.context
    before = after = None
    if truth is not None and to_true is not None:
        before = calibrate(found.predictive_belief, truth, to_true)
        after = calibrate(found.filtered, truth, to_true)
    return Counted(
        count_moves(found.most_likely, num_contexts).tolist(), dwells(found.most_likely, num_contexts), before, after
    )


def count_moves(labels: Int[np.ndarray, "N T"], num_contexts: int) -> Int[np.ndarray, "k k"]:
    """Count the steps from every context (row) to every context (column); labels of -1 are no step."""
    before, after = labels[:, :-1], labels[:, 1:]
    is_move = (before >= 0) & (after >= 0)
    counts = np.zeros((num_contexts, num_contexts), dtype=np.int64)
    np.add.at(counts, (before[is_move], after[is_move]), 1)
    return counts


def dwells(labels: Int[np.ndarray, "N T"], num_contexts: int) -> list[Dwell]:
    """Measure the stays in every context; -1 ends an episode."""
    stays = labelled_stays(labels)
    own = [stays.of(context, has_first=True) for context in range(num_contexts)]
    return [_dwell(lengths, ~is_ended) for lengths, is_ended in own]


def _dwell(lengths: Int[np.ndarray, " n"], is_cut: np.ndarray) -> Dwell:
    num_ended = int((~is_cut).sum())
    # A stay that is cut after n steps was seen to go on n - 1 times.
    exposure = int(lengths.sum() - is_cut.sum())
    steps, survival = _survival(lengths, is_cut)
    return Dwell(num_ended, int(is_cut.sum()), exposure / num_ended if num_ended else None, steps, survival)


def _survival(lengths: Int[np.ndarray, " n"], is_cut: np.ndarray) -> tuple[list[int], list[float]]:
    """Return Kaplan and Meier's estimate at the lengths at which stays ended, thinned to what can be drawn."""
    ended = np.sort(lengths[~is_cut])
    if not len(ended):
        return [0], [1.0]
    times, counts = np.unique(ended, return_counts=True)
    # Of the stays cut after n steps nobody saw whether they would have ended there.
    last_seen = np.sort(np.where(is_cut, lengths - 1, lengths))
    at_risk = len(lengths) - np.searchsorted(last_seen, times, side="left")
    survival = np.cumprod(1.0 - counts / at_risk)
    chosen = np.unique(np.linspace(0, len(times) - 1, min(len(times), _MOST_POINTS)).astype(int))
    return [0, *times[chosen].tolist()], [1.0, *survival[chosen].tolist()]
