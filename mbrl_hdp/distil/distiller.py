"""Context distillation: a rule decides which contexts to keep, this module acts on the decision.

The decision is a plugin (`Distiller.keep`), the action is Theorem 1 (`apply_keep_mask`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from jaxtyping import Bool
from torch import Tensor

from mbrl_hdp.types import ContextPosterior


class Distiller(ABC):
    """A rule that tells meaningful contexts from spurious ones (Algorithm 2's choice of I_1 and I_2)."""

    @abstractmethod
    def keep(self, posterior: ContextPosterior) -> Bool[Tensor, " K"]:
        """Decide which contexts to keep.

        Args:
            posterior: the expected chain, the shared weights and whether training is still going on.

        Returns:
            A mask over the K slots. The core sees to it that at least one context survives.
        """
