"""Close contexts inside the bound while training goes on."""

from __future__ import annotations

from jaxtyping import Bool
from torch import Tensor

from mbrl_hdp.types import ContextChain


def mask_chain(chain: ContextChain, keep: Bool[Tensor, " K"]) -> ContextChain:
    """Close the spurious contexts during training: zero their columns, and do NOT renormalise.

    The evidence is then that of the paths through kept contexts alone, a lower bound of the whole; Theorem 1's matrix
    is for the finished chain (`distil.apply_keep_mask`): inside the bound it would let excursions collect likelihood.
    """
    weight = keep.to(chain.transition)
    return ContextChain(chain.initial * weight, chain.transition * weight)
