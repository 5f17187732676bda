"""Which of several runs is taken: scores on held-out episodes and the rule that compares them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.errors import DivergenceError
from mbrl_hdp.inference.model import ContextModel
from mbrl_hdp.inference.prediction_error import scaled_errors

DIVERGED_ADVICE = "check the data for extreme values, or lower fit.learning_rate"


@dataclass(frozen=True)
class HeldOutScore:
    """How well a run does on episodes that it was not trained on.

    Attributes:
        log_likelihoods: held-out log-likelihood per transition of the distilled model, one number an episode.
        squared_errors: squared error of the belief's prediction of every transition: the mean over the columns, each in
            units of its spread.
        num_contexts: contexts that the run found.
    """

    log_likelihoods: Float[np.ndarray, " N"]
    squared_errors: Float[np.ndarray, " transitions"]
    num_contexts: int

    @property
    def rmse(self) -> float:
        """Root of the mean squared error."""
        return float(np.sqrt(self.squared_errors.mean()))

    @property
    def log_likelihood(self) -> float:
        """Mean over the episodes."""
        return float(self.log_likelihoods.mean())


def choose(scores: list[HeldOutScore], tolerance: float = 0.05, accepted: int = 1) -> int:
    """Choose among runs by their predictions, then their number of contexts, then their likelihood.

    Runs that predict worse than the best one by more than `tolerance`, and by more than chance, are rejected: the
    likelihood alone can prefer a wrong optimum in which the contexts flip at every step, and its predictions give it
    away. Among the others, those whose likelihood is within two standard errors of the best count as equally good, and
    of these the simplest is taken. Contexts that were `accepted` on more evidence do not count as complexity: the few
    held-out episodes may hardly contain a rare one.
    """

    def order(i: int) -> tuple[int, float]:
        return max(scores[i].num_contexts, accepted), -scores[i].log_likelihood

    return min(equally_good(scores, tolerance), key=order)


def equally_good(scores: list[HeldOutScore], tolerance: float = 0.05) -> list[int]:
    """Return the runs that held-out data does not tell apart from the best one; see `choose`.

    Raises:
        DivergenceError: if every run diverged.
    """
    rmse = np.array([score.rmse for score in scores])
    if not np.isfinite(rmse).any():
        raise DivergenceError(f"every run diverged; {DIVERGED_ADVICE}")
    finite = [i for i in range(len(scores)) if np.isfinite(rmse[i])]
    sharpest = scores[int(np.nanargmin(rmse))]
    good = [
        i
        for i in finite
        if rmse[i] <= sharpest.rmse * (1.0 + tolerance)
        or _is_within_chance(scores[i].squared_errors - sharpest.squared_errors)
    ]
    best = max(good, key=lambda i: scores[i].log_likelihood)
    return [i for i in good if _is_within_chance(scores[best].log_likelihoods - scores[i].log_likelihoods)]


def _is_within_chance(difference: Float[np.ndarray, " n"]) -> bool:
    """Return whether the mean difference to the better run, on the same data, is within two standard errors of zero."""
    return bool(difference.mean() <= 2.0 * difference.std() / np.sqrt(max(len(difference) - 1, 1)))


def held_out_score(model: ContextModel, data: Trajectories, most_error: float = np.inf) -> HeldOutScore:
    """Score a model on episodes that it was not trained on.

    Args:
        model: the model.
        data: the episodes.
        most_error: what a prediction error counts at most, in units of the spread of the column's changes.
    """
    found = model.analyse(data)
    error = scaled_errors(found.predicted, data).clip(-most_error, most_error)
    num_steps = np.maximum(data.is_observed.sum(-1), 1)
    return HeldOutScore(
        log_likelihoods=found.log_likelihood / num_steps,
        squared_errors=np.square(error).mean(-1),
        num_contexts=model.num_contexts,
    )
