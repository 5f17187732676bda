"""DNNMM: a mixture of neural networks with the rule of `chunks`."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional

from mbrl_hdp_baselines.chunks import ChunkMixture, ChunkModel
from mbrl_hdp_baselines.settings import DnnmmConfig

_LEAST_VARIANCE = 0.001
_FIRST_STD = 0.02


class GaussianNetwork(ChunkModel):
    """Two hidden layers of ReLU, a head for the mean and one for the variance (softplus + 0.001).

    The release has ReLU + 0.001 for the variance, which starts at its smallest value and has no gradient below it:
    errors then count a thousandfold, and held-out points end a fit too soon (one context: RMSE .59 instead of .13).
    """

    def __init__(self, num_inputs: int, num_outputs: int, config: DnnmmConfig) -> None:
        super().__init__(num_inputs, num_outputs)
        self.config, width = config, config.hidden_size
        self.body = nn.Sequential(nn.Linear(num_inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.mean, self.variance = nn.Linear(width, num_outputs), nn.Linear(width, num_outputs)
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=_FIRST_STD)
                nn.init.zeros_(layer.bias)

    def distribution(self, inputs: Tensor) -> torch.distributions.Normal:
        """Return the Gaussian of standardised targets."""
        hidden = self.body(inputs)
        variance = functional.softplus(self.variance(hidden)) + _LEAST_VARIANCE
        return torch.distributions.Normal(self.mean(hidden), variance.sqrt(), validate_args=False)

    def pretrain(self, generator: torch.Generator) -> float:
        """Fit to the data that is kept."""
        return self.refit(generator)

    def refit(self, generator: torch.Generator) -> float:
        """Minimise the negative log likelihood by Adam; the weights best on held-out points stay."""
        config = self.config
        inputs, targets = self.scaled(self.inputs, self.targets)
        order = torch.randperm(len(inputs), generator=generator)
        num_held = max(1, round(config.validation * len(inputs)))
        held, rest = order[:num_held], order[num_held:]
        rest = rest if len(rest) else held
        optimizer = torch.optim.Adam(self.parameters(), lr=config.lr)
        best, best_loss, since = copy.deepcopy(self.state_dict()), torch.inf, 0
        for _ in range(config.num_epochs):
            shuffled = rest[torch.randperm(len(rest), generator=generator)]
            for batch in shuffled.split(config.batch_size):
                loss = -self.distribution(inputs[batch]).log_prob(targets[batch]).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            with torch.no_grad():
                held_loss = float(-self.distribution(inputs[held]).log_prob(targets[held]).mean())
            since += 1
            if held_loss < best_loss:
                best, best_loss, since = copy.deepcopy(self.state_dict()), held_loss, 0
            if since == config.patience:
                break
        self.load_state_dict(best)
        return best_loss


class Dnnmm(ChunkMixture):
    """The mixture of networks."""

    config: DnnmmConfig

    def new_model(self, num_inputs: int, num_outputs: int) -> ChunkModel:
        """Return a network with fresh weights."""
        return GaussianNetwork(num_inputs, num_outputs, self.config)
