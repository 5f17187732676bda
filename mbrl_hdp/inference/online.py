"""The belief in real time: one call per control step."""

from __future__ import annotations

from collections.abc import Callable
from typing import no_type_check

import numpy as np
from jaxtyping import Float

from mbrl_hdp.compiling import compiled
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
        self.belief = self._initial.copy()
        self.filtered = self._initial.copy()

    def reset(self, obs: Float[np.ndarray, " S"]) -> Float[np.ndarray, " k"]:
        """Begin an episode at its first observation; return the belief, which is `initial`."""
        self._obs = np.asarray(obs)
        self.belief = self._initial.copy()
        self.filtered = self._initial.copy()
        return self.belief

    def update(self, act: Float[np.ndarray, " A"], next_obs: Float[np.ndarray, " S"]) -> Float[np.ndarray, " k"]:
        """Take in one step; return the distribution of the context that acts next.

        A next observation with NaN carries no information: the belief only moves on. If the likelihood of every
        context vanishes, likewise.
        """
        if self._obs is None:
            raise DataError("call reset(obs) with the episode's first observation before update(act, next_obs)")
        next_obs = np.asarray(next_obs)
        log_lik = self._log_lik(self._obs, np.asarray(act), next_obs)
        self.filtered, self.belief = _move(self.belief, log_lik, self._transition)
        self._obs = next_obs
        return self.belief


@compiled("reordered")
@no_type_check
def _move(belief: Vector, log_lik: Vector, transition: Vector) -> tuple[Vector, Vector]:
    """Return the filtered distribution, normalise(belief * likelihood), and the next belief, filtered @ transition."""
    filtered = belief.copy()
    peak = log_lik.max()
    if np.isfinite(peak):
        weight = belief * np.exp(log_lik - peak)
        total = weight.sum()
        if total > 0.0:
            filtered = weight / total
    following = np.zeros_like(filtered)
    for before in range(len(filtered)):
        for after in range(len(filtered)):
            following[after] += filtered[before] * transition[before, after]
    return filtered, following
