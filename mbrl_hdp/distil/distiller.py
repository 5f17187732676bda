"""Context distillation: a rule decides which contexts to keep, this module acts on the decision.

The decision is a plugin (`Distiller.keep`). The action is one of two:

- `inference.reduction.close_paths`, inside the bound during training: paths through spurious contexts are closed;
- `apply_keep_mask`, Theorem 1: the finished chain over the kept contexts alone (Algorithm 2, MPC).
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from jaxtyping import Bool
from torch import Tensor

from mbrl_hdp.probability.markov import distilled_chain, stationary
from mbrl_hdp.types import ContextChain, ContextPosterior

__all__ = ["Distiller", "apply_keep_mask", "keep_at_least"]


class Distiller(ABC):
    """A rule that separates meaningful contexts from spurious ones (Algorithm 2's choice of I_1 and I_2)."""

    @abstractmethod
    def keep(self, posterior: ContextPosterior) -> Bool[Tensor, " K"]:
        """Decide which contexts to keep.

        Args:
            posterior: the expected chain, the shared weights and whether training is still going on.

        Returns:
            A mask over the K slots. The core sees to it that at least one context survives.
        """


def keep_at_least(posterior: ContextPosterior, keep: Bool[Tensor, " K"], minimum: int = 1) -> Bool[Tensor, " K"]:
    """Return `keep` without slots that were dropped before, filled up to `minimum` by the largest stationary mass.

    A slot that earlier distillation dropped is only taken back when there is no other way to keep one.

    Example:
        >>> keep_at_least(posterior, rule.keep(posterior), minimum=2)
    """
    is_active = torch.ones_like(keep) if posterior.is_active is None else posterior.is_active.to(keep.device)
    kept = keep & is_active
    if int(kept.sum()) >= minimum:
        return kept
    mass = stationary(posterior.chain.transition, posterior.chain.initial).to(keep.device)
    # Kept slots first, then active ones, each by their mass.
    rank = mass + 2.0 * is_active + 4.0 * kept
    allowed = min(minimum, max(int(is_active.sum()), 1))
    chosen = torch.zeros_like(kept)
    chosen[rank.argsort(descending=True)[:allowed]] = True
    return chosen


def apply_keep_mask(posterior: ContextPosterior, keep: Bool[Tensor, " K"]) -> ContextChain:
    """Reduce the expected chain to the kept contexts (Theorem 1; Algorithm 2 for MPC).

    transition = R11 + R12 (I - R22)^-1 R21 and the kept part of `initial`, normalised: width = number of kept
    contexts, in their order. If `keep` is empty, the context with the largest stationary mass is kept.
    """
    return distilled_chain(posterior.chain, keep_at_least(posterior, keep))
