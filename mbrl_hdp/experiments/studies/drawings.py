"""What the figures of studies show, as plain data; `mbrl_hdp.report.study_figures` draws it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Numbers = Sequence[float]


@dataclass(frozen=True)
class ChainPanel:
    """A learned chain, as in the paper's Figure 1: initial, transition and stationary probabilities.

    Attributes:
        title: heading of the panel.
        initial: first-context probabilities, `K`.
        transition: next-context probabilities, `K K`.
        stationary: long-run shares, `K`.
    """

    title: str
    initial: Numbers
    transition: Sequence[Numbers]
    stationary: Numbers


@dataclass(frozen=True)
class CoursePanel:
    """True and learned contexts of one episode, as in the paper's Figure 2.

    Attributes:
        title: heading of the panel.
        truth: true context of every step, `T`.
        labels: learned context of every step, `T`.
        to_true: true context that each learned one was matched to, -1 for none; matched contexts share a colour.
    """

    title: str
    truth: Sequence[int]
    labels: Sequence[int]
    to_true: Sequence[int] = ()


@dataclass(frozen=True)
class BeliefPanel:
    """What an agent believed beside the truth, step by step, as in the last panel of the paper's Figure 3.

    Attributes:
        title: heading of the panel.
        truth: true context of every step, `T`.
        belief: probability of every context at every step, `T K`.
    """

    title: str
    truth: Sequence[int]
    belief: Sequence[Numbers]


@dataclass(frozen=True)
class CurvePanel:
    """Lines over a common axis.

    Attributes:
        title: heading of the panel.
        x_label: name of the horizontal axis.
        y_label: name of the vertical axis.
        lines: points (x, y) by name; several lines of one name are drawn alike.
        levels: horizontal reference lines by name.
        has_log_x: whether the horizontal axis is logarithmic.
    """

    title: str
    x_label: str
    y_label: str
    lines: Sequence[tuple[str, Sequence[tuple[float, float]]]]
    levels: Sequence[tuple[str, float]] = ()
    has_log_x: bool = False


Panel = ChainPanel | CoursePanel | BeliefPanel | CurvePanel


@dataclass(frozen=True)
class Drawing:
    """One figure of a page.

    Attributes:
        name: name of its file, without ending.
        caption: what it shows.
        panels: side by side.
    """

    name: str
    caption: str
    panels: Sequence[Panel]


def chain_panel(title: str, results: Mapping[str, Any]) -> ChainPanel:
    """Return the panel of a fit's chain over all slots."""
    return ChainPanel(title, **results["chain"])


def course_panel(title: str, results: Mapping[str, Any]) -> CoursePanel:
    """Return the panel of a fit's first held-out episode."""
    return CoursePanel(title, **results["course"], to_true=results["to_true"])
