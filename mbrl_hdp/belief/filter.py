"""Theorem 2's belief update, written once: for one belief while a system runs, for many in imagined rollouts.

Two conventions of the belief differ by a predict step. The packed belief that agents and planners carry is
*predictive*: the distribution of the next context. One step weighs it by the likelihood of what was just observed
(Bayes' rule) and then moves it along the chain:

    filtered = normalise(belief * likelihood)        the paper's b^z: the context that acted
    belief'  = filtered @ transition                 the context that acts next

Whole recorded episodes get `filtered` from the message pass that also smooths (`probability.hmm.filter_contexts`); from
there `predict` leads to the beliefs of every step.
"""

from __future__ import annotations

from typing import TypeVar, no_type_check

import numpy as np
from jaxtyping import Float
from torch import Tensor

from mbrl_hdp.compiling import compiled

Array = TypeVar("Array", np.ndarray, Tensor)


def update_belief(
    belief: Float[np.ndarray, "*batch K"], log_lik: Float[np.ndarray, "*batch K"], transition: Float[np.ndarray, "K K"]
) -> tuple[Float[np.ndarray, "*batch K"], Float[np.ndarray, "*batch K"]]:
    """Return the filtered distribution and the next belief after one observed step (Theorem 2 a), in float64.

    A context of zero belief stays at zero until the chain enters it, whatever its likelihood. A step that carries no
    information is ignored by Bayes' rule, and the belief only moves along the chain: a likelihood that is NaN (a
    missing value) or infinite, or one that is zero in every context of positive belief.

    Args:
        belief: distribution of the context that acted, before the observation.
        log_lik: log-likelihood of the observed step in every context.
        transition: the chain.

    Example:
        >>> transition = np.array([[0.9, 0.1], [0.2, 0.8]])
        >>> update_belief(np.array([0.5, 0.5]), np.array([0.0, -np.inf]), transition)
        (array([1., 0.]), array([0.9, 0.1]))
    """
    if belief.ndim == 1:
        one: tuple[np.ndarray, np.ndarray] = _update_one(belief, log_lik, transition)
        return one
    num_contexts = belief.shape[-1]
    filtered, following = _update_many(belief.reshape(-1, num_contexts), log_lik.reshape(-1, num_contexts), transition)
    return filtered.reshape(belief.shape), following.reshape(belief.shape)


def update_belief_into(
    belief: Float[np.ndarray, " K"],
    log_lik: Float[np.ndarray, " K"],
    transition: Float[np.ndarray, "K K"],
    filtered: Float[np.ndarray, " K"],
    following: Float[np.ndarray, " K"],
) -> float:
    """Write what `update_belief` returns for one belief into `filtered` and `following`; return the log evidence.

    log p(next_obs | obs, act, history) = log sum_k belief_k likelihood_k, contexts summed out. It is NaN for a step
    that has a missing value, and -inf for one that no believed context can have produced.
    """
    return float(_update_into(belief, log_lik, transition, filtered, following))


def predict(filtered: Array, transition: Array) -> Array:
    """Move filtered distributions `*batch K` one step along the chain `K K`, for arrays and for tensors."""
    return filtered @ transition


@compiled("reordered", is_inlined=True)
@no_type_check
def _update(belief, log_lik, transition, filtered, following):
    # The largest log-likelihood among believed contexts is taken out, so the sum is never zero by underflow.
    peak = -np.inf
    for k in range(len(belief)):
        if belief[k] > 0.0 and log_lik[k] > peak:
            peak = log_lik[k]
    for k in range(len(belief)):
        filtered[k] = belief[k] * np.exp(log_lik[k] - peak) if belief[k] > 0.0 else 0.0
    total = filtered.sum()
    is_informative = np.isfinite(peak) and total > 0.0
    for k in range(len(belief)):
        filtered[k] = filtered[k] / total if is_informative else belief[k]
        following[k] = 0.0
    for before in range(len(belief)):
        for after in range(len(belief)):
            following[after] += filtered[before] * transition[before, after]
    return peak, total


@compiled("reordered")
@no_type_check
def _update_into(belief, log_lik, transition, filtered, following):
    peak, total = _update(belief, log_lik, transition, filtered, following)
    if np.isfinite(peak):
        return peak + np.log(total)
    for k in range(len(belief)):
        if belief[k] > 0.0 and np.isnan(log_lik[k]):
            return np.nan
    return peak


@compiled("reordered")
@no_type_check
def _update_one(belief, log_lik, transition):
    filtered, following = np.empty_like(belief), np.empty_like(belief)
    _update(belief, log_lik, transition, filtered, following)
    return filtered, following


@compiled("reordered")
@no_type_check
def _update_many(belief, log_lik, transition):
    filtered, following = np.empty_like(belief), np.empty_like(belief)
    for row in range(len(belief)):
        _update(belief[row], log_lik[row], transition, filtered[row], following[row])
    return filtered, following
