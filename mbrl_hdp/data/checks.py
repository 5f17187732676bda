"""Turn what a user hands in into clean arrays, or say what is wrong and where."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from mbrl_hdp.errors import DataError

UNKNOWN_CONTEXT = -1
"""Label of a step whose context is not known: padding, and missing labels where those are allowed."""

MAX_CONTEXT = 9_999
"""Largest context label: labels are counted from 0, and tables are made of them."""

_MISSING_HINT = "pass lengths= if this is padding, or allow_missing=True if samples are missing"


def number_array(name: str, values: Any) -> np.ndarray:
    """Read numbers of any kind as an array; text, objects and ragged lists are refused."""
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, RuntimeError) as error:  # ragged lists; tensors on a device or with a gradient
        raise DataError(
            f"{name} cannot be read as one array ({error}); "
            "episodes of different lengths go through Trajectories.from_episodes or are padded with lengths= given"
        ) from error
    if array.dtype.kind not in "fiub":
        raise DataError(f"{name} must hold real numbers, got dtype {array.dtype}")
    return array


def float_array(name: str, values: Any) -> np.ndarray:
    """Copy numbers as floats: float32 stays float32, everything else becomes float64."""
    array = number_array(name, values)
    return np.array(array, dtype=np.float32 if array.dtype == np.float32 else np.float64)


def check_shape(name: str, array: np.ndarray, expected: tuple[int, ...], meaning: str) -> None:
    """Refuse an array whose shape is not the expected one; the message names both shapes."""
    if array.shape != expected:
        raise DataError(f"{name} must have shape {list(expected)} ({meaning}), got {list(array.shape)}")


def length_array(lengths: Any, num_episodes: int, max_steps: int) -> Int[np.ndarray, " N"]:
    """Check the number of transitions of every episode: whole numbers from 1 to `max_steps`."""
    if lengths is None:
        return np.full(num_episodes, max_steps, dtype=np.int64)
    array = np.atleast_1d(number_array("lengths", lengths))
    check_shape("lengths", array, (num_episodes,), "one number of transitions an episode")
    bad = np.flatnonzero((array != np.floor(array)) | ~np.isfinite(array))
    if bad.size:
        raise DataError(f"lengths must be whole numbers, got {array[bad[0]]} for episode {bad[0]}")
    short = np.flatnonzero(array < 1)
    if short.size:
        raise DataError(f"episode {short[0]} is too short: lengths must be at least 1, got {int(array[short[0]])}")
    long = np.flatnonzero(array > max_steps)
    if long.size:
        raise DataError(
            f"lengths of episode {long[0]} is {int(array[long[0]])}, but the arrays hold only {max_steps} transitions "
            "(lengths count transitions, one less than observations)"
        )
    return array.astype(np.int64)


def check_finite(arrays: Sequence[tuple[str, np.ndarray | None, Bool[np.ndarray, "N T"]]], allow_missing: bool) -> None:
    """Refuse infinite values, and NaN unless samples may be missing; name episode, step, column of the first one.

    Args:
        arrays: name in the message, values (`N T` or `N T D`) and where a step counts; padding may hold anything.
        allow_missing: let NaN pass.
    """
    found = []
    for order, (name, array, is_valid) in enumerate(arrays):
        if array is None:
            continue
        refused = np.isinf(array) if allow_missing else ~np.isfinite(array)
        refused &= is_valid if array.ndim == 2 else is_valid[..., None]
        where = np.argwhere(refused)
        if len(where):
            found.append((*where[0][:2].tolist(), order, name, array[tuple(where[0])], where))
    if not found:
        return
    *_, name, value, where = min(found, key=lambda each: each[:3])
    place = ", ".join(f"{axis} {index}" for axis, index in zip(("episode", "step", "column"), where[0], strict=False))
    hint = f"; {_MISSING_HINT}" if np.isnan(value) else ""
    raise DataError(f"{name} is {value} at {place} ({len(where)} such values in all){hint}")


def context_array(context: Any, is_step: Bool[np.ndarray, "N T"], allow_missing: bool) -> Int[np.ndarray, "N T"]:
    """Check context labels: whole numbers from 0; padding and missing labels become -1."""
    array = number_array("context", context)
    check_shape("context", array, is_step.shape, "episodes, transitions")
    is_missing = np.isnan(array) | (array == UNKNOWN_CONTEXT)
    labels = np.where(is_step & ~is_missing, array, 0)
    _refuse_step("context must be a whole number", labels != np.floor(labels), array)
    _refuse_step("context must not be negative", labels < 0, array)
    _refuse_step(f"context labels go up to {MAX_CONTEXT}: number them from 0", labels > MAX_CONTEXT, array)
    if not allow_missing:
        hint = "leave context out, or pass allow_missing=True"
        _refuse_step(f"context is unknown ({hint})", is_missing & is_step, array)
    return np.where(is_step & ~is_missing, labels, UNKNOWN_CONTEXT).astype(np.int64)


def terminated_array(terminated: Any, lengths: Int[np.ndarray, " N"], max_steps: int) -> Bool[np.ndarray, "N T"]:
    """Check terminal flags, `N T` or one an episode (`N`); only an episode's last transition may be terminal."""
    array = number_array("terminated", terminated)
    is_last = np.arange(max_steps) == lengths[:, None] - 1
    if array.ndim == 1:
        check_shape("terminated", array, lengths.shape, "one flag an episode")
        array = array[:, None] * is_last
    check_shape("terminated", array, is_last.shape, "episodes, transitions")
    flags = np.where(np.arange(max_steps) < lengths[:, None], array, 0)
    _refuse_step("terminated must be true or false", (flags != 0) & (flags != 1), array)
    _refuse_step("terminated before the episode's last transition (split the episode)", (flags == 1) & ~is_last, array)
    return flags.astype(bool)


def _refuse_step(problem: str, refused: Bool[np.ndarray, "N T"], array: np.ndarray) -> None:
    if refused.any():
        episode, step = np.argwhere(refused)[0]
        raise DataError(f"{problem}: got {array[episode, step]} at episode {episode}, step {step}")
