"""The belief in real time: one call per control step."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from mbrl_hdp.belief.filter import update_belief
from mbrl_hdp.belief.phase_filter import PhaseUpdate
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
        self.belief, self.filtered = self._initial.copy(), self._initial.copy()

    def reset(self, obs: Float[np.ndarray, " S"]) -> Float[np.ndarray, " k"]:
        """Begin an episode at its first observation; return the belief, which is `initial`."""
        self._obs = np.asarray(obs)
        self.belief, self.filtered = self._initial.copy(), self._initial.copy()
        return self.belief

    def update(self, act: Float[np.ndarray, " A"], next_obs: Float[np.ndarray, " S"]) -> Float[np.ndarray, " k"]:
        """Update the belief with one step; return the distribution of the context that acts next.

        A next observation with NaN carries no information: the belief only moves on. If the likelihood of every
        context vanishes, likewise.
        """
        if self._obs is None:
            raise DataError("call reset(obs) with the episode's first observation before update(act, next_obs)")
        next_obs = np.asarray(next_obs)
        log_lik = self._log_lik(self._obs, np.asarray(act), next_obs)
        self.filtered, self.belief = update_belief(self.belief, log_lik, self._transition)
        self._obs = next_obs
        return self.belief

    @property
    def states(self) -> Float[np.ndarray, " S"] | None:
        """Belief over (context, phase); None where contexts have no phases."""
        return None


class PhaseFilter(OnlineFilter):
    """The same for contexts with phases: it knows how long a context has lasted; `belief` is by context."""

    def __init__(
        self, update: PhaseUpdate, log_lik: Callable[[Vector, Vector, Vector], Float[np.ndarray, " k"]]
    ) -> None:
        self._move, self._states = update, update.initial.copy()
        self._log_lik = log_lik
        self._obs = None
        self._initial = update.contexts(update.initial)
        self.belief, self.filtered = self._initial.copy(), self._initial.copy()

    @property
    def states(self) -> Float[np.ndarray, " S"]:
        """Predictive distribution of the (context, phase) that acts next."""
        return self._states

    def reset(self, obs: Float[np.ndarray, " S"]) -> Float[np.ndarray, " k"]:
        """Begin an episode at its first observation; return the belief, which is `initial`."""
        self._states = self._move.initial.copy()
        return super().reset(obs)

    def update(self, act: Float[np.ndarray, " A"], next_obs: Float[np.ndarray, " S"]) -> Float[np.ndarray, " k"]:
        """Update the belief with one step; return the distribution of the context that acts next."""
        if self._obs is None:
            return super().update(act, next_obs)  # which raises
        next_obs = np.asarray(next_obs)
        log_lik = self._log_lik(self._obs, np.asarray(act), next_obs)
        filtered, self._states = self._move(self._states, log_lik)
        self.filtered, self.belief = self._move.contexts(filtered), self._move.contexts(self._states)
        self._obs = next_obs
        return self.belief
