"""Algebra of contexts with phases: the dense chain over states, what it says about contexts, and how long these last.

Phases in a row, each of which may be left, are a Coxian distribution of the stay (in discrete time): one phase is
geometric, phases that are passed at once a minimum stay, phases of equal probability a negative binomial one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mbrl_hdp.types import ContextChain, PhaseChain

# A phase that is never passed lasts this many steps in expectations.
_LONGEST = 1e12


def context_of(sizes: Sequence[int]) -> Int[Tensor, " S"]:
    """Return the context of every state.

    Example:
        >>> context_of([1, 3])
        tensor([0, 1, 1, 1])
    """
    return torch.repeat_interleave(torch.arange(len(sizes)), torch.as_tensor(list(sizes)))


def first_states(sizes: Sequence[int]) -> Int[Tensor, " K"]:
    """Return the first state of every context."""
    counts = torch.as_tensor(list(sizes))
    return counts.cumsum(0) - counts


def by_context(values: Float[Tensor, "*batch S"], sizes: Sequence[int]) -> Float[Tensor, "*batch K"]:
    """Sum over the phases of every context."""
    summed = values.new_zeros(*values.shape[:-1], len(sizes))
    return summed.index_add(-1, context_of(sizes).to(values.device), values)


def dense(chain: PhaseChain) -> ContextChain:
    """Return the same process as a plain chain over states, without its structure."""
    context, first = (where.to(chain.stay.device) for where in (context_of(chain.sizes), first_states(chain.sizes)))
    transition = torch.diag(chain.stay) + torch.diag(chain.advance[:-1], 1)
    entered = chain.stay.new_zeros(chain.num_contexts, chain.num_states)
    entered[:, first] = chain.moves
    return ContextChain(chain.initial, transition + chain.leave[:, None] * entered[context])


def expected_visits(chain: PhaseChain) -> Float[Tensor, " S"]:
    """Return the expected number of steps in every phase of a stay; summed over a context, its mean stay."""
    inside = 1.0 / (1.0 - chain.stay).clamp_min(1.0 / _LONGEST)
    visits = inside.clone()
    is_first = torch.zeros_like(inside, dtype=torch.bool)
    is_first[first_states(chain.sizes)] = True
    for state in range(1, chain.num_states):
        if not is_first[state]:
            visits[state] = visits[state - 1] * chain.advance[state - 1] * inside[state]
    return visits


def phase_shares(chain: PhaseChain) -> Float[Tensor, " S"]:
    """Return the long-run distribution of the phases of every context; it sums to one over each."""
    visits = expected_visits(chain)
    return visits / by_context(visits, chain.sizes)[context_of(chain.sizes).to(visits.device)]


def context_chain(chain: PhaseChain) -> ContextChain:
    """Return what the process looks like step by step if only contexts are seen.

    `transition[j, k]` is the long-run share of steps in context j that are followed by context k. So the stationary
    distribution is that of the process, and 1 / (1 - transition[k, k]) is the mean stay in context k.
    """
    left = by_context(phase_shares(chain) * chain.leave, chain.sizes)
    transition = torch.diag(1.0 - left) + left[:, None] * chain.moves
    return ContextChain(by_context(chain.initial, chain.sizes), transition)
