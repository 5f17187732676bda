"""`linear`: one affine map per context with full or diagonal noise, the classical switching linear model."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mbrl_hdp.inference.density_table import DensityTable
from mbrl_hdp.inference.dynamics import Act, Obs, Slots
from mbrl_hdp.settings import check_settings, choice, setting
from mbrl_hdp.types import TaskSpec
from mbrl_hdp_dynamics.delta_mlp import DeltaMlpDynamics
from mbrl_hdp_dynamics.density import network_table
from mbrl_hdp_dynamics.structured import HeadsConfig

# Weights depend on the noise through their prior, and the noise on the weights: rounds of one after the other.
_ROUNDS = 3
# A head with fewer rows is left as it is.
_LEAST_ROWS = 1.0
_LEAST_SHARE = 1e-6


@dataclass
class LinearConfig:
    """Settings of `linear`."""

    noise: str = choice(("diagonal", "full"), "covariance of the noise: diagonal or full")
    weight_std: float = setting(1.0, "standard deviation of the Gaussian prior on weights and biases", above=0.0)
    init_std: float = setting(0.1, "standard deviation of the starting weights and biases", above=0.0)
    std_floor: float = setting(1e-3, "smallest noise std, in units of the target's spread", at_least=0.0, below=1.0)


class LinearDynamics(DeltaMlpDynamics):
    """next_obs = obs + A_k [obs, act] + b_k + noise, in scaled units; suited to small logs."""

    def __init__(self, task: TaskSpec, config: LinearConfig) -> None:
        floor = config.std_floor
        heads = HeadsConfig([], config.weight_std, config.init_std, floor, final_std_floor=floor, skip_share=0.0)
        super().__init__(task, heads)

    def fit_heads(self, obs: Obs, act: Act, next_obs: Obs, weight: Float[Tensor, "batch K"]) -> None:
        """Set every head to its most probable weights and noise given rows that count `weight` times for it."""
        with torch.no_grad():
            features, changes = self._density_rows(obs, act, next_obs)
            inputs, targets = self.input_scaler(features).double(), self.target_scaler(changes).double()
            inputs = torch.cat([inputs, torch.ones_like(inputs[:, :1])], -1)
            for slot in range(self.max_contexts):
                share = weight[:, slot].double()
                if float(share.sum()) >= _LEAST_ROWS:
                    self._fit_head(slot, inputs, targets, share)

    def _fit_head(self, slot: int, inputs: Tensor, targets: Tensor, share: Tensor) -> None:
        used = share > _LEAST_SHARE
        inputs, targets, share = inputs[used], targets[used], share[used]
        weighted = inputs * share[:, None]
        gram, moment = weighted.T @ inputs, weighted.T @ targets
        square, total = (targets * share[:, None]).T @ targets, share.sum()
        prior = torch.eye(len(gram), dtype=gram.dtype, device=gram.device) / self.config.weight_std**2
        covariance = torch.eye(targets.shape[1], dtype=gram.dtype, device=gram.device)
        for _ in range(_ROUNDS):
            variance = covariance.diagonal() + float(self.std_floor) ** 2
            head = torch.linalg.solve(gram + variance[:, None, None] * prior, moment.T[..., None])[..., 0]
            # Of the residuals, without another pass over the rows.
            explained = head @ moment
            covariance = (square - explained - explained.T + head @ gram @ head.T) / total
            # Rounding may leave less than nothing where the fit is perfect.
            covariance.diagonal().clamp_(min=0.0)
        self.heads.weights[0][slot], self.heads.biases[0][slot] = head[:, :-1].float(), head[:, -1].float()
        self._set_noise(slot, covariance)

    def _set_noise(self, slot: int, covariance: Tensor) -> None:
        self.raw_log_std[slot] = 0.5 * covariance.diagonal().clamp_min(1e-12).log().to(self.raw_log_std.dtype)


class FullNoiseDynamics(LinearDynamics):
    """`linear` with a full noise covariance, held as (I + lower) (error / std) = white noise.

    Attributes:
        lower: below its diagonal, the whitening's mixing of the targets, `K O O`; the rest is not used.
    """

    def __init__(self, task: TaskSpec, config: LinearConfig) -> None:
        super().__init__(task, config)
        self.lower = nn.Parameter(torch.zeros(task.max_contexts, task.obs_dim, task.obs_dim))

    def density_table(self, slots: Slots) -> DensityTable | None:
        """Return the density as arrays."""
        layout = self.layout()
        return None if layout is None else network_table(self, layout, slots, whitening=self._whitening())

    def _set_noise(self, slot: int, covariance: Tensor) -> None:
        floor = float(self.std_floor) ** 2
        varies = self.target_scaler.scale > 0
        covariance = covariance + torch.where(varies, floor, 1.0).diag()
        factor = torch.linalg.cholesky(covariance)  # F of `_noise_factor`
        std = factor.diagonal()
        self.raw_log_std[slot] = 0.5 * (std.square() - floor).clamp_min(1e-12).log().to(self.raw_log_std.dtype)
        self.lower[slot] = torch.linalg.inv(factor / std[:, None]).tril(-1).to(self.lower.dtype)

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
