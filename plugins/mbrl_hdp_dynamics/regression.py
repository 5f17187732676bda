"""Bayesian linear regression in closed form: normal-inverse-gamma posteriors, prior precision chosen by evidence."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

# Prior of a noise variance: inverse gamma with this shape, centred on the square of the noise floor.
PRIOR_SHAPE = 0.5
_PRECISIONS = torch.logspace(-8, 2, 11, dtype=torch.float64)


@dataclass(frozen=True)
class Posterior:
    """Weights of every output o: w_o | var_o ~ N(mean_o, var_o F F^T), var_o ~ inverse gamma(shape, rate_o).

    Attributes:
        mean: expected weights, `D O`.
        factor: F, `D D`.
        shape: shape of all outputs' noise variances.
        rate: rate of every output's, `O`.
        precision: the chosen prior precision: w_o | var_o ~ N(0, var_o / precision).
        log_evidence: log density of the targets with weights and variances integrated out.
    """

    mean: Float[Tensor, "D O"]
    factor: Float[Tensor, "D D"]
    shape: float
    rate: Float[Tensor, " O"]
    precision: float
    log_evidence: float


def regress(
    features: Float[Tensor, "M D"], targets: Float[Tensor, "M O"], weight: Float[Tensor, " M"], floor: float
) -> Posterior:
    """Return the posterior given rows that count `weight` times each, at the prior precision of largest evidence.

    Args:
        features: rows of features, roughly standardised.
        targets: rows of targets, standardised.
        weight: how often each row counts.
        floor: noise standard deviation that the prior expects.
    """
    weighted = features * weight[:, None]
    values, vectors = torch.linalg.eigh(weighted.T @ features)
    values = values.clamp_min(0.0)
    projected = vectors.T @ (weighted.T @ targets)
    square, total = (targets.square() * weight[:, None]).sum(0), float(weight.sum())
    shape, prior_rate = PRIOR_SHAPE + 0.5 * total, PRIOR_SHAPE * floor**2
    best: tuple[float, float, Tensor] | None = None
    for precision in _PRECISIONS.tolist():
        explained = (projected.square() / (values + precision)[:, None]).sum(0)
        # Rounding may leave less than nothing where the fit is perfect.
        rate = prior_rate + 0.5 * (square - explained).clamp_min(1e-13 * square)
        evidence = _log_evidence(values, precision, shape, rate, prior_rate, total)
        if best is None or evidence > best[0]:
            best = evidence, precision, rate
    assert best is not None
    evidence, precision, rate = best
    spread = values + precision
    mean, factor = vectors @ (projected / spread[:, None]), vectors / spread.sqrt()
    return Posterior(mean, factor, shape, rate, precision, evidence)


def _log_evidence(
    values: Tensor, precision: float, shape: float, rate: Tensor, prior_rate: float, total: float
) -> float:
    num_outputs = len(rate)
    volume = -0.5 * torch.log1p(values / precision).sum()
    shapes = torch.tensor([shape, PRIOR_SHAPE], dtype=torch.float64).lgamma()
    each = volume + shapes[0] - shapes[1] + PRIOR_SHAPE * _log(prior_rate) - 0.5 * total * _log(2.0 * torch.pi)
    return float(num_outputs * each - shape * rate.log().sum())


def _log(value: float) -> float:
    return float(torch.tensor(value, dtype=torch.float64).log())
