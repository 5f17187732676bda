"""How long contexts stay, as a histogram of the labels with what the model expects beside it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int
from matplotlib.figure import Figure

from mbrl_hdp.inference.duration import Phases, labelled_stays, split_phases
from mbrl_hdp.inference.duration_fit import RUNNING
from mbrl_hdp.inference.model import ContextModel
from mbrl_hdp.report.palette import context_colours

_MOST_BINS, _MOST_POINTS = 40, 80


@dataclass(frozen=True)
class StayFit:
    """Stays in one context, counted in labels and as the model has them.

    Attributes:
        steps: numbers of steps n, increasing from 0.
        survival: probability under the model that a stay lasts longer than n steps.
        edges: bin b holds the stays that ended after edges[b] + 1 to edges[b + 1] steps.
        counted: stays in the labels that ended in each bin.
        expected: how many the model expects to end in each bin, given how many lasted so long.
    """

    steps: list[int]
    survival: list[float]
    edges: list[int]
    counted: list[int]
    expected: list[float]


def stay_fits(model: ContextModel, labels: Int[np.ndarray, "N T"]) -> list[StayFit]:
    """Compare the stays in labels with a model, context by context.

    Stays that began before their episode did are left out where the model says that there are such.
    """
    stays = labelled_stays(labels)
    has_first = model.report.duration.get("start") != RUNNING
    found = []
    for context, phases in enumerate(context_phases(model)):
        own = stays.of(context, has_first)
        last = int(max(own.lengths.max(initial=1), 2))
        survival = phases.survival(last)
        hazard = 1.0 - survival[1:] / np.maximum(survival[:-1], 1e-300)
        ended = np.bincount(own.lengths[own.is_ended], minlength=last + 1)[1:]
        # A stay that was cut after n steps was seen not to end after n - 1 of them; nothing is known of the n-th.
        seen = np.where(own.is_ended, own.lengths, own.lengths - 1)
        at_risk = (seen[:, None] >= np.arange(1, last + 1)).sum(0) if len(seen) else np.zeros(last)
        width = -(-last // _MOST_BINS)
        begins = np.arange(0, last, width)
        shown = np.unique(np.linspace(0, last, min(last + 1, _MOST_POINTS)).astype(int))
        found.append(
            StayFit(
                shown.tolist(),
                survival[shown].tolist(),
                [*begins.tolist(), int(begins[-1]) + width],
                np.add.reduceat(ended, begins).tolist(),
                np.add.reduceat(at_risk * hazard, begins).tolist(),
            )
        )
    return found


def context_phases(model: ContextModel) -> list[Phases]:
    """Return the phases of every context; a single one where nothing else was learned."""
    if model.phases is not None:
        return split_phases(model.phases)
    stay = np.diag(model.transition)
    return [Phases(np.array([share]), np.zeros(1), np.array([1.0 - share])) for share in stay]


def stays_figure(fits: list[StayFit]) -> Figure:
    """Draw the histograms, one panel a context, with what the model expects as a line over each."""
    columns = min(len(fits), 3)
    rows = -(-len(fits) // columns)
    figure = Figure(figsize=(4.2 * columns, 3.0 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).reshape(-1)
    for ax in axes[len(fits) :]:
        ax.set_axis_off()
    for number, (ax, fit, colour) in enumerate(zip(axes, fits, context_colours(len(fits)), strict=False)):
        ax.stairs(fit.counted, [edge + 0.5 for edge in fit.edges], fill=True, color=colour, alpha=0.6, label="labels")
        ax.stairs(fit.expected, [edge + 0.5 for edge in fit.edges], color="black", linewidth=1.2, label="model expects")
        ax.set(title=f"context {number}", xlabel="steps of a stay", ylabel="stays that ended")
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False)
    return figure
