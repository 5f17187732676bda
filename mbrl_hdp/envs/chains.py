"""Chains: how the hidden context switches.

A chain never changes, so one object may serve many environments; `ChainWalk` (walk.py) draws from it.

Cool-off c: a context acts at least c steps, after that it may switch at every step. The counter is full at reset
(first switch possible after c steps) unless `counter_at_reset` says otherwise.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mbrl_hdp.errors import ConfigError, did_you_mean

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_SUM_TOLERANCE = 1e-6
_KINDS = {
    "symmetric": ("switch",),
    "ring": ("stay",),
    "markov": ("matrix", "initial"),
    "non_markovian": ("matrix", "initial"),
    "stripes": ("width", "index"),
    "schedule": ("sequence", "repeat"),
}
_NEEDED = {"markov": ("matrix",), "non_markovian": ("matrix",), "schedule": ("sequence",)}


class WalkState(NamedTuple):
    """What a chain may look at when it proposes the next contexts of `B` walks.

    Attributes:
        current: context that acted last, `B`.
        previous: the different context that acted before `current`, `B`; equal to `current` before the first switch.
        num_steps: how many steps have been taken since reset.
        obs: observation after the last step, `B S`; None for walks without an environment.
    """

    current: IntArray
    previous: IntArray
    num_steps: int
    obs: FloatArray | None = None


class Chain(ABC):
    """Distribution of the hidden context.

    Args:
        num_contexts: number of contexts.
        cool_off: steps that a context acts at least.
        counter_at_reset: `full` (first switch possible after `cool_off` steps), `empty` (at once), or the number of
            steps in between.
    """

    def __init__(self, num_contexts: int, cool_off: int = 5, counter_at_reset: str | int = "full") -> None:
        if num_contexts < 1:
            raise ConfigError(f"a chain needs at least one context, got num_contexts={num_contexts}")
        if cool_off < 0:
            raise ConfigError(f"cool_off must be at least 0, got {cool_off}")
        self.num_contexts = int(num_contexts)
        self.cool_off = int(cool_off)
        self.counter_at_reset = _counter(counter_at_reset, self.cool_off)

    def __eq__(self, other: object) -> bool:
        """Compare by numbers; gymnasium compares chains when it builds an environment from its spec."""
        if type(self) is not type(other):
            return False
        mine, theirs = vars(self), vars(other)
        return mine.keys() == theirs.keys() and all(np.array_equal(mine[name], theirs[name]) for name in mine)

    def __hash__(self) -> int:
        return hash((type(self), self.num_contexts, self.cool_off, self.counter_at_reset))

    @abstractmethod
    def first(self, uniform: FloatArray, obs: FloatArray | None) -> IntArray:
        """Draw the first acting contexts `B` from one uniform number each (`B`) and the first observation (`B S`)."""

    @abstractmethod
    def propose(self, uniform: FloatArray, state: WalkState) -> IntArray:
        """Draw the contexts `B` that act next; the walk keeps the current one where the cool-off still runs."""


class MarkovChain(Chain):
    """Markov chain with cool-off: after it, the next context is drawn from `matrix[current]`.

    Args:
        matrix: p(next | current), `n n`, rows sum to 1.
        initial: distribution of the first acting context, `n`; None means uniform.
        cool_off: see `Chain`.
        counter_at_reset: see `Chain`.

    Example:
        >>> chain = MarkovChain([[0.9, 0.1], [0.3, 0.7]], cool_off=5)
        >>> MarkovChain.symmetric(2, switch=0.2).matrix
        array([[0.8, 0.2],
               [0.2, 0.8]])
    """

    def __init__(
        self,
        matrix: ArrayLike,
        initial: ArrayLike | None = None,
        cool_off: int = 5,
        counter_at_reset: str | int = "full",
    ) -> None:
        self.matrix = _stochastic("matrix", matrix, ndim=2)
        num_contexts = len(self.matrix)
        if self.matrix.shape != (num_contexts, num_contexts):
            raise ConfigError(f"matrix must be square, got shape {self.matrix.shape}")
        uniform = np.full(num_contexts, 1.0 / num_contexts)
        self.initial = uniform if initial is None else _stochastic("initial", initial, ndim=1)
        if self.initial.shape != (num_contexts,):
            raise ConfigError(f"initial has {len(self.initial)} entries, but matrix has {num_contexts} rows")
        super().__init__(num_contexts, cool_off, counter_at_reset)
        self._cumulative = _cumulative(self.matrix)
        self._cumulative_initial = _cumulative(self.initial[None, :])

    @classmethod
    def symmetric(
        cls, num_contexts: int, switch: float = 0.2, cool_off: int = 5, counter_at_reset: str | int = "full"
    ) -> MarkovChain:
        """Switch with probability `switch` after the cool-off, to each other context alike."""
        _check_probability("switch", switch, num_contexts)
        matrix = np.full((num_contexts, num_contexts), switch / max(num_contexts - 1, 1))
        np.fill_diagonal(matrix, 1.0 - switch if num_contexts > 1 else 1.0)
        return cls(matrix, cool_off=cool_off, counter_at_reset=counter_at_reset)

    @classmethod
    def ring(
        cls, num_contexts: int, stay: float = 0.6, cool_off: int = 5, counter_at_reset: str | int = "full"
    ) -> MarkovChain:
        """Stay with probability `stay`, else go to one of the two neighbours (modulo the number of contexts)."""
        _check_probability("stay", stay, num_contexts)
        matrix = stay * np.eye(num_contexts)
        for step in (-1, 1):
            matrix += 0.5 * (1.0 - stay) * np.roll(np.eye(num_contexts), step, axis=1)
        return cls(matrix, cool_off=cool_off, counter_at_reset=counter_at_reset)

    def first(self, uniform: FloatArray, obs: FloatArray | None) -> IntArray:  # noqa: ARG002
        """Draw from `initial`."""
        return _draw(self._cumulative_initial, uniform)

    def propose(self, uniform: FloatArray, state: WalkState) -> IntArray:
        """Draw from `matrix[current]`."""
        return _draw(self._cumulative.take(state.current, axis=1), uniform)

    def with_counter(self) -> tuple[FloatArray, FloatArray]:
        """Return the same process as a plain Markov chain over (context, steps left in the cool-off).

        An exact filter runs on it: state `context * width + left` with `width = max(cool_off, 1)`, where `left` counts
        the further steps that the context is sure to act after this one.

        Returns:
            initial `n*width` and transition `n*width n*width`.
        """
        num, width = self.num_contexts, max(self.cool_off, 1)
        initial = np.zeros((num, width))
        initial[:, max(self.counter_at_reset - 1, 0)] = self.initial
        transition = np.zeros((num, width, num, width))
        for context in range(num):
            for left in range(1, width):
                transition[context, left, context, left - 1] = 1.0
            transition[context, 0, :, width - 1] = self.matrix[context]
            transition[context, 0, context, width - 1] = 0.0
            transition[context, 0, context, 0] += self.matrix[context, context]
        return initial.reshape(-1), transition.reshape(num * width, num * width)


class NonMarkovianChain(MarkovChain):
    """After the cool-off, the next context is drawn from the row of the context BEFORE the current one.

    The paper's appendix "Breaking the assumptions". Before the first switch the current context's row is used.
    """

    def propose(self, uniform: FloatArray, state: WalkState) -> IntArray:
        """Draw from `matrix[previous]`."""
        return _draw(self._cumulative.take(state.previous, axis=1), uniform)

    def with_counter(self) -> tuple[FloatArray, FloatArray]:
        """Raise: the process is not Markovian in (context, steps left)."""
        raise ConfigError("a NonMarkovianChain is no Markov chain over (context, steps left in the cool-off)")


@dataclass(frozen=True)
class PositionStripes:
    """The paper's position stripes: contexts alternate every `width` of one observation entry, mirrored at zero.

    z = 0 on [0, w), 1 on [w, 2w), ...; on the negative side z = 1 on (-w, 0), 0 on (-2w, -w], ...

    Attributes:
        width: width of a stripe.
        index: which entry of the observation.
    """

    width: float = 0.1
    index: int = 0

    def __call__(self, obs: FloatArray) -> IntArray:
        """Return the context `B` at each observation `B S`."""
        position = np.asarray(obs, dtype=np.float64)[:, self.index]
        stripe = np.floor(np.abs(position) / self.width).astype(np.int64)
        return (stripe + (position < 0.0)) % 2


class StateDependentChain(Chain):
    """The context is a function of the observation, `f(obs [B, S]) -> context [B]`.

    Args:
        function: returns the context that acts next from the observation before it acts.
        num_contexts: number of contexts.
        cool_off: see `Chain`; 0 here, the state alone decides.
        counter_at_reset: see `Chain`.
    """

    def __init__(
        self,
        function: Callable[[FloatArray], ArrayLike] | None = None,
        num_contexts: int = 2,
        cool_off: int = 0,
        counter_at_reset: str | int = "full",
    ) -> None:
        super().__init__(num_contexts, cool_off, counter_at_reset)
        self.function = PositionStripes() if function is None else function

    def first(self, uniform: FloatArray, obs: FloatArray | None) -> IntArray:
        """Return the context at the first observation."""
        return self._contexts(len(uniform), obs)

    def propose(self, uniform: FloatArray, state: WalkState) -> IntArray:
        """Return the context at the observation after the last step."""
        return self._contexts(len(uniform), state.obs)

    def _contexts(self, num: int, obs: FloatArray | None) -> IntArray:
        if obs is None:
            raise ConfigError("a StateDependentChain needs the observation at reset and at every step")
        contexts = np.broadcast_to(np.asarray(self.function(obs), dtype=np.int64).reshape(-1), (num,))
        if contexts.min() < 0 or contexts.max() >= self.num_contexts:
            raise ConfigError(
                f"the function of a StateDependentChain returned context {contexts.max()}, but there are only "
                f"{self.num_contexts} (0 to {self.num_contexts - 1}); give num_contexts="
            )
        return contexts


class ScheduleChain(Chain):
    """A fixed sequence: `sequence[t]` acts on step t; the last one is held after the end, or the sequence repeats.

    Args:
        sequence: context of every step.
        num_contexts: number of contexts; None means one more than the largest in the sequence.
        repeat: start again at the end instead of holding the last context.
    """

    def __init__(self, sequence: Sequence[int], num_contexts: int | None = None, repeat: bool = False) -> None:
        self.sequence = np.asarray(sequence, dtype=np.int64).reshape(-1)
        if self.sequence.size == 0:
            raise ConfigError("a ScheduleChain needs at least one entry in its sequence")
        largest = int(self.sequence.max())
        super().__init__(largest + 1 if num_contexts is None else num_contexts, cool_off=0)
        if self.sequence.min() < 0 or largest >= self.num_contexts:
            raise ConfigError(f"sequence must hold contexts 0 to {self.num_contexts - 1}, got {sorted(set(sequence))}")
        self.repeat = repeat

    def first(self, uniform: FloatArray, obs: FloatArray | None) -> IntArray:  # noqa: ARG002
        """Return the first entry."""
        return np.full(len(uniform), self.sequence[0])

    def propose(self, uniform: FloatArray, state: WalkState) -> IntArray:
        """Return the entry of the coming step."""
        length = len(self.sequence)
        time = state.num_steps % length if self.repeat else min(state.num_steps, length - 1)
        return np.full(len(uniform), self.sequence[time])


def chain_from_config(
    num_contexts: int,
    chain: Chain | Mapping[str, Any] | None = None,
    *,
    switch: float = 0.2,
    cool_off: int = 5,
    counter_at_reset: str | int = "full",
) -> Chain:
    """Build a chain from plain settings, as configuration files give them.

    Args:
        num_contexts: number of contexts.
        chain: a chain (taken as it is), None (symmetric), or a mapping with `kind` and its settings:
            `symmetric` (switch), `ring` (stay), `markov` and `non_markovian` (matrix, initial), `stripes` (width,
            index), `schedule` (sequence, repeat).
        switch: switch probability of the symmetric chain.
        cool_off: cool-off of all kinds but `stripes` and `schedule`, where nothing is random.
        counter_at_reset: see `Chain`.

    Raises:
        ConfigError: for an unknown kind or setting.
    """
    if isinstance(chain, Chain):
        return chain
    settings = dict(chain or {"kind": "symmetric", "switch": switch})
    kind = str(settings.pop("kind", None))
    if kind not in _KINDS:
        raise ConfigError(f"chain.kind={kind!r} is not known; {did_you_mean(kind, _KINDS)}")
    for name in settings:
        if name not in _KINDS[kind]:
            raise ConfigError(f"chain.{name} is not a setting of kind {kind!r}; {did_you_mean(name, _KINDS[kind])}")
    for name in _NEEDED.get(kind, ()):
        if name not in settings:
            raise ConfigError(f"chain.{name} is missing: kind {kind!r} needs it")
    if kind == "stripes":
        return StateDependentChain(PositionStripes(**settings))
    if kind == "schedule":
        return ScheduleChain(num_contexts=num_contexts, **settings)
    counter: dict[str, Any] = {"cool_off": cool_off, "counter_at_reset": counter_at_reset}
    if kind in ("symmetric", "ring"):
        return getattr(MarkovChain, kind)(num_contexts, **settings, **counter)
    return (MarkovChain if kind == "markov" else NonMarkovianChain)(**settings, **counter)


def check_chain(chain: Any, num_contexts: int) -> Chain:
    """Raise if this is not a chain over exactly `num_contexts` contexts."""
    if not isinstance(chain, Chain):
        raise ConfigError(f"chain must be a MarkovChain or another Chain, got {type(chain).__name__}")
    if chain.num_contexts != num_contexts:
        raise ConfigError(f"the chain is over {chain.num_contexts} contexts, but {num_contexts} contexts are given")
    return chain


def _counter(counter_at_reset: str | int, cool_off: int) -> int:
    named = {"full": cool_off, "empty": 0}
    if isinstance(counter_at_reset, str):
        if counter_at_reset not in named:
            raise ConfigError(f"counter_at_reset must be full, empty or a number, got {counter_at_reset!r}")
        return named[counter_at_reset]
    if not 0 <= counter_at_reset <= cool_off:
        raise ConfigError(f"counter_at_reset must lie between 0 and cool_off={cool_off}, got {counter_at_reset}")
    return int(counter_at_reset)


def _check_probability(name: str, value: float, num_contexts: int) -> None:
    if not 0.0 <= value <= 1.0:
        raise ConfigError(f"{name} must be a probability, got {value}")
    if num_contexts < 1:
        raise ConfigError(f"a chain needs at least one context, got num_contexts={num_contexts}")


def _stochastic(name: str, values: ArrayLike, ndim: int) -> FloatArray:
    array = np.array(values, dtype=np.float64)
    if array.ndim != ndim or array.size == 0:
        raise ConfigError(f"{name} must be a non-empty array of {ndim} dimension(s), got shape {array.shape}")
    if not np.isfinite(array).all() or (array < 0.0).any():
        raise ConfigError(f"{name} must hold probabilities, but has a negative or non-finite entry")
    sums = np.atleast_1d(array.sum(-1))
    wrong = np.flatnonzero(np.abs(sums - 1.0) > _SUM_TOLERANCE)
    if wrong.size:
        where = f"row {wrong[0]} of {name}" if ndim > 1 else name
        raise ConfigError(f"{where} sums to {sums[wrong[0]]:g}, but must sum to 1")
    return array


def _cumulative(probabilities: FloatArray) -> FloatArray:
    """Cumulative sums of every row, as columns, without the last.

    They are exactly 1 from the last possible context on, so that no rounding reaches beyond it.
    """
    cumulative = probabilities.cumsum(-1)
    rest = probabilities[:, ::-1].cumsum(-1)[:, ::-1]
    return np.where(rest[:, 1:] > 0.0, cumulative[:, :-1], 1.0).T.copy()


def _draw(cumulative: FloatArray, uniform: FloatArray) -> IntArray:
    """Invert the distribution: count the cumulative sums (one row each) that the uniform numbers reach."""
    return (uniform >= cumulative).sum(0)
