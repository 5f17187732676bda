"""The packed vector [obs, belief] that agents see; nobody else slices it.

The belief inside is predictive (the distribution of the next context) and as wide as there are slots, `max_contexts`,
so that distilling never changes what a policy is fed: slots that were distilled away hold zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mbrl_hdp.errors import DataError

Array = TypeVar("Array", np.ndarray, Tensor)


class PackedObs(np.ndarray):
    """A packed observation that also carries the belief over (context, phase), for planners that use it.

    Policies see the numbers of a plain packed vector. Whatever is computed from it carries nothing.

    Attributes:
        states: belief over the states of a `PhaseChain`; None where there is none.
    """

    states: Float[np.ndarray, " S"] | None = None

    @staticmethod
    def of(packed: Float[np.ndarray, " W"], states: Float[np.ndarray, " S"] | None) -> PackedObs:
        """Return a packed vector with a belief over states beside it."""
        carrying = packed.view(PackedObs)
        carrying.states = states
        return carrying


@dataclass(frozen=True)
class BeliefCodec:
    """Packs, unpacks and widens beliefs, for torch tensors (rollouts) and numpy arrays (environments).

    Attributes:
        obs_dim: width S of an observation.
        max_contexts: number of context slots K; 0 for agents that get no belief.

    Example:
        >>> codec = BeliefCodec(obs_dim=2, max_contexts=3)
        >>> codec.pack(np.array([7.0, 8.0]), np.array([0.2, 0.0, 0.8]))
        array([7. , 8. , 0.2, 0. , 0.8])
    """

    obs_dim: int
    max_contexts: int

    @property
    def width(self) -> int:
        """Width of the packed vector, S + K."""
        return self.obs_dim + self.max_contexts

    def pack(
        self, obs: Float[np.ndarray, "*batch S"], belief: Float[np.ndarray, "*batch K"]
    ) -> Float[np.ndarray, "*batch S+K"]:
        """Append the belief to the observation.

        Raises:
            DataError: on a wrong width.
        """
        self._check(obs.shape[-1] + belief.shape[-1])
        return np.concatenate([obs, belief], axis=-1)

    def pack_tensors(
        self, obs: Float[Tensor, "*batch S"], belief: Float[Tensor, "*batch K"]
    ) -> Float[Tensor, "*batch S+K"]:
        """Do the same as `pack` for tensors."""
        self._check(obs.shape[-1] + belief.shape[-1])
        return torch.cat([obs, belief], -1)

    def unpack(self, packed: Array) -> tuple[Array, Array]:
        """Split into observations `*batch S` and beliefs `*batch K` (views), for arrays and for tensors.

        Raises:
            DataError: on a wrong width.
        """
        self._check(packed.shape[-1])
        return packed[..., : self.obs_dim], packed[..., self.obs_dim :]

    def _check(self, width: int) -> None:
        if width != self.width:
            raise DataError(
                f"a packed observation has {self.obs_dim} + {self.max_contexts} columns [obs, belief], got {width}"
            )


def widen(belief: Float[Tensor, "*batch k"], slots: Int[Tensor, " k"], max_contexts: int) -> Float[Tensor, "*batch K"]:
    """Write the belief over the kept contexts into their slots; all other slots hold zero."""
    wide = belief.new_zeros(*belief.shape[:-1], max_contexts)
    wide[..., slots] = belief
    return wide


def narrow(
    belief: Float[Tensor, "*batch K"], slots: Int[Tensor, " k"], fallback: Float[Tensor, " k"]
) -> Float[Tensor, "*batch k"]:
    """Select the kept contexts of a wide belief and normalise.

    A belief with no mass on any of them (it was formed before they were learned) becomes `fallback`.
    """
    kept = belief[..., slots]
    total = kept.sum(-1, keepdim=True)
    return torch.where(total > 0, kept / torch.where(total > 0, total, 1.0), fallback)
