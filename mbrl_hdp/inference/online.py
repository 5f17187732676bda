"""The belief in real time: one call per control step."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from mbrl_hdp.belief.filter import update_belief_into
from mbrl_hdp.belief.phase_filter import PhaseUpdate
from mbrl_hdp.data.past import PastWindow
from mbrl_hdp.errors import DataError
from mbrl_hdp.inference.row_density import CompiledRow, fill_row

Vector = Float[np.ndarray, " n"]
LogLik = Callable[[Vector, Vector, Vector], Float[np.ndarray, " k"]]
# The chain is in single precision: over many steps without information its rounding adds up.
_SUM_TOLERANCE = 1e-3
_PARTS = ("model", "belief", "filtered", "log_evidence", "num_steps", "obs")


class OnlineFilter:
    """Keeps the belief over contexts up to date (Theorem 2) while a system runs.

        online = model.online_filter()
        online.reset(obs)
        belief = online.update(act, next_obs)     # after every step

    What it returns is a copy and stays as it is. A control loop that must not allocate passes an array of its own,
    which the next update overwrites:

        belief = np.empty(model.num_contexts)
        online.update(act, next_obs, out=belief)

    With a transition model that offers a density table (all built-in ones do), `update` then allocates no array: the
    numbers go through compiled kernels and buffers that were made with the filter. Compilation happens in here, too.

    Actions are as they were recorded, also where the model looks at the past (`past`): the filter keeps the last steps
    itself. The first ones after `reset`, which have no such past, carry no information.

    Attributes:
        log_evidence: log p(next_obs | obs, act, history) of the last step, contexts summed out; NaN before the first
            step and where a value was missing.
        num_steps: updates since the last reset.
    """

    def __init__(
        self,
        initial: Float[np.ndarray, " k"],
        transition: Float[np.ndarray, "k k"],
        log_lik: LogLik | CompiledRow,
        past: PastWindow | None = None,
    ) -> None:
        self._initial = np.array(initial, dtype=np.float64)
        self._transition = np.ascontiguousarray(transition, dtype=np.float64)
        self._log_lik, self._past = log_lik, past
        self._densities, self._following = np.zeros_like(self._initial), np.zeros_like(self._initial)
        self._belief, self._filtered = self._initial.copy(), self._initial.copy()
        self._obs: Vector | None = None
        self._next_obs = np.zeros(0)
        self.log_evidence, self.num_steps = float("nan"), 0
        # Compile now, not in the first step of a control loop.
        update_belief_into(self._belief, self._densities, self._transition, self._filtered, self._following)
        self._begin()

    @property
    def num_contexts(self) -> int:
        """Number of contexts."""
        return len(self._initial)

    @property
    def belief(self) -> Float[np.ndarray, " k"]:
        """Predictive distribution of the context that acts next (a copy)."""
        return self._belief.copy()

    @property
    def filtered(self) -> Float[np.ndarray, " k"]:
        """Distribution of the context that acted on the last step, `initial` before the first one (a copy)."""
        return self._filtered.copy()

    @property
    def log_lik(self) -> Float[np.ndarray, " k"]:
        """Log-likelihood of the last step in every context, which a novelty alarm takes; NaN before it (a copy)."""
        return self._densities.copy()

    def reset(self, obs: Float[np.ndarray, " S"]) -> Float[np.ndarray, " k"]:
        """Begin an episode at its first observation; return the belief, which is `initial`.

        Raises:
            DataError: if the observation is no row of numbers of the model's width.
        """
        first = self._row(obs)
        self._obs, self._next_obs = first, np.zeros_like(first)
        self._begin()
        return self.belief

    def update(
        self,
        act: Float[np.ndarray, " A"],
        next_obs: Float[np.ndarray, " S"],
        out: Float[np.ndarray, " k"] | None = None,
    ) -> Float[np.ndarray, " k"]:
        """Update the belief with one step; return the distribution of the context that acts next.

        A next observation with NaN carries no information: the belief only moves on. If the likelihood of every
        context vanishes, likewise.

        Args:
            act: the action that was taken.
            next_obs: what was observed after it.
            out: array that the belief is written to (float64) and that is returned; a new one by default.

        Raises:
            DataError: before the first `reset`, or on rows of the wrong width; the belief is unchanged then.
        """
        if self._obs is None:
            raise DataError("call reset(obs) with the episode's first observation before update(act, next_obs)")
        fill_row(self._next_obs, next_obs, "next_obs")
        if self._past is not None:
            fill_row(self._past.present, act, self._past.label)
            act = self._past.row
        self._weigh(self._obs, act)
        self._move()
        if self._past is not None:
            self._past.move(self._obs, self._next_obs)
        self._obs, self._next_obs = self._next_obs, self._obs
        self.num_steps += 1
        if out is None:
            return self._belief.copy()
        out[:] = self._belief
        return out

    def fresh(self) -> OnlineFilter:
        """Return another filter of the same model, before its first `reset`; cheap, for many streams.

        Both share the compiled density and its buffers: use them from one thread.
        """
        return OnlineFilter(self._initial, self._transition, self._log_lik, self._past and self._past.fresh())

    def state(self) -> dict[str, NDArray[Any]]:
        """Return all that `restore` needs, as plain arrays (copies).

        Example:
            >>> np.savez("filter.npz", **online.state())  # no pickle; or json.dumps of every array's tolist()
            >>> model.online_filter().restore(np.load("filter.npz"))
        """
        return {
            "model": np.array(self._fingerprint()),
            "belief": self.belief,
            "filtered": self.filtered,
            "log_evidence": np.array(self.log_evidence),
            "num_steps": np.array(self.num_steps),
            "obs": np.zeros(0) if self._obs is None else self._obs.copy(),
            **({} if self._past is None else {"past": self._past.past.copy()}),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned (arrays or lists), with a filter of the same model.

        Raises:
            DataError: if a part is missing or is no belief, or the state belongs to another model; nothing has changed
                then.
        """
        parts = _PARTS if self._past is None else (*_PARTS, "past")
        missing = [name for name in parts if name not in state]
        if missing:
            raise DataError(f"the state of an online filter has no {missing[0]!r}; it needs {', '.join(parts)}")
        if str(np.asarray(state["model"])) != self._fingerprint():
            raise DataError("this state belongs to another model: its contexts switch differently; reset instead")
        belief, filtered = (self._distribution(state[name], name) for name in ("belief", "filtered"))
        obs = np.zeros(0) if not np.size(state["obs"]) else self._row(state["obs"])
        log_evidence, num_steps = _number(state, "log_evidence"), int(_number(state, "num_steps"))
        past = np.zeros(0) if self._past is None else np.zeros_like(self._past.past)
        if self._past is not None:
            fill_row(past, state["past"], "past")
        self._begin()
        self._belief[:], self._filtered[:] = belief, filtered
        self._obs, self._next_obs = (obs if obs.size else None), np.zeros_like(obs)
        self.log_evidence, self.num_steps = log_evidence, num_steps
        if self._past is not None:
            self._past.past[:] = past

    @property
    def states(self) -> Float[np.ndarray, " S"] | None:
        """Belief over (context, phase); None where contexts have no phases."""
        return None

    def _weigh(self, obs: Vector, act: Any) -> None:
        """Set the densities of the step; a past that is not complete says nothing, even where the heads ignore it."""
        if self._past is not None and not self._past.is_complete:
            self._densities.fill(np.nan)
        elif isinstance(self._log_lik, CompiledRow):
            self._log_lik(obs, act, self._next_obs, out=self._densities)
        else:
            self._densities[:] = self._log_lik(obs, np.asarray(act), self._next_obs)

    def _move(self) -> None:
        """Weigh the belief by the densities of the step and move it along the chain."""
        self.log_evidence = update_belief_into(
            self._belief, self._densities, self._transition, self._filtered, self._following
        )
        self._belief, self._following = self._following, self._belief

    def _begin(self) -> None:
        self._belief[:] = self._initial
        self._filtered[:] = self._initial
        self._densities.fill(np.nan)
        self.log_evidence, self.num_steps = float("nan"), 0
        if self._past is not None:
            self._past.clear()

    def _row(self, obs: Any) -> Vector:
        shape = (self._log_lik.table.obs_dim,) if isinstance(self._log_lik, CompiledRow) else np.shape(obs)
        shape = shape if self._past is None else (self._past.obs_dim,)
        if len(shape) != 1:
            raise DataError(f"obs: a row of numbers is needed here, got shape {shape}")
        row = np.zeros(shape)
        fill_row(row, obs, "obs")
        return row

    def _distribution(self, values: Any, name: str, size: int | None = None) -> Vector:
        found = np.zeros(self.num_contexts if size is None else size)
        fill_row(found, values, name)
        if not (np.isfinite(found).all() and (found >= 0).all() and abs(found.sum() - 1.0) < _SUM_TOLERANCE):
            raise DataError(f"the {name} of this state is no distribution of {len(found)} numbers: {found}")
        return found

    def _fingerprint(self) -> str:
        """Return a name of the chain; a refit of the same data changes it."""
        return hashlib.sha256(self._initial.tobytes() + self._transition.tobytes()).hexdigest()[:16]


class PhaseFilter(OnlineFilter):
    """The same for contexts with phases: it knows how long a context has lasted; `belief` is by context.

    Densities belong to contexts, so that `filtered` and the evidence are those of the belief by context; only the move
    along the chain needs the phases.
    """

    def __init__(self, update: PhaseUpdate, log_lik: LogLik | CompiledRow, past: PastWindow | None = None) -> None:
        self._phases = update
        self._states, self._next_states, self._filtered_states = (update.initial.copy() for _ in range(3))
        initial = update.contexts(update.initial)
        super().__init__(initial, np.eye(len(initial)), log_lik, past)
        self._move_states(np.zeros_like(initial))  # compile now, not in the first step of a control loop
        self._begin()

    @property
    def states(self) -> Float[np.ndarray, " S"]:
        """Predictive distribution of the (context, phase) that acts next (a copy)."""
        return self._states.copy()

    def fresh(self) -> PhaseFilter:
        """Return another filter of the same model, before its first `reset`."""
        return PhaseFilter(self._phases, self._log_lik, self._past and self._past.fresh())

    def state(self) -> dict[str, NDArray[Any]]:
        """Return all that `restore` needs, the phases included, as plain arrays (copies)."""
        return super().state() | {"states": self.states}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned; nothing has changed where it raises `DataError`."""
        if "states" not in state:
            raise DataError("the state of this online filter has no 'states': contexts of this model have phases")
        states = self._distribution(state["states"], "states", len(self._states))
        super().restore(state)
        self._states[:] = states

    def _move(self) -> None:
        super()._move()
        self._move_states(self._densities)

    def _move_states(self, densities: Vector) -> None:
        self._phases.into(self._states, densities, self._filtered_states, self._next_states, self._belief)
        self._states, self._next_states = self._next_states, self._states

    def _begin(self) -> None:
        super()._begin()
        self._states[:] = self._phases.initial

    def _fingerprint(self) -> str:
        return hashlib.sha256(b"".join(part.tobytes() for part in self._phases.parts)).hexdigest()[:16]


def _number(state: Mapping[str, Any], name: str) -> float:
    try:
        return float(np.asarray(state[name], dtype=np.float64))
    except (TypeError, ValueError) as error:
        raise DataError(f"the {name} of this state is no number: {error}") from error
