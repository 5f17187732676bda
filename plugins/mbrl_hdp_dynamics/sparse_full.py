"""`sparse` with `noise=full`: the noise of each context is correlated between the columns."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mbrl_hdp.inference.density_table import DensityTable
from mbrl_hdp.inference.dynamics import Slots
from mbrl_hdp.types import TaskSpec
from mbrl_hdp_dynamics.density import sparse_table
from mbrl_hdp_dynamics.regression import PRIOR_SHAPE, regress
from mbrl_hdp_dynamics.sparse import SparseConfig, SparseDynamics


class FullSparseDynamics(SparseDynamics):
    """Sparse heads with a full noise covariance: noise = std * (M white), M unit lower triangular.

    `noise_variance` is std^2, what is left of a column's variance when the columns before it are known; the numbers in
    `white` are independent and have the Student t densities of uncorrelated heads.

    Attributes:
        lower: M below its diagonal, `K S S`; the rest is not used.
    """

    def __init__(self, task: TaskSpec, config: SparseConfig) -> None:
        super().__init__(task, config)
        self.lower = nn.Parameter(torch.zeros(task.max_contexts, task.obs_dim, task.obs_dim, dtype=torch.float64))

    def mixing(self) -> Float[Tensor, "K S S"]:
        """Return M of every context."""
        return torch.eye(self.obs_dim).to(self.lower) + self.lower.tril(-1)

    def noise_covariance(self) -> Float[Tensor, "K S S"]:
        """Return the noise covariance of every context, in units of the targets' spread."""
        root = self.noise_variance().sqrt()[..., None] * self.mixing()
        return root @ root.mT

    def noise_std(self) -> Float[Tensor, "K S"]:
        """Return the standard deviation of every context's noise in every column."""
        return self.noise_covariance().diagonal(dim1=-2, dim2=-1).sqrt()

    def colour(self, white: Tensor, context: Tensor) -> Tensor:
        """Turn independent noise of unit scale, `*context S` or `*context n S`, into the contexts': M white."""
        mixing = self.mixing()[context]
        return white @ mixing.mT if white.ndim > context.ndim + 1 else (mixing @ white[..., None])[..., 0]

    def density_table(self, slots: Slots) -> DensityTable | None:
        """Return the density as arrays."""
        return sparse_table(self, slots, torch.linalg.inv(self.mixing()))

    def reset_slots(self, slots: Slots, generator: torch.Generator | None = None) -> None:
        """Draw fresh weights for the heads in `slots`; their noise is uncorrelated, with the targets' spread."""
        super().reset_slots(slots, generator)
        if hasattr(self, "lower"):
            with torch.no_grad():
                self.lower[slots] = 0.0

    def _fit_head(self, slot: int, features: Tensor, targets: Tensor, share: Tensor) -> None:
        floor = self.config.std_floor
        found = regress(features, targets, share, floor)
        error = targets - features @ found.mean
        scatter = (error * share[:, None]).T @ error + found.precision * found.mean.T @ found.mean
        rate = PRIOR_SHAPE * floor**2 * torch.eye(len(scatter)).to(scatter) + 0.5 * scatter
        # Noise of the floor's size, independent between the columns, keeps the matrix regular.
        root = torch.linalg.cholesky(rate / found.shape + floor**2 * torch.eye(len(scatter)).to(scatter))
        std = root.diagonal()
        self.weight[slot], self.factor[slot], self.shape[slot] = found.mean, found.factor, found.shape
        self.log_variance[slot], self.lower[slot] = 2.0 * std.log(), (root / std[:, None]).tril(-1)

    def _log_density(self, features: Tensor, targets: Tensor, slots: Slots, counts: Tensor) -> Tensor:
        """Return the log density of the scaled targets that are marked, by columns or by rows and columns.

        Where some are missing, the covariance of the others is used; with their exact t densities the result would
        differ by what the noise's uncertainty is worth.
        """
        if counts.ndim == 1:
            return self._density_of(features, targets, slots, counts)
        patterns, pattern_of = counts.unique(dim=0, return_inverse=True)
        density = features.new_zeros(len(features), len(slots))
        for number, pattern in enumerate(patterns):
            rows = (pattern_of == number).nonzero().squeeze(-1)
            density = density.index_put((rows,), self._density_of(features[rows], targets[rows], slots, pattern))
        return density

    def _density_of(self, features: Tensor, targets: Tensor, slots: Slots, is_seen: Tensor) -> Tensor:
        covariance, halves, columns = self.noise_covariance(), self.half_degrees(), []
        for slot in slots.tolist():
            root, half = torch.linalg.cholesky(covariance[slot][is_seen][:, is_seen]), halves[slot]
            widening = 1.0 + (features @ self.factor[slot]).square().sum(-1, keepdim=True)
            error = (targets - features @ self.weight[slot])[:, is_seen]
            white = torch.linalg.solve_triangular(root, error.T, upper=False).T
            peak = torch.lgamma(half + 0.5) - torch.lgamma(half) - 0.5 * (2.0 * torch.pi * half * widening).log()
            each = peak - root.diagonal().log() - (half + 0.5) * torch.log1p(white.square() / (2.0 * half * widening))
            columns.append(each.sum(-1))
        return torch.stack(columns, -1)
