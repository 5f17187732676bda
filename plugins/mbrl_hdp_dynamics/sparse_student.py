"""`sparse` with `noise=student`: each context and target has tails of its own, so that spikes do not move the heads."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mbrl_hdp.inference.dynamics import Paths, Slots
from mbrl_hdp.types import TaskSpec
from mbrl_hdp_dynamics.regression import PRIOR_SHAPE, regress
from mbrl_hdp_dynamics.sparse import SparseConfig, SparseDynamics
from mbrl_hdp_dynamics.student import FEWEST, MOST, regress_student

_FRESH_DEGREES = 5.0


class StudentDynamics(SparseDynamics):
    """Sparse heads whose noise is a Student t with degrees of freedom that the data decides.

    The weights' covariance is that of rows which count as they do in the mean over the targets.

    Attributes:
        log_degrees: log of the noise's degrees of freedom, `K S`.
    """

    def __init__(self, task: TaskSpec, config: SparseConfig) -> None:
        super().__init__(task, config)
        fresh = torch.full((task.max_contexts, task.obs_dim), math.log(_FRESH_DEGREES), dtype=torch.float64)
        self.log_degrees = nn.Parameter(fresh, requires_grad=False)

    def degrees(self) -> Float[Tensor, "K S"]:
        """Return the noise's degrees of freedom of every context and target."""
        return self.log_degrees.exp().clamp(FEWEST, MOST)

    def half_degrees(self) -> Float[Tensor, "K S"]:
        """Return half the degrees of freedom of a step's density: fewer than the noise's where rows are few.

        1 / degrees = 1 / degrees of the noise + 1 / degrees of the variance's posterior; without heavy tails this is
        the density of normal noise.
        """
        return 0.5 / (1.0 / self.degrees() + 0.5 / self.shape[:, None])

    def draw_widening(self, paths: Paths, generator: torch.Generator) -> Float[Tensor, "paths steps S"]:
        """Draw for every step of a rollout what multiplies the noise's std."""
        half = 0.5 * self.degrees().detach()[paths]
        return (half / torch._standard_gamma(half, generator=generator)).sqrt()

    def reset_slots(self, slots: Slots, generator: torch.Generator | None = None) -> None:
        """Draw fresh weights for the heads in `slots` and set their noise to the targets' spread."""
        super().reset_slots(slots, generator)
        if hasattr(self, "log_degrees"):
            with torch.no_grad():
                self.log_degrees[slots] = math.log(_FRESH_DEGREES)

    def _fit_head(self, slot: int, features: Tensor, targets: Tensor, share: Tensor) -> None:
        floor, shares = self.config.std_floor, torch.ones_like(targets)
        for output in (self.target_scaler.scale > 0).nonzero().squeeze(-1).tolist():
            start = (
                self.weight[slot, :, output].clone(),
                float(self.noise_variance()[slot, output]),
                float(self.degrees()[slot, output]),
            )
            found = regress_student(features, targets[:, output], share, floor, start)
            self.weight[slot, :, output], self.log_variance[slot, output] = found.mean, math.log(found.variance)
            self.log_degrees[slot, output], shares[:, output] = math.log(found.degrees), found.share
        root = shares.mean(-1).sqrt()[:, None]
        self.factor[slot] = regress(features * root, targets * root, share, floor).factor
        self.shape[slot] = PRIOR_SHAPE + 0.5 * float(share.sum())
