"""Markov-chain algebra: the stationary distribution and Theorem 1's reduction of a chain to the contexts worth keeping.

Everything rests on eliminating one context at a time (Grassmann, Taksar and Heyman): the paths through it are handed
to its neighbours in proportion to where it leads. No step subtracts, so every entry comes out with full relative
precision even when the chain is nearly reducible and `I - R22` of Theorem 1 nearly singular. Float64 inside, results
in the input's dtype; the reductions are differentiable, the stationary distribution is not. Rows that do not sum to one
(masked contexts) are normalised first; an empty row stays where it is.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from mbrl_hdp.types import ContextChain

Matrix = NDArray[np.float64]
_TINY = np.finfo(np.float64).tiny  # products of many tiny entries may underflow; nothing is divided by zero


def stationary(transition: Float[Tensor, "K K"], start: Float[Tensor, " K"] | None = None) -> Float[Tensor, " K"]:
    """Return the long-run share of time in each context, lim_n (1/n) sum_{t<n} start R^t.

    For an irreducible chain this is the only p with p = p R, whatever the start and even if the chain is periodic (the
    average over time converges where the marginal at time t does not). A reducible chain has one per closed class;
    the classes are then weighted by the probability of ending in each from `start`, uniform over all contexts if not
    given. Transient contexts get exactly 0. Entries count as connections when they are above 0, however small.

    Example:
        >>> stationary(torch.tensor([[0.9, 0.1], [0.3, 0.7]]))
        tensor([0.7500, 0.2500])
    """
    stochastic = _stochastic(transition.detach())
    matrix = _numpy(stochastic)
    size = len(matrix)
    begin = np.full(size, 1.0 / size) if start is None else _numpy(start) / _numpy(start).sum()
    classes = _closed_classes(matrix)
    is_recurrent = np.zeros(size, dtype=bool)
    for members in classes:
        is_recurrent[members] = True
    arrival = np.where(is_recurrent, begin, 0.0)
    if not is_recurrent.all():  # the transient part of the start ends in its first recurrent context
        exits = _censored(stochastic, torch.from_numpy(is_recurrent))[1]
        arrival[is_recurrent] += begin[~is_recurrent] @ _numpy(exits)
    shares = np.zeros(size)
    for members in classes:
        shares[members] = arrival[members].sum() * _irreducible_shares(matrix[np.ix_(members, members)])
    return torch.from_numpy(shares / shares.sum()).to(transition)


def distilled_transition(transition: Float[Tensor, "K K"], keep: Bool[Tensor, " K"]) -> Float[Tensor, "k k"]:
    """Reduce the chain to the kept contexts, in their original order (Theorem 1, Algorithm 2 for MPC).

    R11 + R12 (I - R22)^-1 R21: the chain watched only while it is in a kept context. Rows sum to one, and the
    stationary distribution is that of the full chain restricted to the kept contexts and normalised.

    Where a removed context leads to no kept one (an absorbing spurious class: I - R22 is singular and the theorem
    does not apply), moves into it are refused: its columns are dropped and the other rows normalised without them;
    a kept context with no other move left stays where it is.
    """
    kept = _checked_keep(transition, keep)
    return _censored(_refuse_dead_ends(_stochastic(transition), kept), kept)[0].to(transition)


def distilled_policy_transition(transition: Float[Tensor, "K K"], keep: Bool[Tensor, " K"]) -> Float[Tensor, "K K"]:
    """Reduce the chain at its full width, in the original order (Algorithm 2 for policies).

    Rows of kept contexts hold Theorem 1's matrix; rows of removed ones (I - R22)^-1 R21, the first kept context that
    the chain reaches from there; columns of removed contexts are zero. A removed context that leads to no kept one
    (see `distilled_transition`) says nothing about which is next: its row is uniform over the kept contexts.
    """
    kept = _checked_keep(transition, keep)
    matrix = _refuse_dead_ends(_stochastic(transition), kept)
    reduced, exits = _censored(matrix, kept)
    order = torch.cat([kept.nonzero(), (~kept).nonzero()]).squeeze(-1)
    full = torch.zeros_like(matrix)
    full[order[:, None], kept.nonzero().squeeze(-1)] = torch.cat([reduced, exits])
    return full.to(transition)


def distilled_initial(initial: Float[Tensor, " K"], keep: Bool[Tensor, " K"]) -> Float[Tensor, " k"]:
    """Gather and normalise the kept contexts' initial probabilities; uniform if none of them had any."""
    return distilled_policy_initial(initial, keep)[keep.to(initial.device)]


def distilled_policy_initial(initial: Float[Tensor, " K"], keep: Bool[Tensor, " K"]) -> Float[Tensor, " K"]:
    """Do the same at full width, with zeros for the removed contexts."""
    mask = keep.to(initial)
    kept = initial * mask
    total = kept.sum()
    return kept / total if total > 0 else mask / mask.sum()


def distilled_chain(chain: ContextChain, keep: Bool[Tensor, " K"]) -> ContextChain:
    """Reduce a chain to the kept contexts (Theorem 1): `distilled_initial` and `distilled_transition`."""
    return ContextChain(distilled_initial(chain.initial, keep), distilled_transition(chain.transition, keep))


def _numpy(values: Tensor) -> Matrix:
    array: Matrix = values.detach().to("cpu", torch.float64).numpy()
    return array


def _stochastic(transition: Float[Tensor, "K K"]) -> Float[Tensor, "K K"]:
    """Normalise the rows, in float64 on the CPU; an empty one becomes a self-transition."""
    matrix = transition.to("cpu", torch.float64)
    if not bool(matrix.isfinite().all()) or bool((matrix < 0).any()):
        raise ValueError(f"a transition matrix must hold finite numbers of at least 0, got {transition}")
    matrix = matrix + torch.diag((matrix.sum(1) == 0).to(matrix))
    return matrix / matrix.sum(1, keepdim=True)


def _checked_keep(transition: Float[Tensor, "K K"], keep: Bool[Tensor, " K"]) -> Bool[Tensor, " K"]:
    kept = keep.detach().cpu()
    if kept.shape != (transition.shape[0],) or not bool(kept.any()):
        raise ValueError(f"keep must mark at least one of {transition.shape[0]} contexts, got {keep.tolist()}")
    return kept


def _closed_classes(matrix: Matrix) -> list[NDArray[np.intp]]:
    """Find the sets of contexts that reach one another and that are never left."""
    count, labels = connected_components(matrix > 0, directed=True, connection="strong")
    classes = [np.flatnonzero(labels == label) for label in range(count)]
    return [members for members in classes if not np.delete(matrix[members], members, axis=1).any()]


def _refuse_dead_ends(matrix: Float[Tensor, "K K"], kept: Bool[Tensor, " K"]) -> Float[Tensor, "K K"]:
    """Drop moves into removed contexts that lead to no kept one; let those contexts jump to any kept one alike."""
    is_alive = kept
    for _ in range(len(matrix)):
        is_alive = is_alive | (matrix[:, is_alive] > 0).any(1)
    refused = torch.where(is_alive[:, None], matrix * is_alive, kept.to(matrix))
    is_stuck = kept & (refused.sum(1) == 0)
    refused = refused + torch.diag(is_stuck.to(matrix))
    return refused / refused.sum(1, keepdim=True)


def _censored(
    matrix: Float[Tensor, "K K"], kept: Bool[Tensor, " K"]
) -> tuple[Float[Tensor, "k k"], Float[Tensor, "others k"]]:
    """Watch the chain only in the kept contexts.

    Returns:
        Theorem 1's matrix R11 + R12 (I - R22)^-1 R21, and for every other context the distribution of the first kept
        context reached from it, (I - R22)^-1 R21.
    """
    order = torch.cat([kept.nonzero(), (~kept).nonzero()]).squeeze(-1)
    num_kept = int(kept.sum())
    work = matrix[order][:, order]
    moves = []
    for last in range(len(matrix) - 1, num_kept - 1, -1):
        # The sum of the moves away stands for 1 - work[last, last]: nothing cancels.
        moves.append(work[last, :last] / work[last, :last].sum().clamp_min(_TINY))
        work = work[:last, :last] + torch.outer(work[:last, last], moves[-1])
    exits = work.new_zeros(0, num_kept)
    for move in reversed(moves):
        # Its moves at elimination led to kept contexts and to others eliminated after it, whose exits are known.
        exits = torch.cat([exits, (move[:num_kept] + move[num_kept:] @ exits)[None]])
    return work / work.sum(1, keepdim=True), exits


def _irreducible_shares(matrix: Matrix) -> Matrix:
    """Solve p = p R for an irreducible chain by eliminating every context but the first, and substituting back."""
    work = matrix.copy()
    away = np.ones(len(work))
    for last in range(len(work) - 1, 0, -1):
        away[last] = max(work[last, :last].sum(), _TINY)
        work[:last, :last] += np.outer(work[:last, last], work[last, :last] / away[last])
    shares = np.ones(len(work))
    for row in range(1, len(work)):
        shares[row] = shares[:row] @ work[:row, row] / away[row]
    return shares / shares.sum()
