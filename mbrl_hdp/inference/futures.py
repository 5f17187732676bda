"""Futures that a learned model draws under given actions."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mbrl_hdp.data.past import PastWindow, recorded_width
from mbrl_hdp.errors import DataError
from mbrl_hdp.inference.model import ContextModel

History = tuple[Any, Any]


def draw_futures(
    model: ContextModel,
    obs: Float[np.ndarray, "B S"],
    acts: Float[np.ndarray, "B H A"],
    num_samples: int,
    belief: Float[np.ndarray, "B k"] | None,
    seed: int,
    history: History | None,
) -> Float[np.ndarray, "samples B H S"]:
    """Draw futures under an action sequence, contexts included; see `ContextModel.predict`."""
    generator = torch.Generator(model.device).manual_seed(seed)
    start = model.as_tensor(np.repeat(np.asarray(obs)[None], num_samples, 0)).flatten(0, 1)
    steps = model.as_tensor(acts)
    width = recorded_width(model.task)
    if steps.ndim != 3 or len(steps) != len(np.asarray(obs)) or steps.shape[-1] != width:
        raise DataError(f"acts must be (B, H, {width}) with B as in obs, got {tuple(steps.shape)}")
    window = PastWindow.of(model.task, model.names, (num_samples, len(steps)))
    if window is not None:
        _remember(window, np.asarray(obs), history)
    first = None if belief is None else model.as_tensor(belief).repeat(num_samples, 1)
    state = model.reset(start, generator, first)
    futures = []
    for step in range(steps.shape[1]):
        now, before = steps[:, step], state["obs"]
        act = now.repeat(num_samples, 1) if window is None else _with_past(model, window, now)
        next_obs, _, _, state = model.sample(act, state, rng=generator)
        futures.append(next_obs)
        if window is not None:
            window.move(*(rows.cpu().numpy().reshape(*window.batch, -1) for rows in (before, next_obs)))
    stacked = torch.stack(futures, 1).view(num_samples, len(steps), steps.shape[1], -1)
    return stacked.double().cpu().numpy()


def _remember(window: PastWindow, obs: Float[np.ndarray, "B S"], history: History | None) -> None:
    """Put the steps before `obs` into the window.

    Raises:
        DataError: if there is no history, or it has other sizes or missing values.
    """
    sizes = [(len(obs), window.steps, width) for width in (window.obs_dim, window.act_dim)]
    found = None if history is None else [np.shape(rows) for rows in history]
    if history is None or found != sizes:
        columns = ", ".join(window.names.act) or "none"
        raise DataError(
            f"this model looks at the last {window.steps} steps: predict needs history=(obs, acts), the {window.steps} "
            f"steps before obs, of shapes {sizes[0]} and {sizes[1]} (columns of acts: {columns}); got {found}"
        )
    path, acts = np.concatenate([history[0], obs[:, None]], 1), np.asarray(history[1])
    for step in range(window.steps):
        window.present[...] = acts[:, step]
        window.move(path[:, step], path[:, step + 1])
    if not np.isfinite(window.past).all():
        raise DataError("history, or obs, has missing values: predict from a step with a complete past")


def _with_past(model: ContextModel, window: PastWindow, act: Float[Tensor, "B A"]) -> Float[Tensor, "N W"]:
    window.present[...] = act.cpu().numpy()
    return model.as_tensor(window.row).flatten(0, 1)
