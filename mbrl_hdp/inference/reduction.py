"""How a drawn chain is reduced to the kept contexts inside the bound; both are differentiable in the chain."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Int
from torch import Tensor

from mbrl_hdp.types import ContextChain

ChainReduction = Callable[[ContextChain, Tensor], ContextChain]

# Keeps I - R22 invertible where removed contexts hardly ever lead back to kept ones.
_LEAST_EXIT = 1e-12


def close_paths(chain: ContextChain, slots: Int[Tensor, " k"]) -> ContextChain:
    """Leave out every path through another context, without normalising: the evidence of the paths that are left.

    A valid bound, under which a removed context earns nothing.
    """
    return ContextChain(chain.initial[slots], chain.transition[slots][:, slots])


def censored_chain(chain: ContextChain, slots: Int[Tensor, " k"]) -> ContextChain:
    """Watch the chain only in the kept contexts: R11 + R12 (I - R22)^-1 R21 and `initial` normalised (Theorem 1).

    A visit to a removed context counts as the move to the kept context in which it ends.
    """
    is_kept = torch.zeros_like(chain.initial, dtype=torch.bool).index_fill(0, slots, True)
    others = (~is_kept).nonzero().squeeze(-1)
    transition = chain.transition.double()
    inside, leave = transition[slots][:, slots], transition[slots][:, others]
    between, back = transition[others][:, others], transition[others][:, slots]
    identity = torch.eye(len(others), dtype=between.dtype, device=between.device)
    exits = torch.linalg.solve((1.0 + _LEAST_EXIT) * identity - between, back)
    initial = chain.initial[slots]
    return ContextChain(initial / initial.sum(), (inside + leave @ exits).to(chain.transition))
