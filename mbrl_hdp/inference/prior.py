"""What a prior over the context chain is: a small Pyro program with, at will, a guide of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from pyro import poutine
from torch import Tensor, nn

from mbrl_hdp.inference.auto_guide import AutoGuide
from mbrl_hdp.inference.devices import seeded
from mbrl_hdp.types import ContextChain

_MEAN_DRAWS = 64


class ContextPrior(nn.Module, ABC):
    """A prior p(initial, transition) over the context chain, with its variational distribution.

    A subclass writes `model()`; everything else has a default, so a prior of one's own is about 20 lines:

        class FlatPrior(ContextPrior):
            def model(self) -> ContextChain:
                ones = torch.ones(self.max_contexts)
                initial = pyro.sample("initial", dist.Dirichlet(ones))
                rows = pyro.sample("rows", dist.Dirichlet(ones.expand(self.max_contexts, -1)).to_event(1))
                return ContextChain(initial, rows)

    A faster prior also offers `natural_step` (see `NaturalPrior`) and `start_from` (see `StartablePrior`).
    Variational parameters are ordinary `nn.Parameter`s of the module, never `pyro.param`: two models in one process
    must not share a store.

    Attributes:
        max_contexts: number of context slots K.
    """

    def __init__(self, max_contexts: int) -> None:
        super().__init__()
        self.max_contexts = max_contexts
        self._auto_guide: nn.Module | None = None

    @abstractmethod
    def model(self) -> ContextChain:
        """Sample every latent variable with `pyro.sample` and return the chain they make.

        Sites must be reparameterisable, with their batch dimensions declared by `.to_event`.
        """

    def guide(self) -> Any:
        """Sample the same sites from the variational distribution; by default an automatic mean-field normal one."""
        if self._auto_guide is None:
            self._auto_guide = AutoGuide(self.model)
        return self._auto_guide()

    def prepare(self) -> None:
        """Create lazily made parameters, so that an optimiser sees all of them. Called once before training."""
        if type(self).guide is ContextPrior.guide and self._auto_guide is None:
            self._auto_guide = AutoGuide(self.model)

    def sample_chain(self) -> ContextChain:
        """Draw a chain from the variational distribution (differentiable in its parameters)."""
        trace = poutine.trace(self.guide).get_trace()
        with poutine.block():
            return poutine.replay(self.model, trace=trace)()

    def mean_chain(self) -> ContextChain:
        """Return the expected chain under the guide: E_q[initial], E_q[transition].

        The default averages 64 draws with a fixed seed; a prior with a closed form overrides it.
        """
        device = next((value.device for value in self.parameters()), torch.device("cpu"))
        with torch.no_grad(), seeded(0, device):
            chains = [self.sample_chain() for _ in range(_MEAN_DRAWS)]
            initial = torch.stack([chain.initial for chain in chains]).mean(0)
            transition = torch.stack([chain.transition for chain in chains]).mean(0)
        return ContextChain(initial, transition)

    def top_weights(self) -> Float[Tensor, " K"] | None:
        """Return the shared weights beta of the base measure, None where the prior has none."""
        return None


class ChainDraw(NamedTuple):
    """A draw of the chain from q, with what the data says about it.

    The derivative of the log-likelihood by an entry of the chain is its expected count over the entry.

    Attributes:
        chain: the draw.
        expected_initial: expected number of episodes that begin in each context under it, over the whole data set.
        expected_transitions: expected number of moves from context j to context k, likewise.
    """

    chain: ContextChain
    expected_initial: Float[Tensor, " K"]
    expected_transitions: Float[Tensor, "K K"]


@runtime_checkable
class NaturalPrior(Protocol):
    """A prior that knows the natural gradient of the bound for its row posterior."""

    def natural_step(self, draws: Sequence[ChainDraw], step: float, centre: ChainDraw | None = None) -> None:
        """Move the row posterior along the natural gradient of E_q[log p(obs | chain)] - KL(q || p), eq. (4).

        The gradient is to be estimated without bias from the draws; `check_prior` tests that such steps lead to the
        maximum of this bound.

        Args:
            draws: draws of the chain from q as it is now, with the expected counts under each.
            step: step size in (0, 1].
            centre: the mean chain of q with the expected counts under it, where it is known: a control variate, which
                may be ignored.
        """


@runtime_checkable
class StartablePrior(Protocol):
    """A prior whose variational distribution can be set to a given chain."""

    def start_from(self, chain: ContextChain, strength: float) -> None:
        """Centre the row posterior on `chain` with `strength` pseudo-counts a row."""
