"""GPMM's size control: keep the subset of a component's points that explains all of them best."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mbrl_hdp_baselines.gp import GpComponent

_JITTER = 1e-8


@torch.no_grad()
def subset_bound(component: GpComponent, subset: Tensor) -> float:
    """Return Titsias' lower bound of the log marginal likelihood with a subset as inducing points, over all outputs.

    -1/2 log|Q + s^2 I| - 1/2 y' (Q + s^2 I)^-1 y - trace(K - Q) / (2 s^2) - n/2 log 2 pi, where Q is the Nystrom matrix
    of the subset; computed from the m x m matrix A A' + I with A = L^-1 K_mn / s.
    """
    inputs, noise = component.inputs, component.gp.likelihood.noise.detach()[..., None]
    chosen = inputs[subset]
    inner = component.covariance(chosen, chosen)
    inner.diagonal(dim1=1, dim2=2).add_(_JITTER)
    half = torch.linalg.solve_triangular(
        torch.linalg.cholesky(inner), component.covariance(chosen, inputs), upper=False
    )
    scaled = half / noise.sqrt()
    matrix = scaled @ scaled.transpose(1, 2)
    matrix.diagonal(dim1=1, dim2=2).add_(1.0)
    lower = torch.linalg.cholesky(matrix)
    residuals = (component.targets.T - component.gp.mean_module.constant.detach()[:, None])[..., None]
    projected = torch.linalg.solve_triangular(lower, scaled @ residuals, upper=False) / noise.sqrt()
    num = len(inputs)
    log_det = 2.0 * lower.diagonal(dim1=1, dim2=2).log().sum(1) + num * noise[:, 0, 0].log()
    fit = (residuals / noise.sqrt()).square().sum((1, 2)) - projected.square().sum((1, 2))
    missing = num * component.gp.covar_module.outputscale.detach() - half.square().sum((1, 2))
    bound = -0.5 * (log_det + fit + missing / noise[:, 0, 0] + num * math.log(2.0 * math.pi))
    return float(bound.sum())


def distil(component: GpComponent, keep: int, num_subsets: int, generator: torch.Generator) -> None:
    """Keep the best of some random subsets of `keep` points and forget the others."""
    draws = [torch.randperm(len(component), generator=generator)[:keep].sort().values for _ in range(num_subsets)]
    best = max(draws, key=lambda subset: subset_bound(component, subset))
    component.inputs, component.targets = component.inputs[best], component.targets[best]
    component.fitted_points = keep
    component.refresh()
