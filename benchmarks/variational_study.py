"""The paper's numerical study of q(top_sticks): a point estimate against a full Beta distribution.

    python -m benchmarks.variational_study [--out DIR]

Appendix "Justification for the variational distributions": K=2, top_concentration = row_concentration = 1, no
stickiness, q(rows) held at its assumed optimum. Both losses are computed by quadrature; the table prints the paper's
optima beside ours, and the figure shows the losses and the distribution of their gradients over starting points.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from scipy.optimize import minimize, minimize_scalar
from torch import Tensor
from torch.distributions import Beta, kl_divergence

# q*(mu_01), q*(mu_11), q*(mu_21): mean at the true chain, variance 0.01.
Q_ROWS = torch.tensor([[13.8, 9.2], [14.0, 6.0], [3.0, 12.0]], dtype=torch.float64)
PAPER_POINT = 0.493
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


@dataclass(frozen=True)
class Study:
    """What the study found.

    Attributes:
        point: optimal point estimate.
        beta: optimal Beta parameters.
        point_small: share of starting points with |gradient| below `SMALL_GRADIENT`, point estimate.
        beta_small: the same for either Beta parameter.
        point_median: median |gradient| of the point estimate.
        beta_median: median |gradient| of the Beta parameters.
    """

    point: float
    beta: tuple[float, float]
    point_small: float
    beta_small: float
    point_median: float
    beta_median: float

    @property
    def beta_mode(self) -> float:
        """Mode of the optimal Beta."""
        return (self.beta[0] - 1.0) / (sum(self.beta) - 2.0)


def run_study() -> Study:
    """Compute optima and gradient statistics."""
    point, beta = point_gradients().abs(), beta_gradients().abs()
    return Study(
        point=best_point(),
        beta=best_beta(),
        point_small=float((point < SMALL_GRADIENT).double().mean()),
        beta_small=float((beta < SMALL_GRADIENT).double().mean()),
        point_median=float(point.median()),
        beta_median=float(beta.median()),
    )


def table(study: Study) -> str:
    """Format the study beside the paper's numbers."""
    paper_mode = (PAPER_BETA[0] - 1.0) / (sum(PAPER_BETA) - 2.0)
    return "\n".join(
        [
            "| quantity | ours (quadrature) | paper |",
            "|---|---|---|",
            f"| optimal point estimate | {study.point:.3f} | {PAPER_POINT} |",
            f"| optimal Beta | ({study.beta[0]:.2f}, {study.beta[1]:.2f}) | {PAPER_BETA} |",
            f"| its loss by quadrature | {_beta_loss_at(study.beta):.4f} | {_beta_loss_at(PAPER_BETA):.4f} |",
            f"| its mode | {study.beta_mode:.3f} | {paper_mode:.3f} |",
            f"| gradients below {SMALL_GRADIENT}, point | {study.point_small:.0%} | histogram only |",
            f"| gradients below {SMALL_GRADIENT}, Beta | {study.beta_small:.0%} | histogram only |",
            f"| median gradient, point | {study.point_median:.3g} | |",
            f"| median gradient, Beta | {study.beta_median:.3g} | |",
        ]
    )


def _beta_loss_at(parameters: tuple[float, float]) -> float:
    return float(beta_loss(*torch.tensor(parameters, dtype=torch.float64)))


def draw(study: Study, path: Path) -> None:
    """Draw the paper's four panels: losses with their optima, and the distributions of the gradients."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(2, 2, figsize=(10, 7), layout="constrained")
    stick = torch.linspace(0.01, 0.99, 197, dtype=torch.float64)
    axes[0, 0].plot(stick, point_loss(stick))
    axes[0, 0].plot(study.point, float(point_loss(torch.tensor(study.point, dtype=torch.float64))), "r*", markersize=14)
    axes[0, 0].set(title="point estimate: loss", xlabel="top stick", yscale="log")
    axes[0, 1].hist(point_gradients().abs().clamp_min(1e-4).log10(), bins=40)
    axes[0, 1].set(title="point estimate: gradients", xlabel="log10 |gradient|")
    axis = torch.linspace(0.5, 20.0, 60, dtype=torch.float64)
    loss = beta_loss(*torch.meshgrid(axis, axis, indexing="xy"))
    contours = axes[1, 0].contourf(axis, axis, loss.clamp_max(30.0), levels=30)
    axes[1, 0].plot(*study.beta, "r*", markersize=14, label="quadrature")
    axes[1, 0].plot(*PAPER_BETA, "w+", markersize=12, label="paper")
    axes[1, 0].legend()
    axes[1, 0].set(title="Beta: loss", xlabel="first parameter", ylabel="second parameter")
    figure.colorbar(contours, ax=axes[1, 0])
    axes[1, 1].hist(beta_gradients().abs().clamp_min(1e-4).log10().flatten(), bins=40)
    axes[1, 1].set(title="Beta: gradients", xlabel="log10 |gradient|")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    """Run the study, print the table, write table and figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("outputs/variational_study"), help="where to write")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    study = run_study()
    (out / "table.md").write_text(table(study) + "\n")
    draw(study, out / "gradients.png")
    print(table(study))
    print(f"written to {out}")


if __name__ == "__main__":
    main()
