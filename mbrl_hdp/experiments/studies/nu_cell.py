"""The cell of `nu_study`: q(top_sticks) as a point estimate and as a full Beta distribution, by quadrature.

Appendix "Justification for the variational distributions": K=2, top_concentration = row_concentration = 1, no
stickiness, q(rows) held at its assumed optimum.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from scipy.optimize import minimize, minimize_scalar
from torch import Tensor
from torch.distributions import Beta, kl_divergence

if TYPE_CHECKING:
    from mbrl_hdp.experiments.studies.study import Results, Settings

# q*(mu_01), q*(mu_11), q*(mu_21): mean at the true chain, variance 0.01.
Q_ROWS = torch.tensor([[13.8, 9.2], [14.0, 6.0], [3.0, 12.0]], dtype=torch.float64)
PAPER_BETA = (4.86, 4.78)
SMALL_GRADIENT = 0.1

# Trapezoids on the logit axis: the integrands fall off exponentially on both sides, so the sum converges at once.
_LOGIT = torch.linspace(-40.0, 40.0, 4001, dtype=torch.float64)


def rows_kl(stick: Tensor, other: Tensor) -> Tensor:
    """Return sum_j KL(q*(mu_j1) || Beta(nu, 1 - nu)), with other = 1 - nu passed apart for precision near 1."""
    first, second = stick[..., None], other[..., None]
    shape = (*first.shape[:-1], len(Q_ROWS))
    prior = Beta(first.expand(shape), second.expand(shape), validate_args=False)
    return kl_divergence(Beta(Q_ROWS[:, 0], Q_ROWS[:, 1]).expand(shape), prior).sum(-1)


def point_loss(stick: Tensor) -> Tensor:
    """Return the loss of q = Delta(stick); the prior Beta(1, 1) is flat."""
    return rows_kl(stick, 1.0 - stick)


def beta_loss(first: Tensor, second: Tensor) -> Tensor:
    """Return the loss of q = Beta(first, second), any batch shape, by quadrature."""
    stick, other = torch.sigmoid(_LOGIT), torch.sigmoid(-_LOGIT)
    log_stick, log_other = torch.nn.functional.logsigmoid(_LOGIT), torch.nn.functional.logsigmoid(-_LOGIT)
    log_norm = torch.lgamma(first + second) - torch.lgamma(first) - torch.lgamma(second)
    # Density of logit(nu): Beta density times the Jacobian nu (1 - nu).
    log_density = first[..., None] * log_stick + second[..., None] * log_other + log_norm[..., None]
    expected = (log_density.exp() * rows_kl(stick, other)).sum(-1) * (_LOGIT[1] - _LOGIT[0])
    return expected + kl_divergence(Beta(first, second), Beta(torch.ones_like(first), torch.ones_like(first)))


def best_point() -> float:
    """Minimise the point estimate's loss."""
    result = minimize_scalar(
        lambda x: float(point_loss(torch.tensor(x, dtype=torch.float64))),
        bounds=(0.01, 0.99),
        method="bounded",
        options={"xatol": 1e-10},
    )
    return float(result.x)


def best_beta() -> tuple[float, float]:
    """Minimise the Beta distribution's loss over the logs of its two parameters."""

    def value_and_gradient(logs: Any) -> tuple[float, Any]:
        raw = torch.tensor(logs, dtype=torch.float64, requires_grad=True)
        loss = beta_loss(raw[0].exp(), raw[1].exp())
        loss.backward()
        assert raw.grad is not None
        return float(loss.detach()), raw.grad.numpy()

    result = minimize(value_and_gradient, [1.0, 1.0], jac=True, method="BFGS", options={"gtol": 1e-9})
    first, second = torch.tensor(result.x).exp().tolist()
    return first, second


def point_gradients(num: int = 197) -> Tensor:
    """Return d loss / d nu at evenly spread starting points in (0.01, 0.99)."""
    stick = torch.linspace(0.01, 0.99, num, dtype=torch.float64, requires_grad=True)
    return torch.autograd.grad(point_loss(stick).sum(), stick)[0]


def beta_gradients(num: int = 25, largest: float = 20.0) -> Tensor:
    """Return the gradient with respect to both Beta parameters at evenly spread starting points, `num*num 2`."""
    axis = torch.linspace(0.5, largest, num, dtype=torch.float64)
    first, second = (grid.reshape(-1).requires_grad_() for grid in torch.meshgrid(axis, axis, indexing="ij"))
    return torch.stack(torch.autograd.grad(beta_loss(first, second).sum(), (first, second)), dim=-1)


def run(settings: Settings) -> Results:
    """Compute the optima, the losses on a line and the statistics of the gradients over starting points."""
    point, beta = point_gradients().abs(), beta_gradients().abs()
    stick = torch.linspace(0.02, 0.98, settings["num_points"], dtype=torch.float64)
    optimum = best_beta()
    return {
        "point": best_point(),
        "beta": optimum,
        "beta_loss": _beta_loss_at(optimum),
        "paper_beta_loss": _beta_loss_at(PAPER_BETA),
        "small_gradients": {name: float((g < SMALL_GRADIENT).double().mean()) for name, g in _named(point, beta)},
        "median_gradient": {name: float(g.median()) for name, g in _named(point, beta)},
        "point_curve": torch.stack([stick, point_loss(stick)], -1).tolist(),
        "gradient_quantiles": {name: _quantiles(g, settings["num_points"]) for name, g in _named(point, beta)},
    }


def _named(point: Tensor, beta: Tensor) -> list[tuple[str, Tensor]]:
    return [("point estimate", point), ("Beta", beta.flatten())]


def _quantiles(gradients: Tensor, num: int) -> list[list[float]]:
    shares = torch.linspace(0.0, 1.0, num, dtype=torch.float64)
    return torch.stack([shares, gradients.quantile(shares).clamp_min(1e-6).log10()], -1).tolist()


def _beta_loss_at(parameters: tuple[float, float]) -> float:
    return float(beta_loss(*torch.tensor(parameters, dtype=torch.float64)))
