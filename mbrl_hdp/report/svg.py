"""Small charts as SVG: lines with bands, points with intervals. Colours and fonts come from the page's style sheet."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape
from matplotlib.ticker import MaxNLocator

_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 14, 12, 40
# Wider charts shrink on the screen of a telephone, and their letters grow in turn.
_NARROW = 400
_ROOM = 0.06

Numbers = Sequence[float | None]


@dataclass(frozen=True)
class Line:
    """One curve.

    Attributes:
        name: for the legend; empty: not in it.
        x: places.
        y: values; None or NaN leaves a point out.
        colour: a CSS colour.
        low: lower edge of a band, or of the points' intervals.
        high: upper edge likewise.
        style: `line`, `step` (constant until the next place), `points` or `dashed`.
        width: of the stroke.
    """

    name: str
    x: Sequence[float]
    y: Numbers
    colour: str
    low: Numbers | None = None
    high: Numbers | None = None
    style: str = "line"
    width: float = 1.8


@dataclass(frozen=True)
class Axes:
    """What is around the curves; a range of None is chosen from them."""

    x_label: str
    y_label: str
    title: str
    width: int = 340
    height: int = 230
    x_range: tuple[float, float] | None = None
    y_range: tuple[float, float] | None = None
    whole_x: bool = False
    whole_y: bool = False


@dataclass(frozen=True)
class _Frame:
    """Maps values to pixels."""

    axes: Axes
    x: tuple[float, float]
    y: tuple[float, float]

    def place(self, x: float, y: float) -> tuple[float, float]:
        across = self.axes.width - _LEFT - _RIGHT
        down = self.axes.height - _TOP - _BOTTOM
        left = _LEFT + across * (x - self.x[0]) / (self.x[1] - self.x[0])
        top = _TOP + down * (self.y[1] - y) / (self.y[1] - self.y[0])
        return round(left, 1), round(top, 1)


def chart(lines: Sequence[Line], axes: Axes) -> Markup:
    """Draw curves in one frame; the text of the page says the rest."""
    frame = _Frame(
        axes,
        axes.x_range or _range([value for line in lines for value in line.x], 0.0),
        axes.y_range or _range([v for line in lines for part in (line.y, line.low, line.high) for v in part or ()]),
    )
    parts = [_grid(frame), *(_drawn(line, frame) for line in lines)]
    size = f'viewBox="0 0 {axes.width} {axes.height}" width="{axes.width}" height="{axes.height}"'
    kind = "chart wide" if axes.width > _NARROW else "chart"
    head = Markup(f'<svg class="{kind}" {size} role="img" aria-label="{escape(axes.title)}">')
    return head + Markup("").join(parts) + Markup("</svg>")


def _range(values: Sequence[float | None], room: float = _ROOM) -> tuple[float, float]:
    finite = [value for value in values if value is not None and math.isfinite(value)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    if low == high:
        return low - 0.5, high + 0.5
    return low - room * (high - low), high + room * (high - low)


def _grid(frame: _Frame) -> Markup:
    axes, parts = frame.axes, list[Markup]()
    right, bottom = axes.width - _RIGHT, axes.height - _BOTTOM
    for value in _ticks(frame.y, axes.height / 45, axes.whole_y):
        _, y = frame.place(frame.x[0], value)
        parts.append(Markup('<line class="grid" x1="{}" x2="{}" y1="{}" y2="{}"/>').format(_LEFT, right, y, y))
        parts.append(_text(_LEFT - 6, y + 4, _short(value), "end"))
    for value in _ticks(frame.x, axes.width / 70, axes.whole_x):
        x, _ = frame.place(value, frame.y[0])
        parts.append(_text(x, bottom + 15, _short(value), "middle"))
    parts.append(_text((_LEFT + right) / 2, axes.height - 6, axes.x_label, "middle", "label"))
    turned = Markup('<g transform="translate(12 {}) rotate(-90)">').format(round((_TOP + bottom) / 2, 1))
    parts.append(turned + _text(0, 0, axes.y_label, "middle", "label") + Markup("</g>"))
    return Markup("").join(parts)


def _ticks(limits: tuple[float, float], most: float, whole: bool = False) -> list[float]:
    values = MaxNLocator(max(2, int(most)), integer=whole).tick_values(*limits)
    slack = 1e-9 * (limits[1] - limits[0])
    return [float(value) for value in values if limits[0] - slack <= value <= limits[1] + slack]


def _short(value: float) -> str:
    return f"{value:.4g}" if abs(value) > 1e-12 else "0"


def _text(x: float, y: float, words: str, anchor: str, kind: str = "tick") -> Markup:
    return Markup('<text class="{}" x="{}" y="{}" text-anchor="{}">{}</text>').format(
        kind, round(x, 1), round(y, 1), anchor, words
    )


def _drawn(line: Line, frame: _Frame) -> Markup:
    points = [(x, float(y)) for x, y in zip(line.x, line.y, strict=True) if y is not None and math.isfinite(y)]
    if not points:
        return Markup("")
    parts = [_interval(line, frame)] if line.low is not None and line.high is not None else []
    if line.style == "points" or len(points) == 1:
        parts += [_dot(frame.place(x, y), line.colour) for x, y in points]
    if line.style != "points":
        if line.style == "step":
            points = [p for a, b in itertools.pairwise(points) for p in (a, (b[0], a[1]))] + points[-1:]
        path = "M" + "L".join("{} {}".format(*frame.place(x, y)) for x, y in points)
        dash = Markup(' stroke-dasharray="5 4"') if line.style == "dashed" else Markup("")
        parts.append(
            Markup('<path class="line" d="{}" stroke="{}" stroke-width="{}"{}/>').format(
                path, line.colour, line.width, dash
            )
        )
    return Markup("").join(parts)


def _interval(line: Line, frame: _Frame) -> Markup:
    assert line.low is not None
    assert line.high is not None
    edges = [
        (x, low, high)
        for x, low, high in zip(line.x, line.low, line.high, strict=True)
        if low is not None and high is not None and math.isfinite(low) and math.isfinite(high)
    ]
    if line.style == "points" or len(edges) == 1:
        bars = ["M{} {}L{} {}".format(*frame.place(x, low), *frame.place(x, high)) for x, low, high in edges]
        return Markup('<path class="bar" d="{}" stroke="{}"/>').format("".join(bars), line.colour)
    around = [(x, low) for x, low, _ in edges] + [(x, high) for x, _, high in reversed(edges)]
    path = "M" + "L".join("{} {}".format(*frame.place(x, y)) for x, y in around) + "Z" if around else ""
    return Markup('<path class="band" d="{}" fill="{}"/>').format(path, line.colour)


def _dot(place: tuple[float, float], colour: str) -> Markup:
    return Markup('<circle class="dot" cx="{}" cy="{}" r="3.5" fill="{}"/>').format(*place, colour)
