"""One component of GPMM: independent exact Gaussian processes, one per output, in one gpytorch batch.

gpytorch has the hyper-parameters, their constraints and the marginal likelihood; predictions, which planning needs in
large numbers, come from a Cholesky factor that grows with the data.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gpytorch
import torch
from torch import Tensor

from mbrl_hdp.control.state import load_optimizer, optimizer_state, prefixed, unprefixed
from mbrl_hdp_baselines.settings import GpmmConfig

_LEAST_VARIANCE = 1e-3
_CHOLESKY_UP_TO = 3000
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
        self.gp.set_train_data(self.inputs, targets, strict=False)
        self.gp.train()
        objective = gpytorch.mlls.ExactMarginalLogLikelihood(self.gp.likelihood, self.gp)
        last = value = torch.inf
        with gpytorch.settings.max_cholesky_size(_CHOLESKY_UP_TO):
            for _ in range(steps):
                self.optimizer.zero_grad()
                loss = -objective(self.gp(self.inputs), targets).sum()
                loss.backward()
                self.optimizer.step()
                last, value = value, loss.item()
                if last - value < _LEAST_IMPROVEMENT:
                    break
        self.fitted_points = len(self)
        self.refresh()
        return value

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
        """Return the means `B D`."""
        return self._mean_of(self.covariance(self.inputs, inputs))

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
        left, right = rows / self._scales, columns / self._scales
        squared = left.square().sum(-1)[:, :, None] + right.square().sum(-1)[:, None]
        squared = torch.baddbmm(squared, left, right.transpose(1, 2), alpha=-2.0).clamp_(min=0.0)
        return squared.mul_(-0.5).exp_().mul_(self._variance)

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
