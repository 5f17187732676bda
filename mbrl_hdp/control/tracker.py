"""What an agent sees beside the observation: one slot, three fillings.

`BeliefTracker` fills it with the belief (C-CEM, C-SAC), `TruthTracker` with the one-hot truth (FI agents) and
`NothingTracker` not at all (NI agents). An episode loop treats them alike:

    tracker.reset(obs, info)
    while not done:
        act = agent.act(tracker.packed())
        obs, reward, terminated, truncated, info = env.step(act)
        tracker.update(act, obs, info)

Only `TruthTracker` reads `info`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from mbrl_hdp.belief.codec import BeliefCodec, PackedObs
from mbrl_hdp.errors import DataError
from mbrl_hdp.inference.model import ContextModel
from mbrl_hdp.inference.online import OnlineFilter

Obs = Float[np.ndarray, " S"]
Act = Float[np.ndarray, " A"]
Slot = Float[np.ndarray, " K"]
Packed = Float[np.ndarray, " W"]
Info = Mapping[str, Any]


class ContextTracker(ABC):
    """Follows an episode and returns the packed observation.

    Attributes:
        codec: layout of the packed observation.
    """

    def __init__(self, obs_dim: int, width: int) -> None:
        self.codec = BeliefCodec(obs_dim, width)
        self._obs: Obs | None = None

    def reset(self, obs: Obs, info: Info | None = None) -> Packed:
        """Begin an episode; return the first packed observation."""
        self._obs = np.asarray(obs, dtype=np.float64)
        self._take(None, self._obs, info)
        return self.packed()

    def update(self, act: Act, next_obs: Obs, info: Info | None = None) -> Packed:
        """Update the belief with one step; return the next packed observation."""
        self._obs = np.asarray(next_obs, dtype=np.float64)
        self._take(np.asarray(act), self._obs, info)
        return self.packed()

    def packed(self) -> Packed:
        """Return [obs, slot] as it stands.

        Raises:
            DataError: before the first `reset`.
        """
        if self._obs is None:
            raise DataError("call reset(obs) with the episode's first observation before packed()")
        return self.codec.pack(self._obs, self.belief())

    @abstractmethod
    def belief(self) -> Slot:
        """Return what fills the slot now."""

    @abstractmethod
    def _take(self, act: Act | None, obs: Obs, info: Info | None) -> None:
        """Record an observation and the action that led to it, None at the beginning of an episode."""


class BeliefTracker(ContextTracker):
    """Fills the slot with the distribution of the context that acts next, width `max_contexts`.

    Attributes:
        filtered: distribution of the context that acted last, over the kept contexts (for scoring).
    """

    def __init__(self, model: ContextModel) -> None:
        super().__init__(model.task.obs_dim, model.task.max_contexts)
        self.set_model(model)

    def set_model(self, model: ContextModel) -> None:
        """Filter with another model from the next `reset` on."""
        self._filter: OnlineFilter = model.online_filter()
        self._slots = model.slots.numpy()

    def packed(self) -> Packed:
        """Return [obs, belief] as it stands; where contexts have phases it carries the belief over these as well."""
        packed = super().packed()
        return packed if self._filter.states is None else PackedObs.of(packed, self._filter.states)

    @property
    def filtered(self) -> Float[np.ndarray, " k"]:
        """Distribution of the context that acted last, over the kept contexts."""
        return self._filter.filtered

    def belief(self) -> Slot:
        """Return the distribution of the context that acts next, in the slots of the kept contexts."""
        wide = np.zeros(self.codec.max_contexts)
        wide[self._slots] = self._filter.belief
        return wide

    def _take(self, act: Act | None, obs: Obs, info: Info | None) -> None:  # noqa: ARG002
        if act is None:
            self._filter.reset(obs)
        else:
            self._filter.update(act, obs)


class TruthTracker(ContextTracker):
    """Fills the slot with the true context that acts next, one-hot: full-information agents only.

    Args:
        obs_dim: width of an observation.
        num_contexts: width of the one-hot vector.
        places: place of every true context in it; its own number by default. With the slots of a learned model it
            hands the truth to an agent that acts on beliefs (for scoring only).
    """

    def __init__(self, obs_dim: int, num_contexts: int, places: Sequence[int] | None = None) -> None:
        super().__init__(obs_dim, num_contexts)
        self._places = range(num_contexts) if places is None else places
        self._truth = np.zeros(num_contexts)

    def belief(self) -> Slot:
        """Return the one-hot truth."""
        return self._truth.copy()

    def _take(self, act: Act | None, obs: Obs, info: Info | None) -> None:  # noqa: ARG002
        if info is None or "next_context" not in info:
            raise DataError(
                "a full-information agent needs info['next_context']; wrap the environment in SwitchingContext"
            )
        self._truth = np.zeros(self.codec.max_contexts)
        self._truth[self._places[int(info["next_context"])]] = 1.0


class NothingTracker(ContextTracker):
    """Leaves the slot out: agents without information see the observation alone."""

    def __init__(self, obs_dim: int) -> None:
        super().__init__(obs_dim, 0)

    def belief(self) -> Slot:
        """Return a vector of width 0."""
        return np.zeros(0)

    def _take(self, act: Act | None, obs: Obs, info: Info | None) -> None: ...


@runtime_checkable
class ActsOnPacked(Protocol):
    """What `BeliefAgent` asks of an agent: planners and mbrl-lib's `SACAgent` have it."""

    def act(self, obs: Any) -> Any:
        """Choose an action for a packed observation."""
        ...

    def reset(self) -> None:
        """Begin an episode."""
        ...


class BeliefAgent:
    """An agent for plain observations: keeps the belief itself and hands packed observations on.

    It stands wherever an mbrl-lib agent does, for instance in `collect(env, agent)`. It never sees `info`, so it takes
    a `BeliefTracker` or a `NothingTracker`.

    Example:
        >>> agent = BeliefAgent(make_planner(CemConfig(), model, ...), BeliefTracker(model))
        >>> data = collect(env, agent, num_episodes=20)
    """

    def __init__(self, agent: ActsOnPacked, tracker: ContextTracker) -> None:
        self.agent, self.tracker = agent, tracker
        self._last_act: Act | None = None

    def reset(self) -> None:
        """Begin an episode: the next observation is its first."""
        self._last_act = None
        self.agent.reset()

    def act(self, obs: Obs) -> Act:
        """Record the observation and choose an action."""
        packed = self.tracker.reset(obs) if self._last_act is None else self.tracker.update(self._last_act, obs)
        self._last_act = np.asarray(self.agent.act(packed))
        return self._last_act
