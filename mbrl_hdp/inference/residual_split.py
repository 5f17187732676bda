"""A quick look at a fitted model: would one of its contexts be better as two, or two of them as good as one?"""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.inference.analysis import Analysis
from mbrl_hdp.inference.episodes import some_episodes
from mbrl_hdp.inference.levels import best_merge
from mbrl_hdp.inference.model import ContextModel
from mbrl_hdp.inference.residuals import own_residuals
from mbrl_hdp.inference.search.em import State, run, start_state
from mbrl_hdp.inference.search.rows import Rows, make_rows
from mbrl_hdp.inference.search.search import FLOOR, SHARP_FLOOR
from mbrl_hdp.inference.search.starts import signed_splits

# Transitions that divisions are tried on, at most, and the fewest of a context.
_MOST_ROWS = 2000
_FEWEST_ROWS = 100
_MOST_COLUMNS = 40
# Early steps of a division: a step's evidence counts at most so much, and a context is left so rarely.
_VOTES, _LEAVE = 1.0, 1e-2
_EARLY_STEPS, _FREE_STEPS = 6, 12
# Two contexts are one where merging them loses less than this per step, and less than so many standard errors.
_LEAST_LOSS = 0.005
_ERRORS = 3.0


@dataclass(frozen=True)
class Look:
    """What a quick look at a model says.

    Attributes:
        gains: evidence per step that two heads in place of one would gain in each context.
        merge: the two contexts that would be as good as one; None where all are needed.
        cpu_time_s: processor seconds that it took.
    """

    gains: Float[np.ndarray, " k"]
    merge: tuple[int, ...] | None
    cpu_time_s: float

    @property
    def gain(self) -> float:
        """Largest gain of a division."""
        return float(self.gains.max())


@dataclass(frozen=True)
class Halves:
    """The best division of one context by what its head leaves over.

    Attributes:
        gain: evidence per step of all data that two heads in place of one gain; at least 0.
        index: observed steps of the context.
        weight: probability of both halves at these steps, the half that the head explains better first.
    """

    gain: float
    index: Int[np.ndarray, " m"]
    weight: Float[np.ndarray, "m 2"]


def look_at(model: ContextModel, data: Trajectories) -> Look:
    """Look for contexts to divide or to merge; a few tenths of a second a context, whatever the size of the data."""
    started = time.process_time()
    part = some_episodes(data, _MOST_ROWS)
    gains = np.zeros(model.num_contexts)
    for context, halves in divisions(model, model.analyse(part)).items():
        gains[context] = halves.gain
    return Look(gains, _merge(model, part), time.process_time() - started)


def divisions(model: ContextModel, found: Analysis) -> dict[int, Halves]:
    """Return the best division of every context that has enough steps and leaves something over."""
    rows = make_rows(found.data, angles=getattr(model.dynamics, "angle_columns", ()))
    labels = found.most_likely[found.data.is_observed]
    left = own_residuals(model, found.data, labels)[:, rows.target_columns] / rows.target_scale
    divided = {}
    for context in range(model.num_contexts):
        index = np.flatnonzero(labels == context)
        spread = float(np.sqrt(np.square(left[index]).mean(0)).max(initial=0.0)) if len(index) else 0.0
        if len(index) < _FEWEST_ROWS or spread < SHARP_FLOOR:
            continue
        floor = FLOOR if spread >= 2.0 * FLOOR else SHARP_FLOOR
        gain, weight = _halve(_only(rows, index, left[index]), floor)
        size = (np.square(left[index]).sum(1) @ weight) / np.maximum(weight.sum(0), 1e-12)
        divided[context] = Halves(gain / len(rows), index, weight[:, np.argsort(size)])
    return divided


def _only(rows: Rows, index: Int[np.ndarray, " m"], targets: Float[np.ndarray, "m Y"]) -> Rows:
    """Return some of the rows with other targets; the messages pass over the steps in between."""
    return dataclasses.replace(
        rows,
        inputs=rows.inputs[index],
        raw_inputs=rows.raw_inputs[index],
        targets=targets,
        fold=rows.fold[index],
        episode=rows.episode[index],
        step=rows.step[index],
    )


def _halve(rows: Rows, floor: float) -> tuple[float, Float[np.ndarray, "m 2"]]:
    """Return the cross-fitted evidence of two heads over that of one, for residuals, at least 0; and the two halves.

    Both may use the same features, so that what one larger head could explain is no gain.
    """
    basis = _basis(rows)
    one = _evidence(_settled(rows, basis, np.ones((len(rows), 1)), floor))
    spread = np.maximum(np.sqrt(np.square(rows.targets).mean(0)), floor)
    scores = signed_splits(rows, rows.targets / spread, np.ones(len(rows)), num_directions=1)
    starts = [np.stack([0.5 + 0.45 * score, 0.5 - 0.45 * score], 1) for score in scores]
    best = max((_settled(rows, basis, start, floor) for start in starts), key=_evidence)
    return max(0.0, _evidence(best) - one), best.weight


def _basis(rows: Rows) -> Float[np.ndarray, "m D"]:
    """Return the constant, the coordinates and, where these are few, their products."""
    x = np.clip(rows.coordinates, -3.0, 3.0)
    pairs = [x[:, i] * x[:, j] for i in range(x.shape[1]) for j in range(i, x.shape[1])]
    columns = [np.ones(len(x)), *x.T, *pairs]
    return np.stack(columns if len(columns) <= _MOST_COLUMNS else columns[: 1 + x.shape[1]], 1)


def _settled(rows: Rows, basis: Float[np.ndarray, "m D"], weight: Float[np.ndarray, "m n"], floor: float) -> State:
    state = start_state(rows, weight, floor)
    if weight.shape[1] > 1:
        run(rows, basis, state, _EARLY_STEPS, _VOTES, _LEAVE)
    return run(rows, basis, state, _FREE_STEPS, tolerance=1e-3)


def _evidence(state: State) -> float:
    return float(state.evidence.sum())


def _merge(model: ContextModel, data: Trajectories) -> tuple[int, ...] | None:
    """Return the two contexts whose merging loses least, if that is next to nothing."""
    if model.num_contexts == 1:
        return None
    level = best_merge(model, data)
    (pair,) = [group for group in level.groups if len(group) == 2]
    return pair if level.loss < min(_LEAST_LOSS, _ERRORS * level.error) else None
