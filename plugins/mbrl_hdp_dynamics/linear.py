"""`linear`: one affine map per context with full or diagonal noise, the classical switching linear model."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mbrl_hdp.settings import check_settings, setting
from mbrl_hdp.types import TaskSpec
from mbrl_hdp_dynamics.delta_mlp import DeltaMlpDynamics
from mbrl_hdp_dynamics.structured import HeadsConfig

_SMALLEST_WEIGHT = 1e-6


@dataclass
class LinearConfig:
    """Settings of `linear`."""

    noise: str = setting("diagonal", "covariance of the noise: diagonal or full", choices=("diagonal", "full"))
    weight_std: float = setting(1.0, "standard deviation of the Gaussian prior on weights and biases", above=0.0)
    init_std: float = setting(0.1, "standard deviation of the starting weights and biases", above=0.0)
    std_floor: float = setting(1e-3, "smallest noise std, in units of the target's spread", at_least=0.0, below=1.0)


class LinearDynamics(DeltaMlpDynamics):
    """next_obs = obs + A_k [obs, act] + b_k + noise, in scaled units; right for small logs.

    `maximise` gives the closed-form optimum for known responsibilities.
    """

    def __init__(self, task: TaskSpec, config: LinearConfig) -> None:
        floor = config.std_floor
        heads = HeadsConfig([], config.weight_std, config.init_std, floor, final_std_floor=floor, skip_share=0.0)
        super().__init__(task, heads)

    def maximise(
        self,
        obs: Float[Tensor, "batch S"],
        act: Float[Tensor, "batch A"],
        next_obs: Float[Tensor, "batch S"],
        weight: Float[Tensor, "batch K"],
    ) -> None:
        """Set every context to its best affine map for rows weighted by `weight` (the M step of EM).

        Ridge regression with the prior's strength at the current noise, then the noise from what is left. A context
        without weight keeps its parameters.
        """
        self._check_rows(obs, act, next_obs)
        with torch.no_grad():
            inputs = self.input_scaler(self.features(obs, act)).double()
            targets = self.target_scaler(self.targets(obs, next_obs)).double()
            design = torch.cat([inputs, torch.ones_like(inputs[:, :1])], -1)
            for head in range(self.max_contexts):
                rows = weight[:, head].double()
                if rows.sum() > _SMALLEST_WEIGHT:
                    self._maximise_head(head, design, targets, rows)

    def _maximise_head(self, head: int, design: Tensor, targets: Tensor, rows: Tensor) -> None:
        variance = self._covariance(head).diagonal().double()
        ridge = variance[:, None, None] / self.config.weight_std**2 * torch.eye(design.shape[1]).to(design)
        moments = design.T @ (rows[:, None] * design)
        products = design.T @ (rows[:, None] * targets)
        solution = torch.linalg.solve(moments + ridge, products.T[..., None])[..., 0]
        self.heads.weights[0][head] = solution[:, :-1].to(self.raw_log_std.dtype)
        self.heads.biases[0][head] = solution[:, -1].to(self.raw_log_std.dtype)
        residual = targets - design @ solution.T
        self._set_noise(head, residual.T @ (rows[:, None] * residual) / rows.sum())

    def _covariance(self, head: int) -> Tensor:
        return self.noise_std()[head].square().diag()

    def _set_noise(self, head: int, covariance: Tensor) -> None:
        self.raw_log_std[head] = self._raw_of(covariance.diagonal().sqrt())

    def _raw_of(self, std: Tensor) -> Tensor:
        """Return the parameter of a noise std; a std at or below the floor gets a parameter just above it."""
        floor = float(self.std_floor)
        excess = (std.square() - floor**2).clamp_min(max(1e-2 * floor, 1e-6) ** 2)
        return 0.5 * excess.log().to(self.raw_log_std.dtype)


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
        log_density = self._log_peak(std) - 0.5 * white.square().sum(-1)
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

    def _covariance(self, head: int) -> Tensor:
        factor = self._noise_factor()[head]
        return factor @ factor.T

    def _set_noise(self, head: int, covariance: Tensor) -> None:
        floor = max(float(self.std_floor), 1e-6)
        factor = torch.linalg.cholesky(covariance + floor**2 * torch.eye(len(covariance)).to(covariance))
        whitening = torch.linalg.inv(factor)
        std = 1.0 / whitening.diagonal()
        # inv(factor) = (I + lower) / std column by column: scale its columns so that the diagonal becomes 1.
        self.raw_log_std[head] = self._raw_of(std)
        self.lower[head] = ((whitening * std).tril(-1)).to(self.lower.dtype)

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
