"""The belief in real time: one call per control step."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from mbrl_hdp.belief.filter import update_belief
from mbrl_hdp.errors import DataError

Vector = Float[np.ndarray, " n"]


class OnlineFilter:
    """Keeps the belief over contexts up to date (Theorem 2) while a system runs.

        online = model.online_filter()
        online.reset(obs)
        belief = online.update(act, next_obs)     # after every step

    Attributes:
        belief: predictive distribution of the context that acts next.
        filtered: distribution of the context that acted on the last step; `initial` before the first one.
        log_lik: log-likelihood of the last step in every context, which a novelty alarm takes; NaN before the first.
    """

    def __init__(
        self,
        initial: Float[np.ndarray, " k"],
        transition: Float[np.ndarray, "k k"],
        log_lik: Callable[[Vector, Vector, Vector], Float[np.ndarray, " k"]],
    ) -> None:
        self._initial = np.asarray(initial, dtype=np.float64)
        self._transition = np.ascontiguousarray(transition, dtype=np.float64)
        self._log_lik = log_lik
        self._obs: Vector | None = None
        self.belief, self.filtered = self._initial.copy(), self._initial.copy()
        self.log_lik = np.full(len(self._initial), np.nan)

    def reset(self, obs: Float[np.ndarray, " S"]) -> Float[np.ndarray, " k"]:
        """Begin an episode at its first observation; return the belief, which is `initial`."""
        self._obs = np.asarray(obs)
        self.belief, self.filtered = self._initial.copy(), self._initial.copy()
        self.log_lik = np.full(len(self._initial), np.nan)
        return self.belief

    def update(self, act: Float[np.ndarray, " A"], next_obs: Float[np.ndarray, " S"]) -> Float[np.ndarray, " k"]:
        """Update the belief with one step; return the distribution of the context that acts next.

        A next observation with NaN carries no information: the belief only moves on. If the likelihood of every
        context vanishes, likewise.
        """
        if self._obs is None:
            raise DataError("call reset(obs) with the episode's first observation before update(act, next_obs)")
        next_obs = np.asarray(next_obs)
        self.log_lik = self._log_lik(self._obs, np.asarray(act), next_obs)
        self.filtered, self.belief = update_belief(self.belief, self.log_lik, self._transition)
        self._obs = next_obs
        return self.belief
