"""How a drawn chain is reduced to the kept contexts inside the bound; both ways are differentiable in the chain.

`close_paths` leaves paths out, `probability.markov.distilled_chain` is Theorem 1.
"""

from __future__ import annotations

from collections.abc import Callable

from jaxtyping import Bool
from torch import Tensor

from mbrl_hdp.types import ContextChain

ChainReduction = Callable[[ContextChain, Tensor], ContextChain]


def close_paths(chain: ContextChain, keep: Bool[Tensor, " K"]) -> ContextChain:
    """Leave out every path through another context, without normalising: the evidence of the paths that are left.

    A valid bound, under which a removed context earns nothing.
    """
    slots = keep.nonzero().squeeze(-1)
    return ContextChain(chain.initial[slots], chain.transition[slots][:, slots])
