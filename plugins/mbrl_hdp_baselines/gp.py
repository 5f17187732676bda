"""One component of GPMM: independent exact Gaussian processes, one per output, in one gpytorch batch.

gpytorch has the hyper-parameters, their constraints and starting values. The marginal likelihood has its gradient in
closed form, several times faster than autograd through a Cholesky factor; predictions, which planning needs in large
numbers, come from a factor that grows with the data. Tests compare both with gpytorch's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import gpytorch
import torch
from torch import Tensor

from mbrl_hdp.control.state import load_optimizer, optimizer_state, prefixed, unprefixed
from mbrl_hdp_baselines.settings import GpmmConfig

_LEAST_VARIANCE = 1e-3
_LEAST_IMPROVEMENT = 1e-4


class BatchedGp(gpytorch.models.ExactGP):
    """Constant mean, scaled RBF kernel with a length scale for every input, Gaussian noise; one of each per output."""

    def __init__(self, num_inputs: int, num_outputs: int, config: GpmmConfig) -> None:
        shape = torch.Size([num_outputs])
        likelihood = gpytorch.likelihoods.GaussianLikelihood(
            batch_shape=shape, noise_constraint=gpytorch.constraints.GreaterThan(config.least_noise)
        )
        super().__init__(None, None, likelihood)
        self.mean_module = gpytorch.means.ConstantMean(batch_shape=shape)
        self.covar_module = gpytorch.kernels.ScaleKernel(
            gpytorch.kernels.RBFKernel(ard_num_dims=num_inputs, batch_shape=shape), batch_shape=shape
        )
        self.double()
        likelihood.noise = config.first_noise
        self.covar_module.outputscale = config.first_scale
        self.covar_module.base_kernel.lengthscale = config.first_length
        self.mean_module.constant.data.fill_(0.0)

    def forward(self, inputs: Tensor) -> gpytorch.distributions.MultivariateNormal:
        """Return the prior at the inputs."""
        return gpytorch.distributions.MultivariateNormal(self.mean_module(inputs), self.covar_module(inputs))


class NegativeLogMarginal(torch.autograd.Function):
    """-log N(y | mean, C) of every output with C = K + noise I, K the scaled RBF kernel; gradients in closed form.

    With a = C^-1 (y - mean) and G = (C^-1 - a a^T) / 2 the derivative in C is G; behind it those of the kernel.
    """

    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, targets: Tensor, length: Tensor, scale: Tensor, noise: Tensor, mean: Tensor
    ) -> Tensor:
        """Return the losses `D`.

        Args:
            ctx: autograd's.
            inputs: `n I`.
            targets: `D n`.
            length: length scales, `D 1 I`.
            scale: prior variances, `D`.
            noise: noise variances, `D 1`.
            mean: constant means, `D`.
        """
        kernel = rbf(inputs, inputs, length, scale[:, None, None])
        covariance = kernel.clone()
        covariance.diagonal(dim1=1, dim2=2).add_(noise)
        factor = gpytorch.utils.cholesky.psd_safe_cholesky(covariance)
        residual = targets - mean[:, None]
        weights = torch.cholesky_solve(residual[..., None], factor)[..., 0]
        ctx.save_for_backward(inputs, length, scale, kernel, factor, weights)
        log_volume = factor.diagonal(dim1=1, dim2=2).log().sum(-1) + 0.5 * targets.shape[1] * math.log(2.0 * math.pi)
        return 0.5 * (residual * weights).sum(-1) + log_volume

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients in length scales, variances, noise and mean."""
        (grad,), (inputs, length, scale, kernel, factor, weights) = grad_outputs, ctx.saved_tensors
        by_covariance = torch.cholesky_inverse(factor)
        by_covariance.baddbmm_(weights[:, :, None], weights[:, None, :], alpha=-1.0).mul_(0.5)
        by_noise = by_covariance.diagonal(dim1=1, dim2=2).sum(-1)
        joint = by_covariance.mul_(kernel)
        rows = joint.sum(-1)
        # sum_ab joint_ab (x_a - x_b)^2 / length^3 for every input.
        spread = 2.0 * (rows @ inputs.square() - (inputs * (joint @ inputs)).sum(1))
        by_length = spread[:, None] / length**3
        each = by_length * grad[:, None, None], rows.sum(-1) / scale * grad, by_noise[:, None] * grad[:, None]
        return None, None, *each, -weights.sum(-1) * grad


def rbf(rows: Tensor, columns: Tensor, length: Tensor, scale: Tensor) -> Tensor:
    """Return scale exp(-|(row - column) / length|^2 / 2), `D rows columns`."""
    left, right = rows / length, columns / length
    exponent = torch.baddbmm(-0.5 * left.square().sum(-1)[:, :, None], left, right.transpose(1, 2))
    exponent -= 0.5 * right.square().sum(-1)[:, None]
    return exponent.clamp_(max=0.0).exp_().mul_(scale)


class GpComponent:
    """Data of one component, its Gaussian processes and what predictions need.

    Args:
        num_inputs: width of the inputs (features of the observation, action).
        num_outputs: width of the targets (change of the features).
        config: settings.

    Attributes:
        inputs: `n I`, double precision.
        targets: `n D`.
        gp: the gpytorch model.
    """

    def __init__(self, num_inputs: int, num_outputs: int, config: GpmmConfig) -> None:
        self.config = config
        self.inputs = torch.zeros(0, num_inputs, dtype=torch.float64)
        self.targets = torch.zeros(0, num_outputs, dtype=torch.float64)
        self.gp = BatchedGp(num_inputs, num_outputs, config)
        self.optimizer = torch.optim.Adam(self.gp.parameters(), lr=config.lr)
        self.fitted_points = 0
        self._factor: Tensor | None = None

    def __len__(self) -> int:
        return len(self.inputs)

    def add(self, inputs: Tensor, targets: Tensor) -> None:
        """Add points and fit the hyper-parameters again if the data has grown enough since the last fit."""
        self.inputs = torch.cat([self.inputs, inputs])
        self.targets = torch.cat([self.targets, targets])
        if len(self) >= self.fitted_points * (1.0 + self.config.refit_growth):
            self.fit()
        else:
            self._extend(len(inputs))

    def fit(self) -> float:
        """Take steps of Adam on the marginal likelihood; return the last loss (per point, summed over outputs)."""
        config, targets = self.config, self.targets.T.contiguous()
        steps = config.fit_steps if len(self) <= config.large else config.large_fit_steps
        last = value = torch.inf
        for _ in range(steps):
            self.optimizer.zero_grad()
            loss = self.loss(targets)
            loss.backward()
            self.optimizer.step()
            last, value = value, loss.item()
            if last - value < _LEAST_IMPROVEMENT:
                break
        self.fitted_points = len(self)
        self.refresh()
        return value

    def loss(self, targets: Tensor) -> Tensor:
        """Return the negative log marginal likelihood of targets `D n`, per point, summed over outputs."""
        gp = self.gp
        losses = NegativeLogMarginal.apply(
            self.inputs, targets, gp.covar_module.base_kernel.lengthscale, gp.covar_module.outputscale,
            gp.likelihood.noise, gp.mean_module.constant,
        )  # fmt: skip
        return losses.sum() / len(self)

    @torch.no_grad()
    def refresh(self) -> None:
        """Compute what predictions need from data and hyper-parameters alone."""
        self._scales = self.gp.covar_module.base_kernel.lengthscale.detach()
        self._variance = self.gp.covar_module.outputscale.detach()[:, None, None]
        self._noise = self.gp.likelihood.noise.detach()
        self._mean = self.gp.mean_module.constant.detach()[:, None]
        covariance = self.covariance(self.inputs, self.inputs)
        covariance.diagonal(dim1=1, dim2=2).add_(self._noise)
        self._factor = gpytorch.utils.cholesky.psd_safe_cholesky(covariance)
        self._solve_weights()

    @torch.no_grad()
    def predict(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return means and latent variances (without the noise) of the targets, both `B D`."""
        cross = self.covariance(self.inputs, inputs)
        half = torch.linalg.solve_triangular(self._lower, cross, upper=False)
        variance = self._variance[:, 0] - half.square().sum(1)
        return self._mean_of(cross), variance.T

    @torch.no_grad()
    def predict_mean(self, inputs: Tensor) -> Tensor:
        """Return the means `B D`, in single precision, which is enough for plans and several times faster."""
        scales, centres, half_squares, weights, mean = self._single
        points = inputs.float() / scales
        exponent = torch.baddbmm(half_squares[:, :, None], centres, points.transpose(1, 2))
        exponent -= 0.5 * points.square().sum(-1)[:, None]
        return (mean + torch.bmm(weights, exponent.clamp_(max=0.0).exp_())[:, 0]).T.to(inputs.dtype)

    def score(self, inputs: Tensor, targets: Tensor) -> float:
        """Return the mean over outputs of log N(target | mean, latent variance) of one point."""
        mean, variance = self.predict(inputs[None])
        variance = torch.where(variance > 0.0, variance, _LEAST_VARIANCE)
        return float(torch.distributions.Normal(mean, variance.sqrt()).log_prob(targets).mean())

    def prior_score(self, targets: Tensor) -> float:
        """Return the score of a point under a component without data."""
        return float(torch.distributions.Normal(0.0, self.config.first_scale**0.5).log_prob(targets).mean())

    def covariance(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Return the covariances `D rows columns`."""
        return rbf(rows, columns, self._scales, self._variance)

    def state_dict(self) -> dict[str, Tensor]:
        """Return data, hyper-parameters and the optimiser's moments."""
        state = {"inputs": self.inputs, "targets": self.targets, "fitted_points": torch.tensor(self.fitted_points)}
        state |= prefixed("gp", dict(self.gp.named_parameters())) | prefixed("adam", optimizer_state(self.optimizer))
        return {name: value.detach().clone() for name, value in state.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.inputs, self.targets = state["inputs"].clone(), state["targets"].clone()
        self.fitted_points = int(state["fitted_points"])
        with torch.no_grad():
            for name, value in self.gp.named_parameters():
                value.copy_(state[f"gp.{name}"])
        load_optimizer(self.optimizer, unprefixed(state, "adam"))
        self.refresh()

    @property
    def _lower(self) -> Tensor:
        assert self._factor is not None, "a component predicts after its first point"
        return self._factor

    def _mean_of(self, cross: Tensor) -> Tensor:
        return (self._mean + torch.einsum("dnb,dn->db", cross, self._weights)).T

    @torch.no_grad()
    def _extend(self, num_new: int) -> None:
        """Extend the Cholesky factor by the last points."""
        old, new = self.inputs[:-num_new], self.inputs[-num_new:]
        lower = self._lower
        below = torch.linalg.solve_triangular(lower, self.covariance(old, new), upper=False).transpose(1, 2)
        corner = self.covariance(new, new)
        corner.diagonal(dim1=1, dim2=2).add_(self._noise)
        corner = gpytorch.utils.cholesky.psd_safe_cholesky(corner - below @ below.transpose(1, 2))
        above = lower.new_zeros(len(lower), len(old), num_new)
        self._factor = torch.cat([torch.cat([lower, above], 2), torch.cat([below, corner], 2)], 1)
        self._solve_weights()

    def _solve_weights(self) -> None:
        residuals = (self.targets.T - self._mean)[..., None]
        self._weights = torch.cholesky_solve(residuals, self._lower)[..., 0]
        centres = self.inputs / self._scales
        weights = (self._weights * self._variance[:, 0])[:, None]
        parts = self._scales, centres, -0.5 * centres.square().sum(-1), weights, self._mean
        self._single = tuple(part.float() for part in parts)
