"""ANPMM: a mixture of attentive neural processes (Kim et al. 2019) with the rule of `chunks`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence

from mbrl_hdp.errors import ConfigError
from mbrl_hdp_baselines.chunks import ChunkMixture, ChunkModel
from mbrl_hdp_baselines.settings import AnpmmConfig


class SelfAttention(nn.Module):
    """Two layers of dot-product attention among points, added to what comes in."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.MultiheadAttention(width, 1, batch_first=True) for _ in range(2))

    def forward(self, points: Tensor) -> Tensor:
        """Return the points `T n width`, each with what it took from the others."""
        for layer in self.layers:
            points = points + layer(points, points, points, need_weights=False)[0]
        return points


class AttentiveProcess(ChunkModel):
    """A deterministic and a latent path from context points to a prediction; its context is the data it keeps.

    The latent variable's mean is used instead of a sample, as in the released code.
    """

    def __init__(self, num_inputs: int, num_outputs: int, config: AnpmmConfig) -> None:
        super().__init__(num_inputs, num_outputs)
        self.config, hidden = config, [2 * config.hidden_size, config.hidden_size]
        pair, width = num_inputs + num_outputs, representation_size(config)
        self.path = nn.Sequential(_mlp([pair, *hidden, width]), SelfAttention(width))
        self.latent_path = nn.Sequential(_mlp([pair, *hidden, width]), SelfAttention(width))
        self.latent_head = nn.Linear(width, 2 * config.latent_size)
        self.query = _mlp([num_inputs, width, width])
        self.cross = nn.MultiheadAttention(width, config.num_heads, batch_first=True)
        self.decoder = _mlp([num_inputs + width + config.latent_size, *hidden, width, 2 * num_outputs])
        self._encoded: tuple[Tensor, Tensor, Tensor] | None = None

    def keep(self, inputs: Tensor, targets: Tensor) -> None:
        """Add data, without fitting."""
        super().keep(inputs, targets)
        self._encoded = None

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Set other weights."""
        self._encoded = None
        return super().load_state_dict(state_dict, strict, assign)

    def distribution(self, inputs: Tensor) -> Normal:
        """Return the Gaussian of standardised targets, given the data that is kept as context."""
        if self._encoded is None:
            points, values = (rows[None] for rows in self.scaled(*self._context()))
            self._encoded = (self.query(points), self._represent(points, values), self._latent(points, values).mean)
        keys, represented, latent = self._encoded
        return self._decode(inputs[None], keys, represented, latent, is_one_task=True)

    def pretrain(self, generator: torch.Generator) -> float:
        """Train on tasks whose points follow each other in time, so that their context has something to say."""
        return self._train(self.config.pretrain_steps, generator, is_in_time=True)

    def refit(self, generator: torch.Generator) -> float:
        """Train on tasks from all data of the component."""
        return self._train(self.config.refit_steps, generator, is_in_time=False)

    def loss(self, inputs: Tensor, targets: Tensor, num_context: int) -> Tensor:
        """Return -(mean log likelihood - mean KL) of tasks `T n`; the first points are the context, all are targets."""
        points, values = inputs[:, :num_context], targets[:, :num_context]
        prior, posterior = self._latent(points, values), self._latent(inputs, targets)
        represented = self._represent(points, values)
        found = self._decode(inputs, self.query(points), represented, posterior.mean)
        return -(found.log_prob(targets).mean() - kl_divergence(posterior, prior).mean() / inputs.shape[1])

    def _train(self, num_steps: int, generator: torch.Generator, is_in_time: bool) -> float:
        inputs, targets = self.scaled(self.inputs, self.targets)
        size = min(len(inputs), self.config.context_points + self.config.target_points)
        most = min(self.config.context_points, size - 1) if size > 1 else 1
        optimizer, loss = torch.optim.Adam(self.parameters(), lr=self.config.lr), torch.zeros(())
        for _ in range(num_steps):
            num_context = int(torch.randint(1, most + 1, (1,), generator=generator))
            rows = torch.stack([self._task(len(inputs), size, is_in_time, generator) for _ in range(self.config.tasks)])
            loss = self.loss(inputs[rows], targets[rows], num_context)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        self._encoded = None
        return float(loss.detach())

    @staticmethod
    def _task(num: int, size: int, is_in_time: bool, generator: torch.Generator) -> Tensor:
        """Return the rows of a training task, in random order."""
        order = torch.randperm(size if is_in_time else num, generator=generator)[:size]
        first = int(torch.randint(num - size + 1, (1,), generator=generator)) if is_in_time else 0
        return order + first

    def _context(self) -> tuple[Tensor, Tensor]:
        """Return the points that predictions are conditioned on: evenly spread over the data."""
        num = min(len(self.inputs), self.config.context_points)
        rows = torch.linspace(0, len(self.inputs) - 1, num).round().long()
        return self.inputs[rows], self.targets[rows]

    def _represent(self, points: Tensor, values: Tensor) -> Tensor:
        found: Tensor = self.path(torch.cat([points, values], -1))
        return found

    def _latent(self, points: Tensor, values: Tensor) -> Normal:
        pooled = self.latent_path(torch.cat([points, values], -1)).mean(1)
        mean, raw = self.latent_head(pooled).chunk(2, -1)
        return Normal(mean, 0.1 + 0.9 * raw.sigmoid(), validate_args=False)

    def _decode(
        self, inputs: Tensor, keys: Tensor, represented: Tensor, latent: Tensor, is_one_task: bool = False
    ) -> Normal:
        taken = self.cross(self.query(inputs), keys, represented, need_weights=False)[0]
        spread = latent[:, None].expand(-1, inputs.shape[1], -1)
        mean, raw = self.decoder(torch.cat([inputs, taken, spread], -1)).chunk(2, -1)
        found = Normal(mean, 0.1 + 0.9 * nn.functional.softplus(raw), validate_args=False)
        return Normal(found.loc[0], found.scale[0], validate_args=False) if is_one_task else found


def representation_size(config: AnpmmConfig) -> int:
    """Return the width of what encoders return: layers get narrower, as in the released code (256, 128, 64)."""
    return config.hidden_size // 2


def _mlp(widths: Sequence[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for wide, deep in pairwise(widths):
        layers += [nn.Linear(wide, deep), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Anpmm(ChunkMixture):
    """The mixture of attentive neural processes."""

    config: AnpmmConfig

    def new_model(self, num_inputs: int, num_outputs: int) -> ChunkModel:
        """Return a process with fresh weights.

        Raises:
            ConfigError: if the heads do not divide the width.
        """
        if representation_size(self.config) % self.config.num_heads:
            raise ConfigError(
                f"agent.num_heads={self.config.num_heads} must divide half of agent.hidden_size="
                f"{self.config.hidden_size}"
            )
        return AttentiveProcess(num_inputs, num_outputs, self.config)
