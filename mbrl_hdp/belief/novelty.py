"""A sequential test that no known context explains the last steps, with a stated rate of false alarms.

Every step has a score: how badly the best of the known contexts predicts it. Held-out episodes say how scores behave
while nothing is new; nothing is assumed about the densities of the model. Scores become *levels*: a step is at level j
if its score lies above the (1 - 2^-j)-quantile of the held-out scores. Scores of neighbouring steps resemble each
other, so held-out steps are counted by the level of the step before (a row of the null table).

A bet of strength h multiplies evidence by e_t = 2^(h * level) / bound, where `bound` is an upper confidence limit of
the mean of 2^(h * level) after such a step: an e-value, whose mean is at most 1 while nothing is new. The
Shiryaev-Roberts e-detector collects them over all possible beginnings of something new:

    evidence_t = (evidence_{t-1} + 1) * e_t,       averaged over bets;     alarm when evidence >= limit

evidence_t - t is a supermartingale while nothing is new, so with limit = N the mean number of steps up to a false alarm
is at least N (Shin, Ramdas and Rinaldo, "E-detectors", 2023). That takes levels that remember no more than the level
before. Where held-out episodes remember more, their largest evidence has a heavier tail, and the limit is raised to
what an exponential tail fitted to it asks for. docs/novelty.md says which assumptions are left.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, no_type_check

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.stats import beta, chi2

from mbrl_hdp.compiling import compiled
from mbrl_hdp.errors import DataError

# Strengths of the bets: strong ones see large changes at once. Weaker ones than these see small lasting changes sooner,
# but take episodes in which the heads are a little worse than usual for something new.
BETS = (1.0, 2.0)
# Held-out steps that the highest level of the first half holds at least.
_FEWEST_AT_TOP = 10
# Fewer held-out steps say nothing about rare scores.
FEWEST_STEPS = 400
# Level before a step from which each row of the null table begins; row 0 is for steps without a score before them.
_ROW_STARTS = (0, 1, 2, 3, 5)
# Blocks whose largest evidence is looked at, at least, and the share of them that makes up the tail.
_FEWEST_BLOCKS = 40
_TAIL_SHARE = 0.1


@dataclass(frozen=True)
class NullTable:
    """What held-out episodes say about scores while nothing is new; plain numbers, so that it can be saved as JSON.

    Attributes:
        thresholds: score above which a step is at level 1, 2, ...
        tails: upper limit of the probability of level 1, 2, ... or higher, one list a row; row 0 is that of steps
            without a score before them, the others go by the level of that score.
        block_steps: steps of a block (an episode, or a piece of a long one), on average.
        block_level: logarithm of the evidence that the largest of a block exceeds in a tenth of the held-out blocks.
        block_scale: by how much it exceeds that on average, an upper limit.
        num_steps: held-out steps behind the table.
        confidence: probability with which all limits hold together.
    """

    thresholds: list[float]
    tails: list[list[float]]
    block_steps: float
    block_level: float
    block_scale: float
    num_steps: int
    confidence: float

    def log_e_values(self) -> Float[np.ndarray, "rows levels bets"]:
        """Return the logarithm of the factor that each bet puts on its evidence, by row and level."""
        gains = 2.0 ** (np.arange(len(self.thresholds) + 1)[:, None] * np.array(BETS))
        # The mean of a rising function is its first value plus its steps times the tails' probabilities.
        bound = 1.0 + np.asarray(self.tails) @ np.diff(gains, axis=0)
        return np.asarray(np.log(gains)[None] - np.log(bound)[:, None])

    def levels(self, scores: Float[np.ndarray, "*n"]) -> Int[np.ndarray, "*n"]:
        """Return the level of every score; -1 where there is none (NaN)."""
        found = np.searchsorted(np.asarray(self.thresholds), scores, side="left")
        return np.where(np.isnan(scores), -1, found)

    def log_limit(self, steps_per_alarm: int | float) -> float:
        """Return the logarithm of the evidence that raises an alarm.

        It is log N, or more where held-out blocks say so. A block's largest evidence exceeds l with probability
        0.1 exp((level - l) / scale); with a restart after each, it raises as many alarms as l goes into it, so the sum
        of this over l, 2 l, 3 l, ... is to be steps / N at most.
        """
        if self.block_scale <= 0.0:
            return float(np.log(steps_per_alarm))
        allowed = self.block_steps / steps_per_alarm
        odds = np.log(_TAIL_SHARE / allowed) + self.block_level / self.block_scale
        return float(max(np.log(steps_per_alarm), self.block_scale * np.logaddexp(0.0, odds)))


def calibrate(scores: Float[np.ndarray, "N T"], confidence: float = 0.95) -> NullTable:
    """Return the null table of held-out scores; NaN marks steps without one.

    The first half of the steps sets the thresholds, the second half is counted: limits of probabilities need counts at
    thresholds that were chosen without them.

    Args:
        scores: one row an episode, in order of time.
        confidence: probability with which all limits are to hold.

    Raises:
        DataError: if there are too few scores.
    """
    has_score = np.isfinite(scores)
    num_steps = int(has_score.sum())
    if num_steps < FEWEST_STEPS:
        raise DataError(
            f"{num_steps} held-out steps are too few to calibrate a novelty alarm; it takes at least {FEWEST_STEPS}"
        )
    order = has_score.cumsum().reshape(scores.shape)
    early = scores[has_score & (order <= num_steps // 2)]
    num_levels = max(1, int(np.log2(len(early) / _FEWEST_AT_TOP)))
    thresholds = np.quantile(early, 1.0 - 0.5 ** np.arange(1, num_levels + 1))
    table = NullTable(thresholds.tolist(), [], 0.0, 0.0, 0.0, num_steps, confidence)
    counts = _counts(table.levels(scores), order > num_steps // 2, num_levels)
    limits = upper_limits(counts[:, 1:], counts[:, :1], (1.0 - confidence) / counts[:, 1:].size)
    return _with_blocks(replace(table, tails=limits.tolist()), scores)


def _counts(
    levels: Int[np.ndarray, "N T"], is_late: Bool[np.ndarray, "N T"], num_levels: int
) -> Int[np.ndarray, "rows levels"]:
    """Count, for every row, the late steps at level 0, 1, ... or higher."""
    before = np.concatenate([np.full((len(levels), 1), -1), levels[:, :-1]], 1)
    is_counted = is_late & (levels >= 0)
    rows = (before[is_counted][:, None] >= np.asarray(_ROW_STARTS)).sum(1)
    at = np.zeros((len(_ROW_STARTS) + 1, num_levels + 1), dtype=np.int64)
    np.add.at(at, (rows, levels[is_counted]), 1)
    return at[:, ::-1].cumsum(1)[:, ::-1]


def upper_limits(
    successes: Int[np.ndarray, "rows levels"], trials: Int[np.ndarray, "rows one"], error: float
) -> Float[np.ndarray, "rows levels"]:
    """Return the one-sided upper limits of probabilities (Clopper and Pearson), each wrong with probability `error`.

    Example:
        >>> upper_limits(np.array([[0]]), np.array([[10]]), 0.05).round(4)    # 1 - 0.05^(1/10)
        array([[0.2589]])
    """
    is_certain = successes >= trials
    failures = np.where(is_certain, 1, trials - successes)
    return np.where(is_certain, 1.0, beta.ppf(1.0 - error, successes + 1, failures))


def _with_blocks(table: NullTable, scores: Float[np.ndarray, "N T"]) -> NullTable:
    """Return the table with the tail of the largest evidence of blocks: held-out episodes, cut up where few."""
    num_pieces = -(-_FEWEST_BLOCKS // len(scores))
    length = scores.shape[1] // num_pieces
    blocks = scores[:, : num_pieces * length].reshape(-1, length)
    blocks = blocks[np.isfinite(blocks).any(1)]
    every: np.ndarray[Any, Any] = _run(
        table.log_e_values(), table.levels(blocks), np.asarray(_ROW_STARTS), np.inf, True
    )
    largest = every.max(1)
    level = float(np.quantile(largest, 1.0 - _TAIL_SHARE))
    excess = largest[largest > level] - level
    # Twice the sum of exponential excesses over their mean is chi-square with two degrees of freedom for each.
    scale = 2.0 * excess.sum() / chi2.ppf(1.0 - table.confidence, 2 * len(excess)) if len(excess) else 0.0
    steps = float(np.isfinite(blocks).sum() / len(blocks))
    return replace(table, block_steps=steps, block_level=level, block_scale=float(scale))


@dataclass(frozen=True)
class Course:
    """The evidence for something new over recorded steps.

    Attributes:
        log_evidence: logarithm after every step; the evidence starts again at 0 after an alarm.
        is_alarm: steps at which the alarm was raised.
        is_judged: steps that had a score; others leave the evidence as it is.
        log_limit: logarithm of the evidence that raises an alarm.
    """

    log_evidence: Float[np.ndarray, "N T"]
    is_alarm: Bool[np.ndarray, "N T"]
    is_judged: Bool[np.ndarray, "N T"]
    log_limit: float

    @property
    def share(self) -> Float[np.ndarray, "N T"]:
        """How far the evidence has come, from 0 to 1 (alarm), in logarithms."""
        return np.clip(self.log_evidence / self.log_limit, 0.0, 1.0)


def run(table: NullTable, scores: Float[np.ndarray, "N T"], steps_per_alarm: int | float) -> Course:
    """Run the detector over episodes, one after the other; steps without a score (NaN) leave the evidence as it is."""
    limit = table.log_limit(steps_per_alarm)
    found: np.ndarray[Any, Any] = _run(
        table.log_e_values(), table.levels(scores), np.asarray(_ROW_STARTS), limit, False
    )
    is_judged = np.isfinite(scores)
    return Course(found, is_judged & (found >= limit), is_judged, limit)


@compiled("exact")
@no_type_check
def _run(log_factors, levels, row_starts, limit, is_apart):
    """Return the logarithm of the evidence after every step; `is_apart`: it begins at 0 in every row of `levels`."""
    num_bets = log_factors.shape[2]
    collected = np.full(num_bets, -np.inf)
    evidence = np.zeros(levels.shape)
    for episode in range(levels.shape[0]):
        before = -1
        if is_apart:
            collected[:] = -np.inf
        for step in range(levels.shape[1]):
            level = levels[episode, step]
            if level >= 0:
                row = 0
                for start in row_starts:
                    if before >= start:
                        row += 1
                for bet in range(num_bets):
                    collected[bet] = np.logaddexp(collected[bet], 0.0) + log_factors[row, level, bet]
            before = level
            total = collected[0]
            for bet in range(1, num_bets):
                total = np.logaddexp(total, collected[bet])
            evidence[episode, step] = total - np.log(num_bets)
            if evidence[episode, step] >= limit:
                collected[:] = -np.inf
    return evidence


class Detector:
    """The same test while a system runs: one call per step.

    Attributes:
        log_evidence: logarithm of the evidence for something new.
        log_limit: where it raises an alarm.
    """

    def __init__(self, table: NullTable, steps_per_alarm: int | float) -> None:
        self.log_limit = table.log_limit(steps_per_alarm)
        self._thresholds = np.asarray(table.thresholds)
        self._log_factors = table.log_e_values()
        self.clear()

    def clear(self) -> None:
        """Forget all evidence."""
        self._collected = np.full(len(BETS), -np.inf)
        self._before = -1
        self.log_evidence = -np.inf

    def begin_episode(self) -> None:
        """Begin an episode: its first step has none before it. The evidence stays."""
        self._before = -1

    def update(self, score: float) -> bool:
        """Take the score of a step; return whether it raises an alarm. The evidence then starts again."""
        if self.log_evidence >= self.log_limit:
            self._collected[:] = -np.inf
        if np.isnan(score):
            self._before = -1
        else:
            level = int(np.searchsorted(self._thresholds, score, side="left"))
            row = sum(self._before >= start for start in _ROW_STARTS)
            self._collected = np.logaddexp(self._collected, 0.0) + self._log_factors[row, level]
            self._before = level
        self.log_evidence = float(np.logaddexp.reduce(self._collected) - np.log(len(BETS)))
        return bool(not np.isnan(score) and self.log_evidence >= self.log_limit)
