"""The paper's second baseline: no prior at all, the chain by maximum likelihood."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from mbrl_hdp.errors import ConfigError
from mbrl_hdp.inference.prior import ContextPrior
from mbrl_hdp.types import ContextChain, TaskSpec

# Starting probabilities are at least this: a logit of minus infinity never comes back.
_MIN_START = 1e-6


@dataclass
class MleConfig:
    """Settings of the `mle` prior: none."""


class MlePrior(ContextPrior):
    """A chain of free logits: the Pyro program samples nothing, so the ELBO is the log-likelihood.

    Attributes:
        raw_rows: logits, `K+1 K`; row 0 is the initial distribution. All start equal.
    """

    def __init__(self, max_contexts: int) -> None:
        if max_contexts < 1:
            raise ConfigError(f"max_contexts must be at least 1, got {max_contexts}")
        super().__init__(max_contexts)
        self.raw_rows = nn.Parameter(torch.zeros(max_contexts + 1, max_contexts))

    def model(self) -> ContextChain:
        """Return the chain of the current logits."""
        rows = self.raw_rows.softmax(-1)
        return ContextChain(rows[0], rows[1:])

    def guide(self) -> None:
        """Sample nothing: there is no latent variable."""

    def mean_chain(self) -> ContextChain:
        """Return the current chain."""
        with torch.no_grad():
            return self.model()

    def start_from(self, chain: ContextChain, strength: float) -> None:  # noqa: ARG002 - a point has no strength
        """Set the logits to `chain`."""
        with torch.no_grad():
            rows = torch.cat([chain.initial[None], chain.transition]).to(self.raw_rows)
            self.raw_rows.copy_(rows.clamp_min(_MIN_START).log())


def build_mle(config: MleConfig, task: TaskSpec) -> ContextPrior:  # noqa: ARG001 - there is nothing to set
    """Build the `mle` prior."""
    return MlePrior(task.max_contexts)
