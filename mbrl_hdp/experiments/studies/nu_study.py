"""`nu_study`: the paper's numerical study of q(top_sticks): is a point estimate enough?"""

from __future__ import annotations

from collections.abc import Sequence

from mbrl_hdp.experiments.studies.drawings import CurvePanel, Drawing
from mbrl_hdp.experiments.studies.nu_cell import PAPER_BETA, SMALL_GRADIENT, run
from mbrl_hdp.experiments.studies.study import CellRecord, Gate, Page, Settings, Study, table

PAPER_POINT = 0.493
# The paper gives three digits of the point estimate.
_DIGITS = 5e-4


def cells(seeds: Sequence[int] | None, is_quick: bool) -> list[Settings]:
    """Return the one cell: everything is computed by quadrature, a seed changes nothing."""
    return [{"num_points": 25 if is_quick else 97, "seed": seed} for seed in seeds or (100,)]


def page(records: list[CellRecord]) -> Page:
    """Put our optima beside the paper's."""
    found = records[0].results
    paper_mode = (PAPER_BETA[0] - 1.0) / (sum(PAPER_BETA) - 2.0)
    mode = (found["beta"][0] - 1.0) / (sum(found["beta"]) - 2.0)
    small, middle = found["small_gradients"], found["median_gradient"]
    rows = [
        ["optimal point estimate", f"{found['point']:.4f}", f"{PAPER_POINT}"],
        ["optimal Beta", f"({found['beta'][0]:.2f}, {found['beta'][1]:.2f})", f"{PAPER_BETA}"],
        ["loss at that Beta, by quadrature", f"{found['beta_loss']:.4f}", f"{found['paper_beta_loss']:.4f}"],
        ["mode of that Beta", f"{mode:.3f}", f"{paper_mode:.3f}"],
        *([f"gradients below {SMALL_GRADIENT}, {name}", f"{small[name]:.0%}", "histogram only"] for name in small),
        *([f"median gradient, {name}", f"{middle[name]:.3g}", ""] for name in middle),
    ]
    body = (
        'Appendix "Justification for the variational distributions": two contexts, top_concentration = '
        "row_concentration = 1, no stickiness, q(rows) held at its assumed optimum. The paper minimises the expected "
        "KL divergence over q(nu), once as a point and once as a Beta distribution. Our losses are integrals by "
        "quadrature. The point estimate agrees. The paper's Beta is not the minimum of the loss as printed, though "
        "its loss is close; both are unimodal with a mode near the point estimate, which is what the paper argues "
        "from. Gradients over evenly spread starting points: those of the Beta's parameters are much smaller, as the "
        "paper says.\n\n"
    )
    panels = [
        CurvePanel("loss of the point estimate", "top stick", "loss", [("point estimate", found["point_curve"])]),
        CurvePanel(
            "sizes of the gradients",
            "share of the starting points",
            "log10 of the gradient",
            list(found["gradient_quantiles"].items()),
        ),
    ]
    drawing = Drawing(
        "nu_study", "Loss of the point estimate, and how large gradients are over starting points.", panels
    )
    return Page(body + table(("quantity", "ours (quadrature)", "paper"), rows), _gates(found["point"]), [drawing])


def _gates(point: float) -> list[Gate]:
    is_same = abs(point - PAPER_POINT) <= _DIGITS
    return [Gate(f"point estimate equal to the paper's {PAPER_POINT} to its digits", f"{point:.4f}", is_same)]


def headline(records: list[CellRecord]) -> str:
    """Return both optima beside the paper's."""
    found = records[0].results
    ours = ", ".join(f"{value:.2f}" for value in found["beta"])
    return f"point {found['point']:.3f} / {PAPER_POINT}, Beta({ours}) / Beta{PAPER_BETA}"


STUDY = Study("nu_study", "A point estimate of the shared weights", cells, run, page, dict, headline=headline)
