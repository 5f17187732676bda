"""What the upper half of an animation shows: the cart-pole, the environment's own pictures, or the observations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from jaxtyping import Float, Int, UInt8
from matplotlib.patches import Circle, FancyArrow, Rectangle

from mbrl_hdp.experiments.episodes import Record

INK, GREY, POLE = "#282C34", "#8A8F98", "#D55E00"
_REACH, _ARROW = 1.9, 0.75
_CART_WIDTH, _CART_HEIGHT = 0.5, 0.25
_ASKED_HEIGHT, _ACTS_HEIGHT = -0.42, -0.62
_MAX_COLUMNS = 6


class Scene(Protocol):
    """Draws one moment of an episode."""

    def begin(self, ax: Any, record: Record) -> None:
        """Set the axes up."""

    def show(self, step: int) -> None:
        """Draw observation `step`, 0 to the episode's length."""


class CartPoleScene:
    """Cart and pole at the observed states; below them the push of the agent and the one that acts.

    The view goes with the cart, since good controllers let it run far.

    Args:
        factors: factor on the push in every true context (the paper's chi).
        colours: colour of every true context.
        pole_length: metres.
    """

    def __init__(self, factors: Sequence[float], colours: Sequence[Any], pole_length: float) -> None:
        self.factors, self.colours, self.pole_length = factors, colours, pole_length

    def begin(self, ax: Any, record: Record) -> None:
        """Draw the track, the cart, the pole and room for the two arrows."""
        self.ax, self.record = ax, record
        ax.set(xlim=(-_REACH, _REACH), ylim=(-0.8, self.pole_length + 0.32), aspect="equal")
        ax.axis("off")
        ax.plot([-_REACH, _REACH], [-_CART_HEIGHT / 2] * 2, color=INK, linewidth=1.2, zorder=1)
        self.marks = [ax.text(0, 0, "", ha="center", va="top", fontsize=7, color=GREY) for _ in range(9)]
        self.ticks = [ax.plot([0, 0], [0, 0], color=INK, linewidth=1.0, zorder=1)[0] for _ in self.marks]
        ax.add_patch(Rectangle((-_CART_WIDTH / 2, -_CART_HEIGHT / 2), _CART_WIDTH, _CART_HEIGHT, color=INK, zorder=2))
        (self.pole,) = ax.plot([], [], color=POLE, linewidth=6, solid_capstyle="round", zorder=3)
        ax.add_patch(Circle((0, 0), 0.035, color="white", zorder=4))
        for height, words in ((_ASKED_HEIGHT, "push asked for"), (_ACTS_HEIGHT, "push that acts")):
            ax.text(-_REACH, height, words, va="center", ha="left", fontsize=9, color=INK)
            ax.plot([0, 0], [height - 0.07, height + 0.07], color=GREY, linewidth=1.0)
        self.arrows: list[Any] = []

    def show(self, step: int) -> None:
        """Draw the state at `step` and the push of the step that follows."""
        episode = self.record.episode
        place, angle = float(episode.obs[step, 0]), float(episode.obs[step, 2])
        self.pole.set_data([0, -self.pole_length * np.sin(angle)], [0, self.pole_length * np.cos(angle)])
        first = int(np.ceil(2 * (place - _REACH)))
        for number, (mark, tick) in enumerate(zip(self.marks, self.ticks, strict=True)):
            metres = (first + number) / 2
            where, ground = metres - place, -_CART_HEIGHT / 2
            is_shown = where < _REACH
            tick.set_data([where, where], [ground, ground - (0.06 if metres == round(metres) else 0.03)])
            mark.set(position=(where, ground - 0.07), text=f"{metres:g} m" if metres == round(metres) else "")
            tick.set_visible(is_shown)
            mark.set_visible(is_shown)
        for arrow in self.arrows:
            arrow.remove()
        self.arrows = []
        if step < len(episode.obs) - 1 and episode.act is not None:
            asked = float(np.clip(episode.act[step, 0], -1.0, 1.0))
            self._arrow(_ASKED_HEIGHT, asked, GREY)
            if episode.context is not None:
                context = int(episode.context[step])
                self._arrow(_ACTS_HEIGHT, self.factors[context] * asked, self.colours[context])

    def _arrow(self, height: float, size: float, colour: Any) -> None:
        if abs(size) > 0.02:
            head = min(0.12, _ARROW * abs(size))
            arrow = FancyArrow(
                0, height, _ARROW * size, 0, width=0.05, head_width=0.13, head_length=head, length_includes_head=True
            )
            arrow.set_color(colour)
            self.arrows.append(self.ax.add_patch(arrow))


class PictureScene:
    """The environment's own pictures, one per observation, `L+1 height width 3`."""

    def __init__(self, pictures: Sequence[UInt8[np.ndarray, "height width 3"]]) -> None:
        self.pictures = pictures

    def begin(self, ax: Any, record: Record) -> None:  # noqa: ARG002 - the pictures have it all
        """Show the first picture."""
        ax.axis("off")
        self.image = ax.imshow(self.pictures[0])

    def show(self, step: int) -> None:
        """Show the picture of an observation."""
        self.image.set_data(self.pictures[step])


class TraceScene:
    """The first observations over time, each in units of its own spread, up to now."""

    def begin(self, ax: Any, record: Record) -> None:
        """Draw all of the traces; what lies ahead stays hidden."""
        obs: Float[np.ndarray, "T S"] = record.episode.obs
        spread = obs.std(0)
        self.scaled = (obs - obs.mean(0)) / np.where(spread > 0, spread, 1.0)
        styles = ("-", "--", ":", "-.")
        self.lines = [
            ax.plot([], [], styles[column % 4], color=str(0.7 * column / _MAX_COLUMNS), label=f"obs_{column}")[0]
            for column in range(min(obs.shape[1], _MAX_COLUMNS))
        ]
        low, high = float(self.scaled.min()), float(self.scaled.max())
        room = 0.12 * (high - low)  # for the legend, above the curves
        ax.set(xlim=(0, len(obs) - 1), ylim=(low - 0.1, high + 0.1 + room), ylabel="observations\n(scaled)")
        ax.tick_params(labelbottom=False)
        ax.legend(loc="upper left", fontsize=8, ncols=3, frameon=False)
        ax.spines[["top", "right"]].set_visible(False)

    def show(self, step: int) -> None:
        """Draw the traces up to a step."""
        times: Int[np.ndarray, " n"] = np.arange(step + 1)
        for column, line in enumerate(self.lines):
            line.set_data(times, self.scaled[: step + 1, column])
