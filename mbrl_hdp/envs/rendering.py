"""Drawing that the tasks share: a canvas in world units, and strips that show context and belief over time."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image, ImageDraw

Color = tuple[int, int, int]
Frame = NDArray[np.uint8]
Point = Sequence[float] | NDArray[np.float64]

INK: Color = (40, 44, 52)
PAPER: Color = (255, 255, 255)
FAINT: Color = (214, 218, 224)
ACCENT: Color = (214, 69, 65)

# Distinct for colour-blind readers (Okabe and Ito); further contexts get hues by the golden angle.
_FIRST_COLORS: tuple[Color, ...] = (
    (0, 114, 178),
    (230, 159, 0),
    (0, 158, 115),
    (204, 121, 167),
    (86, 180, 233),
    (213, 94, 0),
    (240, 228, 66),
)
_GOLDEN_ANGLE = 0.381966
_OVERSAMPLING = 2
_ROW_HEIGHT = 16
_LABEL_WIDTH = 56
_WINDOW = 200


def context_color(context: int) -> Color:
    """Return the colour of a context, the same in every picture."""
    if context < len(_FIRST_COLORS):
        return _FIRST_COLORS[context]
    red, green, blue = colorsys.hsv_to_rgb((context * _GOLDEN_ANGLE) % 1.0, 0.55, 0.8)
    return (round(255 * red), round(255 * green), round(255 * blue))


class Canvas:
    """A picture in world units (x to the right, y up), drawn twice as large and reduced for smooth edges.

    Args:
        width: width in pixels.
        height: height in pixels.
        center: world point in the middle.
        scale: pixels per world unit.
        background: colour of the ground.

    Example:
        >>> canvas = Canvas(400, 300, center=(0.0, 0.0), scale=100.0)
        >>> canvas.circle((0.0, 0.0), radius=0.5, color=ACCENT)
        >>> canvas.frame().shape
        (300, 400, 3)
    """

    def __init__(
        self,
        width: int,
        height: int,
        center: tuple[float, float] = (0.0, 0.0),
        scale: float = 100.0,
        background: Color = PAPER,
    ) -> None:
        self.width, self.height, self.center, self.scale = width, height, center, scale
        self._image = Image.new("RGB", (width * _OVERSAMPLING, height * _OVERSAMPLING), background)
        self._draw = ImageDraw.Draw(self._image)

    def pixel(self, point: Point) -> tuple[float, float]:
        """Return the place of a world point on the enlarged picture."""
        column = 0.5 * self.width + (float(point[0]) - self.center[0]) * self.scale
        row = 0.5 * self.height - (float(point[1]) - self.center[1]) * self.scale
        return column * _OVERSAMPLING, row * _OVERSAMPLING

    def line(self, points: Sequence[Point], color: Color = INK, thickness: float = 2.0) -> None:
        """Draw a line through world points, `thickness` in pixels."""
        width = max(1, round(thickness * _OVERSAMPLING))
        self._draw.line([self.pixel(point) for point in points], fill=color, width=width, joint="curve")

    def polygon(self, points: Sequence[Point], color: Color = INK) -> None:
        """Fill a polygon of world points."""
        self._draw.polygon([self.pixel(point) for point in points], fill=color)

    def box(
        self,
        center: Point,
        length: float,
        width: float,
        heading: float = 0.0,
        color: Color = INK,
    ) -> None:
        """Fill a rectangle of `length` along `heading` (radians, anticlockwise from x) and `width` across."""
        along = 0.5 * length * np.array([np.cos(heading), np.sin(heading)])
        across = 0.5 * width * np.array([-np.sin(heading), np.cos(heading)])
        middle = np.asarray(center, dtype=np.float64)[:2]
        self.polygon(
            [middle + along + across, middle - along + across, middle - along - across, middle + along - across], color
        )

    def circle(self, center: Point, radius: float, color: Color = INK) -> None:
        """Fill a circle, `radius` in world units."""
        column, row = self.pixel(center)
        size = radius * self.scale * _OVERSAMPLING
        self._draw.ellipse([column - size, row - size, column + size, row + size], fill=color)

    def arrow(self, start: Point, end: Point, color: Color = ACCENT, thickness: float = 3.0) -> None:
        """Draw an arrow; nothing where it has no length."""
        tail, head = np.asarray(start, dtype=np.float64), np.asarray(end, dtype=np.float64)
        length = float(np.linalg.norm(head - tail))
        if length * self.scale < 1.0:
            return
        along = (head - tail) / length * (4.0 * thickness / self.scale)
        across = 0.5 * np.array([-along[1], along[0]])
        self.line([tail, head], color, thickness)
        self.polygon([head + along, head + across, head - across], color)

    def text(self, point: Point, words: str, color: Color = INK) -> None:
        """Write words, centred below a world point."""
        self._draw.text(self.pixel(point), words, fill=color, anchor="mt", font_size=11 * _OVERSAMPLING)

    def frame(self) -> Frame:
        """Return the picture, `height width 3`."""
        reduced = self._image.resize((self.width, self.height), Image.Resampling.LANCZOS)
        return np.asarray(reduced, dtype=np.uint8)


class ContextStrips:
    """Two strips below a picture: the true context of every step, and the belief where one was shown.

    A column of the belief strip is divided among the contexts by their probabilities, from the top down. The frame size
    never changes within an episode, whether or not a belief is given.

    Args:
        num_columns: steps that the strips span; None slides a window of the last 200.
    """

    def __init__(self, num_columns: int | None = None) -> None:
        self.num_columns = num_columns or _WINDOW
        self._contexts: list[int] = []
        self._beliefs: dict[int, NDArray[np.float64]] = {}

    def clear(self) -> None:
        """Forget the last episode."""
        self._contexts.clear()
        self._beliefs.clear()

    def add(self, context: int) -> None:
        """Add the context that acts on the coming step."""
        self._contexts.append(context)

    def show_belief(self, belief: ArrayLike) -> None:
        """Add the belief about the context that acts on the coming step, `K`; clipped and normalised."""
        weights = np.clip(np.asarray(belief, dtype=np.float64).reshape(-1), 0.0, None)
        self._beliefs[len(self._contexts) - 1] = weights / max(float(weights.sum()), 1e-12)

    def below(self, frame: Frame) -> Frame:
        """Return the picture with both strips below it."""
        strips = np.concatenate([self._row("context", frame.shape[1]), self._row("belief", frame.shape[1])])
        return np.concatenate([frame, strips])

    def _row(self, label: str, width: int) -> Frame:
        image = Image.new("RGB", (width, _ROW_HEIGHT + 4), PAPER)
        draw = ImageDraw.Draw(image)
        left = _LABEL_WIDTH if width >= 4 * _LABEL_WIDTH else 0
        if left:
            draw.text((4, 2), label, fill=INK, font_size=11)
        draw.rectangle([left, 2, width - 1, 1 + _ROW_HEIGHT], fill=FAINT)
        edges = np.linspace(left, width, self.num_columns + 1)
        first = max(0, len(self._contexts) - 1 - self.num_columns)  # the last one has not acted yet
        for column, step in enumerate(range(first, min(len(self._contexts), first + self.num_columns))):
            shares = self._shares(label, step)
            self._column(draw, (edges[column], edges[column + 1] - 1.0), shares)
        return np.asarray(image, dtype=np.uint8)

    def _shares(self, label: str, step: int) -> dict[int, float]:
        if label == "context":
            return {self._contexts[step]: 1.0}
        return dict(enumerate(self._beliefs.get(step, np.zeros(0))))

    @staticmethod
    def _column(draw: ImageDraw.ImageDraw, columns: tuple[float, float], shares: dict[int, float]) -> None:
        top = 2.0
        for context, share in shares.items():
            bottom = top + share * _ROW_HEIGHT
            if round(bottom) > round(top):
                box = [round(columns[0]), round(top), max(round(columns[1]), round(columns[0])), round(bottom) - 1]
                draw.rectangle(box, fill=context_color(context))
            top = bottom
