"""An episode as an animated GIF: what happens, and below it the true contexts beside what the agent believed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from PIL import Image

from mbrl_hdp.data.atomic import atomic_path
from mbrl_hdp.envs.cartpole import CartPoleSwingUp
from mbrl_hdp.errors import ConfigError, DataError
from mbrl_hdp.experiments.episodes import Record, run_episode
from mbrl_hdp.experiments.loop import Run
from mbrl_hdp.experiments.runs import load_run
from mbrl_hdp.experiments.tasks import make_env
from mbrl_hdp.inference.scoring import align
from mbrl_hdp.report.palette import context_colours
from mbrl_hdp.report.scenes import INK, CartPoleScene, PictureScene, Scene, TraceScene
from mbrl_hdp.seeding import sub_seed

_AHEAD = "#E6E8EB"
_FRAME_MS, _LAST_FRAME_MS, _MAX_FRAMES = 80, 2500, 110
_SIZE, _DPI = (6.6, 5.2), 100
_NUM_COLOURS, _NEARLY_WHITE, _ALARM_STEPS = 128, 248, 4


@dataclass(frozen=True)
class ContextTimeline:
    """The contexts of an episode, true and inferred, in one numbering: that of the true contexts where known.

    Learned contexts that match no true one are numbered after them.

    Attributes:
        truth: context that acted on every step, None where the environment does not report it.
        belief: distribution of the context that acts next at every observation, None for agents without one.
        likely: most likely context of every step once its outcome is seen, None likewise.
        num_contexts: size of the numbering.
    """

    truth: Int[np.ndarray, " L"] | None
    belief: Float[np.ndarray, "L1 C"] | None
    likely: Int[np.ndarray, " L"] | None
    num_contexts: int

    @property
    def switches(self) -> Int[np.ndarray, " n"]:
        """Steps on which another true context acts than on the step before."""
        return np.zeros(0, dtype=np.int64) if self.truth is None else np.flatnonzero(np.diff(self.truth)) + 1


def strips_of(record: Record, slots: Int[np.ndarray, " k"] | None = None) -> ContextTimeline:
    """Bring truth, belief and most likely contexts of an episode into one numbering.

    Args:
        record: the episode with what the agent believed.
        slots: columns of the belief that stand for contexts 0, 1, ... (a model's `slots`); all of them by default.
    """
    truth, belief, likely = record.episode.context, record.beliefs, record.labels
    num_true = 0 if truth is None else int(truth.max()) + 1
    if belief is not None and not belief.shape[1]:
        belief = None  # an agent without information
    elif belief is not None and slots is not None:
        belief = belief[:, slots]
    num_learned = max(0 if belief is None else belief.shape[1], 0 if likely is None else int(likely.max()) + 1)
    number = np.arange(num_learned)
    if truth is not None and likely is not None:
        number = np.full(num_learned, -1)
        matched = align(likely, truth).to_true
        number[: len(matched)] = matched
        number[number < 0] = num_true + np.arange((number < 0).sum())
    size = max([num_true, *(number + 1)])
    if belief is not None:
        wide = np.zeros((len(belief), size))
        wide[:, number[: belief.shape[1]]] = belief
        belief = wide
    return ContextTimeline(truth, belief, None if likely is None else number[likely], size)


def animate_run(
    folder: str | Path,
    path: str | Path | None = None,
    episode: int = 0,
    is_trusted: bool = False,
    seed: int | None = None,
) -> tuple[Path, Record]:
    """Run an evaluation episode from a run's last checkpoint and write it as a GIF.

    Args:
        folder: run directory of `mbrl-hdp train`.
        path: file to write; `rollout.gif` in the run directory by default.
        episode: which of the run's evaluation episodes.
        is_trusted: let the run import the modules that its settings name.
        seed: seed of the evaluation episodes; the run's own by default.

    Returns:
        The file and the episode that it shows.

    Raises:
        CheckpointError: if there is no run or no checkpoint.

    Example:
        >>> animate_run("outputs/cartpole_hard/c_cem/2022-01-01_00-00-00_seed0", "rollout.gif")
    """
    run = load_run(Path(folder), is_trusted)
    record, pictures = _play(run, episode, run.config.seed if seed is None else seed)
    strips = strips_of(record, None if run.model is None or record.labels is None else run.model.slots.numpy())
    names = _context_names(run.task.env)
    scene = _scene(run.task.env, strips, pictures)
    run.task.env.close()
    target = Path(folder) / "rollout.gif" if path is None else Path(path)
    title = f"{run.config.agent.name.upper().replace('_', '-')} on {run.config.env.name}"
    return animate_episode(record, strips, target, scene=scene, names=names, title=title), record


def _drawing_env(run: Run) -> Any:
    """Return an environment that draws pictures, where there is one and we do not draw ourselves; else the run's own.

    An environment of a user may inherit the names of render modes and still not take the argument.
    """
    env = run.task.env
    if isinstance(env.unwrapped, CartPoleSwingUp) or "rgb_array" not in env.metadata.get("render_modes", []):
        return env
    try:
        return make_env(run.config.env.id, {**run.config.env.kwargs, "render_mode": "rgb_array"})
    except ConfigError:
        return env


def _picture(env: Any) -> Any:
    return env.unwrapped.render() if getattr(env.unwrapped, "render_mode", None) == "rgb_array" else None


def _play(run: Run, number: int, seed: int) -> tuple[Record, list[Any]]:
    """Run the episode, with pictures where the environment can draw and we cannot."""
    pictures = list[Any]()
    if not run.agent.is_ready:
        raise DataError(
            "the run's agent has not learned anything yet; continue it first with `mbrl-hdp train resume=RUN`"
        )
    env = _drawing_env(run)

    def act(packed: Any) -> Any:
        pictures.append(_picture(env))
        return run.agent.act(packed, explore=False)

    run.agent.begin_episode()
    record = run_episode(env, act, run.tracker, sub_seed(seed, "evaluate", number))
    own = run.agent.labels_of(len(record.episode.obs) - 1)
    pictures.append(_picture(env))
    return record if own is None else replace(record, labels=own), pictures


def _scene(env: Any, strips: ContextTimeline, pictures: list[Any]) -> Scene:
    if isinstance(env.unwrapped, CartPoleSwingUp):
        contexts = env.get_wrapper_attr("contexts")
        factors = [float(context.attributes.get("actuation", env.unwrapped.physics.actuation)) for context in contexts]
        return CartPoleScene(factors, context_colours(strips.num_contexts), env.unwrapped.physics.pole_length)
    if all(isinstance(picture, np.ndarray) for picture in pictures):
        return PictureScene(pictures)
    return TraceScene()


def _context_names(env: Any) -> list[str]:
    try:
        contexts = env.get_wrapper_attr("contexts")
    except AttributeError:
        return []
    return [f"context {number}" + (f": {c.name}" if c.name else "") for number, c in enumerate(contexts)]


def animate_episode(
    record: Record,
    strips: ContextTimeline,
    path: str | Path,
    *,
    scene: Scene | None = None,
    names: Sequence[str] = (),
    title: str = "",
    frame_ms: int = _FRAME_MS,
    max_frames: int = _MAX_FRAMES,
) -> Path:
    """Write an episode as an animated GIF.

    Args:
        record: the episode.
        strips: its contexts (`strips_of`).
        path: file to write.
        scene: what the upper half shows; the observations over time by default.
        names: what the true contexts are called.
        title: written above.
        frame_ms: milliseconds a frame is shown.
        max_frames: longer episodes show every second, third, ... step.

    Example:
        >>> animate_episode(record, strips_of(record, model.slots.numpy()), "episode.gif")
    """
    if frame_ms < 20 or frame_ms % 10:
        raise ConfigError(f"frame_ms must be a multiple of 10 from 20 on (GIF's own units), got {frame_ms}")
    length = len(record.episode.obs) - 1
    canvas = _Canvas(record, strips, scene or TraceScene(), names, title)
    steps = [*range(0, length, -(-length // max_frames)), length]
    frames = [canvas.frame(step) for step in steps]
    # One palette for all frames, from the last one, which shows every colour: nothing flickers and the file is small.
    palette = frames[-1].quantize(_NUM_COLOURS, method=Image.Quantize.MEDIANCUT)
    entries = palette.getpalette() or []
    palette.putpalette([255 if entry > _NEARLY_WHITE else entry for entry in entries])
    small = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    times = [frame_ms] * (len(small) - 1) + [_LAST_FRAME_MS]
    with atomic_path(Path(path)) as temporary:
        small[0].save(temporary, format="GIF", save_all=True, append_images=small[1:], duration=times, loop=0)
    return Path(path)


class _Canvas:
    """The figure that every frame is drawn on: set up once, then moved on."""

    def __init__(self, record: Record, strips: ContextTimeline, scene: Scene, names: Sequence[str], title: str) -> None:
        self.record, self.scene = record, scene
        self.length = len(record.episode.obs) - 1
        self.returns = np.concatenate([[0.0], np.cumsum(np.zeros(self.length) if record.episode.reward is None
                                                        else record.episode.reward)])  # fmt: skip
        figure = Figure(figsize=_SIZE, dpi=_DPI, layout="constrained")
        self.canvas = FigureCanvasAgg(figure)
        rows = _rows(strips)
        heights = [0.75, *(4.4 if name == _SCENE else 0.9 if name == _BELIEF else 0.5 for name in (_SCENE, *rows))]
        header, *axes = figure.subplots(2 + len(rows), 1, height_ratios=heights, squeeze=False)[:, 0]
        scene.begin(axes[0], record)
        # A row of its own, as wide as the figure: a picture can be too narrow for the words above it.
        header.axis("off")
        header.text(0.0, 1.0, title, ha="left", va="top", fontsize=11, color=INK)
        self.clock = header.text(1.0, 1.0, "", ha="right", va="top", fontsize=10, color=INK)
        self.alarm = header.text(1.0, 0.0, "", ha="right", va="bottom", fontsize=11, fontweight="bold")
        self.strips, colours = strips, context_colours(strips.num_contexts)
        self.colours = colours
        self.covers = [
            self._draw_row(ax, name, rows[name], colours, strips) for ax, name in zip(axes[1:], rows, strict=True)
        ]
        if rows:
            axes[-1].set_xlabel("step", fontsize=9)
        figure.legend(handles=_handles(strips, colours, names), loc="outside lower center", ncols=3, frameon=False,
                      fontsize=9)  # fmt: skip
        # The layout is found once: finding it anew for every frame takes longer than drawing.
        scene.show(0)
        figure.draw_without_rendering()
        figure.set_layout_engine("none")

    def _draw_row(
        self, ax: Any, name: str, values: Any, colours: list[Any], strips: ContextTimeline
    ) -> tuple[Any, int]:
        edges = np.repeat(np.arange(self.length + 1), 2)[1:-1]
        if values.ndim == 1:
            values = np.eye(strips.num_contexts)[values]
        ax.stackplot(edges, np.repeat(values[: self.length], 2, axis=0).T, colors=colours, linewidth=0)
        ax.vlines(strips.switches, 0, 1, color=INK, linewidth=1.2)
        ax.set(xlim=(0, self.length), ylim=(0, 1))
        ax.set_yticks([])
        ax.set_ylabel(name, rotation=0, ha="right", va="center", fontsize=9, color=INK)
        ax.tick_params(labelsize=8, labelbottom=name == list(_rows(strips))[-1])
        cover = ax.add_patch(Rectangle((0, -0.1), self.length, 1.2, color=_AHEAD, linewidth=0, zorder=5))
        # The most likely context is inferred from the outcome of a step: that row lags the other two by one step.
        return cover, 0 if name == _LIKELY else 1

    def frame(self, step: int) -> Image.Image:
        """Draw one moment."""
        self.scene.show(step)
        for cover, lead in self.covers:
            cover.set_x(min(step + lead, self.length))
        self.clock.set_text(f"step {step} of {self.length}    return so far {self.returns[step]:6.1f}")
        self._tell_switch(step)
        self.canvas.draw()
        return Image.fromarray(np.asarray(self.canvas.buffer_rgba())[..., :3])

    def _tell_switch(self, step: int) -> None:
        """Highlight a switch for a moment."""
        is_recent = (self.strips.switches <= step) & (step < self.strips.switches + _ALARM_STEPS)
        self.alarm.set_text("the context has switched" if is_recent.any() else "")
        if is_recent.any() and self.strips.truth is not None:
            self.alarm.set_color(self.colours[self.strips.truth[min(step, self.length - 1)]])


_SCENE = ""
_TRUTH, _BELIEF, _LIKELY = "true context\n(hidden)", "belief before\nthe step", "most likely\nafter the step"


def _rows(strips: ContextTimeline) -> dict[str, Any]:
    rows = {_TRUTH: strips.truth, _BELIEF: strips.belief, _LIKELY: strips.likely}
    return {name: values for name, values in rows.items() if values is not None}


def _handles(strips: ContextTimeline, colours: list[Any], names: Sequence[str]) -> list[Any]:
    num_true = 0 if strips.truth is None else int(strips.truth.max()) + 1
    found = [number for number in range(strips.num_contexts) if number < num_true or _is_used(strips, number)]
    words = {number: names[number] if number < len(names) else f"learned context {number}" for number in found}
    handles: list[Any] = [Patch(color=colours[number], label=words[number]) for number in found]
    if len(strips.switches):
        from matplotlib.lines import Line2D

        handles.append(Line2D([], [], color=INK, linewidth=0, marker="|", markersize=11, label="the context switches"))
    return handles


def _is_used(strips: ContextTimeline, number: int) -> bool:
    """Return whether a learned context ever has enough probability to be visible."""
    is_likely = strips.likely is not None and bool((strips.likely == number).any())
    return is_likely or (strips.belief is not None and bool(strips.belief[:, number].max() > 0.02))
