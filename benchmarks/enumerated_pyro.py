"""The model as a Pyro user (and the paper's authors) would write it: enumerated contexts and `TraceEnum_ELBO`.

Oracle of tests/inference/test_elbo.py and peer of bench_elbo.py. Nothing of mbrl_hdp is used: stick-breaking, rows,
weights' prior and the network are written out here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.infer import TraceEnum_ELBO
from pyro.ops.indexing import Vindex
from torch import Tensor, nn


class Heads(Protocol):
    """K Gaussian transition distributions."""

    def __call__(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return means and standard deviations, `B T K D` each, from features `B T F`."""

    def log_prior(self) -> Tensor:
        """Return the weights' log prior."""


class PlainHeads(nn.Module):
    """K networks of one hidden layer as batched matrix products, with a learned deviation per context and output."""

    def __init__(self, max_contexts: int, num_features: int, num_outputs: int, hidden: int = 128) -> None:
        super().__init__()
        self.first = nn.Parameter(0.1 * torch.randn(max_contexts, num_features, hidden))
        self.first_bias = nn.Parameter(0.1 * torch.randn(max_contexts, 1, hidden))
        self.second = nn.Parameter(0.1 * torch.randn(max_contexts, hidden, num_outputs))
        self.second_bias = nn.Parameter(0.1 * torch.randn(max_contexts, 1, num_outputs))
        self.log_std = nn.Parameter(torch.zeros(max_contexts, num_outputs))

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return means and standard deviations, `B T K D` each."""
        rows = features.flatten(0, 1)
        hidden = torch.relu(torch.matmul(rows, self.first) + self.first_bias)
        means = torch.matmul(hidden, self.second) + self.second_bias
        means = means.transpose(0, 1).unflatten(0, features.shape[:2])
        return means, self.log_std.exp().expand_as(means)

    def log_prior(self) -> Tensor:
        """Return log N(weights; 0, 0.1^2)."""
        weights = (self.first, self.first_bias, self.second, self.second_bias)
        return torch.stack([dist.Normal(0.0, 0.1).log_prob(weight).sum() for weight in weights]).sum()


@dataclass(frozen=True)
class HdpSettings:
    """Hyper-parameters of eq. (2) and (3)."""

    max_contexts: int
    top_concentration: float = 2.0
    row_concentration: float = 100.0
    stickiness: float = 3.0


@dataclass(frozen=True)
class Data:
    """A minibatch: features `B T F`, targets `B T D`, lengths `B`, and the number of episodes it stands for."""

    features: Tensor
    targets: Tensor
    lengths: Tensor
    num_episodes: int


def hdp_rows(settings: HdpSettings) -> Tensor:
    """Sample the top sticks and the rows (row 0 is the initial distribution); eq. (2) and (3)."""
    size = settings.max_contexts
    like = torch.get_default_dtype()
    ones = torch.ones(size - 1, dtype=like)
    sticks = pyro.sample("top_sticks", dist.Beta(ones, settings.top_concentration * ones).to_event(1))
    left = torch.cat([torch.ones(1, dtype=like), (1 - sticks).cumprod(0)])
    top_weights = left * torch.cat([sticks, torch.ones(1, dtype=like)])
    sticky = torch.cat([torch.zeros(1, size, dtype=like), settings.stickiness * torch.eye(size, dtype=like)])
    return pyro.sample("rows", dist.Dirichlet(settings.row_concentration * top_weights + sticky).to_event(1))


def enumerated_model(settings: HdpSettings, heads: Heads, data: Data) -> None:
    """Write eq. (1) step by step, every context enumerated in parallel."""
    rows = hdp_rows(settings)
    means, stds = heads(data.features)
    pyro.factor("weights", heads.log_prior())
    batch, num_steps = data.features.shape[:2]
    index = torch.arange(batch)
    episodes = pyro.plate("episodes", data.num_episodes, subsample=index, dim=-1)
    context: Any = None
    for t in pyro.markov(range(num_steps)):
        with episodes, poutine.mask(mask=t < data.lengths):
            probs = rows[0] if t == 0 else Vindex(rows[1:])[context]
            context = pyro.sample(f"context_{t}", dist.Categorical(probs), infer={"enumerate": "parallel"})
            step = dist.Normal(Vindex(means)[index, t, context], Vindex(stds)[index, t, context])
            pyro.sample(f"obs_{t}", step.to_event(1), obs=data.targets[:, t])


class HdpGuide(nn.Module):
    """Point estimates of the top sticks, Dirichlet rows; eq. (5)."""

    def __init__(self, max_contexts: int) -> None:
        super().__init__()
        self.raw_top = nn.Parameter(torch.linspace(-1.0, 0.0, max_contexts - 1))
        self.raw_rows = nn.Parameter(torch.full((max_contexts + 1, max_contexts), 3.0))

    def forward(self) -> None:
        """Sample both sites."""
        pyro.sample("top_sticks", dist.Delta(self.raw_top.sigmoid(), event_dim=1))
        pyro.sample("rows", dist.Dirichlet(self.raw_rows.exp()).to_event(1))


def enumerated_loss(settings: HdpSettings, heads: Heads, data: Data, guide: Any) -> Tensor:
    """Return Pyro's negative bound, differentiable; `guide` takes no argument."""
    estimator = TraceEnum_ELBO(max_plate_nesting=1)
    loss: Tensor = estimator.differentiable_loss(lambda: enumerated_model(settings, heads, data), guide)
    return loss
