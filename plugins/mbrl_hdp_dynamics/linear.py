"""`linear`: one affine map per context with full or diagonal noise, the classical switching linear model."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mbrl_hdp.settings import check_settings, setting
from mbrl_hdp.types import TaskSpec
from mbrl_hdp_dynamics.delta_mlp import DeltaMlpDynamics
from mbrl_hdp_dynamics.structured import HeadsConfig


@dataclass
class LinearConfig:
    """Settings of `linear`."""

    noise: str = setting("diagonal", "covariance of the noise: diagonal or full", choices=("diagonal", "full"))
    weight_std: float = setting(1.0, "standard deviation of the Gaussian prior on weights and biases", above=0.0)
    init_std: float = setting(0.1, "standard deviation of the starting weights and biases", above=0.0)
    std_floor: float = setting(1e-3, "smallest noise std, in units of the target's spread", at_least=0.0, below=1.0)


class LinearDynamics(DeltaMlpDynamics):
    """next_obs = obs + A_k [obs, act] + b_k + noise, in scaled units; suited to small logs."""

    def __init__(self, task: TaskSpec, config: LinearConfig) -> None:
        floor = config.std_floor
        heads = HeadsConfig([], config.weight_std, config.init_std, floor, final_std_floor=floor, skip_share=0.0)
        super().__init__(task, heads)


class FullNoiseDynamics(LinearDynamics):
    """`linear` with a full noise covariance, held as (I + lower) (error / std) = white noise.

    Attributes:
        lower: below its diagonal, the whitening's mixing of the targets, `K O O`; the rest is not used.
    """

    def __init__(self, task: TaskSpec, config: LinearConfig) -> None:
        super().__init__(task, config)
        self.lower = nn.Parameter(torch.zeros(task.max_contexts, task.obs_dim, task.obs_dim))

    def _log_density(self, features: Tensor, targets: Tensor, slots: Tensor | None = None) -> Tensor:
        std, has_density = self.noise_std(), self.target_scaler.scale > 0
        mean = self.heads(self.input_scaler(features))
        scaled = torch.where(has_density, (self.target_scaler(targets)[:, None] - mean) / std, 0.0)
        white = torch.where(has_density, torch.einsum("koi,bki->bko", self._whitening(), scaled), 0.0)
        log_density = self._log_peak(std, has_density) - 0.5 * white.square().sum(-1)
        return log_density if slots is None else log_density[:, slots]

    def _whitening(self) -> Tensor:
        identity = torch.eye(self.obs_dim, dtype=self.lower.dtype, device=self.lower.device)
        return identity + self.lower.tril(-1)

    def _draw_noise(self, standard: Tensor, context: Tensor) -> Tensor:
        factor = self._noise_factor()[context]
        if standard.ndim > 2:
            return standard @ factor.mT
        return (factor @ standard[..., None])[..., 0]

    def _noise_factor(self) -> Tensor:
        """Return F with covariance F F^T: F = diag(std) (I + lower)^-1."""
        inverse = torch.linalg.solve_triangular(
            self._whitening(), torch.eye(self.obs_dim).to(self.lower).expand_as(self.lower), upper=False
        )
        return self.noise_std()[..., None] * inverse

    def _reset(self, slots: Tensor, generator: torch.Generator | None) -> None:
        super()._reset(slots, generator)
        if hasattr(self, "lower"):
            with torch.no_grad():
                self.lower[slots] = 0.0


def build_linear(config: LinearConfig, task: TaskSpec) -> LinearDynamics:
    """Build `linear`.

    Raises:
        ConfigError: on settings out of range.
    """
    check_settings(config, "dynamics")
    return FullNoiseDynamics(task, config) if config.noise == "full" else LinearDynamics(task, config)
