"""The belief update over (context, phase): `filter.update_belief` for chains whose contexts have phases."""

from __future__ import annotations

from typing import no_type_check

import numpy as np
from jaxtyping import Float, Int

from mbrl_hdp.compiling import compiled
from mbrl_hdp.probability.phases import first_states
from mbrl_hdp.types import PhaseChain

States = Float[np.ndarray, "*batch S"]


class PhaseUpdate:
    """Bayes' rule and one step along the chain, for beliefs over states.

    Example:
        >>> update = PhaseUpdate(chain)
        >>> filtered, following = update(belief, log_lik)
        >>> update.contexts(following)      # the distribution of the next context
    """

    def __init__(self, chain: PhaseChain) -> None:
        parts = (chain.stay, chain.advance, chain.leave, chain.moves)
        self._chain = [np.ascontiguousarray(part.detach().double().cpu().numpy()) for part in parts]
        self._first: Int[np.ndarray, " K1"] = np.append(first_states(chain.sizes).numpy(), chain.num_states)
        self.initial: Float[np.ndarray, " S"] = chain.initial.detach().double().cpu().numpy().copy()

    def __call__(self, belief: States, log_lik: Float[np.ndarray, "*batch K"]) -> tuple[States, States]:
        """Return the filtered distribution of states and the next belief after one observed step, in float64.

        A step that carries no information is ignored by Bayes' rule, as in `filter.update_belief`.
        """
        rows = np.ascontiguousarray(belief, dtype=np.float64).reshape(-1, belief.shape[-1])
        filtered, following = np.empty_like(rows), np.empty_like(rows)
        seen = np.ascontiguousarray(log_lik, dtype=np.float64).reshape(len(rows), -1)
        _update_rows(rows, seen, *self._chain, self._first, filtered, following)
        return filtered.reshape(belief.shape), following.reshape(belief.shape)

    def into(
        self,
        belief: Float[np.ndarray, " S"],
        log_lik: Float[np.ndarray, " K"],
        filtered: Float[np.ndarray, " S"],
        following: Float[np.ndarray, " S"],
        contexts: Float[np.ndarray, " K"],
    ) -> None:
        """Write what a call returns for one belief into arrays, and the next belief by context; allocates nothing."""
        _update_into(belief, log_lik, *self._chain, self._first, filtered, following, contexts)

    @property
    def parts(self) -> list[Float[np.ndarray, ...]]:
        """All numbers of the chain."""
        return [*self._chain, self.initial]

    def contexts(self, belief: States) -> Float[np.ndarray, "*batch K"]:
        """Sum a belief over the phases of every context."""
        return np.add.reduceat(belief, self._first[:-1], axis=-1)


@compiled()
@no_type_check
def _update_rows(belief, log_lik, stay, advance, leave, moves, first, filtered, following):
    for row in range(len(belief)):
        _weigh(belief[row], log_lik[row], first, filtered[row])
        _move(filtered[row], stay, advance, leave, moves, first, following[row])


@compiled()
@no_type_check
def _update_into(belief, log_lik, stay, advance, leave, moves, first, filtered, following, contexts):
    _weigh(belief, log_lik, first, filtered)
    _move(filtered, stay, advance, leave, moves, first, following)
    for k in range(len(contexts)):
        contexts[k] = 0.0
        for s in range(first[k], first[k + 1]):
            contexts[k] += following[s]


@compiled()
@no_type_check
def _weigh(belief, log_lik, first, filtered):
    peak, total = -np.inf, 0.0
    for k in range(len(log_lik)):
        # The largest log-likelihood among believed contexts is taken out, so the sum is never zero by underflow.
        if belief[first[k] : first[k + 1]].sum() > 0.0 and log_lik[k] > peak:
            peak = log_lik[k]
    for k in range(len(log_lik)):
        for s in range(first[k], first[k + 1]):
            filtered[s] = belief[s] * np.exp(log_lik[k] - peak) if belief[s] > 0.0 else 0.0
            total += filtered[s]
    is_informative = np.isfinite(peak) and total > 0.0
    for s in range(len(belief)):
        filtered[s] = filtered[s] / total if is_informative else belief[s]


@compiled()
@no_type_check
def _move(filtered, stay, advance, leave, moves, first, following):
    num_contexts = len(moves)
    for k in range(num_contexts):
        for s in range(first[k], first[k + 1]):
            following[s] = stay[s] * filtered[s]
            if s > first[k]:
                following[s] += advance[s - 1] * filtered[s - 1]
    for j in range(num_contexts):
        out = 0.0
        for s in range(first[j], first[j + 1]):
            out += leave[s] * filtered[s]
        for k in range(num_contexts):
            following[first[k]] += out * moves[j, k]
