"""Compiled rollouts of candidate plans: one call for all steps, paths and candidates.

A planner's tensors are so small that one torch call after the other costs several times the arithmetic. Here the
candidates of a path go through the whole horizon together, feature-major, in chunks that stay in the first-level
cache. `ContextDynamics.rollout_blocks` does the same step by step, and the tests hold one against the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, no_type_check

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from mbrl_hdp.compiling import compiled
from mbrl_hdp.errors import DataError
from mbrl_hdp.inference.head_kernels import BLOCK, forward_chunk, pad_hidden, pad_output
from mbrl_hdp.inference.heads import ContextHeads
from mbrl_hdp_dynamics.layout import ACT, ACT_SQUARE, COSINE, SINE, SMALLEST_COSINE, StepLayout
from mbrl_hdp_dynamics.scaler import ColumnScaler

Array = NDArray[Any]

_CHUNK = 512
_VECTOR = 32  # numbers that one pass of an unrolled loop takes
_MOST_COMPARED = 64
_SMALLEST_COSINE = np.float32(SMALLEST_COSINE)
_TWO_OVER_PI = np.float32(2.0 / np.pi)
# pi/2 in two parts: the first has few bits, so that its multiples are exact.
_HALF_PI_HIGH = np.float32(1.5703125)
_HALF_PI_LOW = np.float32(np.pi / 2 - 1.5703125)


@compiled()
@no_type_check
def _rounded_up(rows):
    """Return the width that `rows` take: what is left over after whole vectors would be computed one by one."""
    return (rows + _VECTOR - 1) // _VECTOR * _VECTOR


@compiled()
@no_type_check
def _sine_cosine(angle, sine, cosine, rows):
    """Return sine and cosine of `rows` angles to single precision.

    Quadrant and Taylor polynomials on [-pi/4, pi/4], without branches: the library's functions are not vectorised.
    """
    for r in range(rows):
        quadrant = np.floor(angle[r] * _TWO_OVER_PI + np.float32(0.5))
        x = angle[r] - quadrant * _HALF_PI_HIGH - quadrant * _HALF_PI_LOW
        z = x * x
        s = x + x * z * (
            np.float32(-1 / 6) + z * (np.float32(1 / 120) + z * (np.float32(-1 / 5040) + z * np.float32(1 / 362880)))
        )
        c = np.float32(1) + z * (
            np.float32(-1 / 2) + z * (np.float32(1 / 24) + z * (np.float32(-1 / 720) + z * np.float32(1 / 40320)))
        )
        turn = np.int32(quadrant) & 3
        is_odd = (turn & 1) == 1
        first, second = (c, s) if is_odd else (s, c)
        sine[r] = -first if turn >= 2 else first
        cosine[r] = -second if (turn + 1) & 2 else second


class _Tables(NamedTuple):
    """A `StepLayout` and its networks as the kernel reads them.

    Attributes:
        features: kind and column of every feature, `I 2`.
        is_angle: which columns of a body are angles.
        num_bodies: bodies of an observation.
        first_changed: first column that the networks change.
        num_positions: leading columns that the velocities move.
        has_attitude: whether roll, pitch and yaw follow the positions.
        uses_next: whether the new velocities move.
        dt: seconds per step.
        in_centre: centre of the features, `I`.
        in_factor: 1 / scale of the features, `I`.
        out_centre: centre of the changes, `O`.
        out_scale: scale of the changes, `O`.
        affine: hidden weights and biases from `pad_hidden`.
        by_unit: output weights from `pad_output`.
        out_bias: output biases, `K O`.
    """

    features: Array
    is_angle: Array
    num_bodies: int
    first_changed: int
    num_positions: int
    has_attitude: bool
    uses_next: bool
    dt: Any
    in_centre: Array
    in_factor: Array
    out_centre: Array
    out_scale: Array
    affine: Array
    by_unit: Array
    out_bias: Array


def _tables(heads: ContextHeads, layout: StepLayout, inputs: ColumnScaler, targets: ColumnScaler) -> _Tables:
    (weight, out_weight), (bias, out_bias) = heads.weights, heads.biases
    is_angle = np.zeros(layout.body_width, np.bool_)
    is_angle[[column for kind, column in layout.features if kind in (SINE, COSINE)]] = True
    return _Tables(
        np.array(layout.features, np.int64),
        is_angle,
        layout.num_bodies,
        layout.first_changed,
        layout.num_positions,
        layout.has_attitude,
        layout.uses_next,
        np.float32(layout.dt),
        array_of(inputs.centre),
        array_of(inputs.inverse_scale),
        array_of(targets.centre),
        array_of(targets.scale),
        pad_hidden(array_of(weight), array_of(bias)),
        pad_output(array_of(out_weight)),
        array_of(out_bias),
    )


@compiled()
@no_type_check
def _load_features(state, sine, cosine, acts, first, step, is_acting, tables, x, width):
    """Fill x with the scaled features of one body; a body that does not act has zero actions."""
    features, centres, factors = tables.features, tables.in_centre, tables.in_factor
    rows = min(width, acts.shape[0] - first) if is_acting else 0
    for i in range(features.shape[0]):
        kind, column = features[i, 0], features[i, 1]
        centre, factor = centres[i], factors[i]
        if kind in (ACT, ACT_SQUARE):
            for r in range(rows):
                value = acts[first + r, step, column]
                x[i, r] = ((value * value if kind == ACT_SQUARE else value) - centre) * factor
            for r in range(rows, width):
                x[i, r] = (-centre) * factor
        else:
            source = sine[column] if kind == SINE else cosine[column] if kind == COSINE else state[column]
            for r in range(width):
                x[i, r] = (source[r] - centre) * factor


@compiled()
@no_type_check
def _add_change(state, change, first_changed, width):
    """Add the networks' change to the columns that they predict."""
    for o in range(change.shape[0]):
        for r in range(width):
            state[first_changed + o, r] += change[o, r]


@compiled()
@no_type_check
def _advance(state, change, sine, cosine, tables, width):
    """Move one body by a step: change its velocities and integrate its position and attitude."""
    velocity, dt = tables.first_changed, tables.dt
    if tables.uses_next:
        _add_change(state, change, velocity, width)
    for s in range(tables.num_positions):
        for r in range(width):
            state[s, r] += dt * state[velocity + s, r]
    if tables.has_attitude:
        # `euler_rates` of plugins/mbrl_hdp_dynamics/drone.py; sines and cosines are those before the step.
        roll = tables.num_positions
        pitch, yaw, spin = roll + 1, roll + 2, velocity + 3
        for r in range(width):
            c = cosine[pitch, r]
            safe = c if abs(c) > _SMALLEST_COSINE else (-_SMALLEST_COSINE if c < 0 else _SMALLEST_COSINE)
            rate = (cosine[yaw, r] * state[spin, r] + sine[yaw, r] * state[spin + 1, r]) / safe
            state[roll, r] += dt * rate
            state[yaw, r] += dt * (state[spin + 2, r] + sine[pitch, r] * rate)
            state[pitch, r] += dt * (cosine[yaw, r] * state[spin + 1, r] - sine[yaw, r] * state[spin, r])
    if not tables.uses_next:
        _add_change(state, change, velocity, width)


@compiled()
@no_type_check
def longest_prefix(paths, path):
    """Find the earlier path, among the nearest, that goes the same way longest: its number and for how many steps."""
    twin = length = 0
    for other in range(max(0, path - _MOST_COMPARED), path):
        step = 0
        while step < paths.shape[1] and paths[other, step] == paths[path, step]:
            step += 1
        if step > length:
            twin, length = other, step
    return twin, length


class PlanRollout:
    """Where plans lead from one observation on given paths of contexts, by a compiled kernel.

    Call it with plans `rows steps A`, or `paths rows steps A` where they react to the contexts before.

    Args:
        kernel: writes the states; called with the observation, the plans, the paths, `tables` and the states.
        obs: where all begin.
        paths: slot that acts on each step of each path.
        act_dim: width of an action.
        tables: what the kernel knows of the heads.
    """

    def __init__(
        self,
        kernel: Callable[..., None],
        obs: Float[Tensor, " S"],
        paths: Int[Tensor, "paths steps"],
        act_dim: int,
        tables: tuple[Any, ...],
    ) -> None:
        self._kernel, self._act_dim, self._tables = kernel, act_dim, tables
        self._start = array_of(obs), array_of(paths)

    def __call__(
        self, acts: Float[Tensor, "rows steps A"] | Float[Tensor, "paths rows steps A"]
    ) -> Float[Tensor, "steps paths rows S"]:
        """Return where every plan leads on every path.

        Raises:
            DataError: on plans of another length or width.
        """
        obs, paths = self._start
        num_paths, horizon = paths.shape
        by_path = plans_by_path(acts, paths.shape, self._act_dim)
        states = acts.new_empty(horizon, num_paths, by_path.shape[1], len(obs))
        self._kernel(obs, array_of(by_path), paths, *self._tables, states.numpy())
        return states


class CompiledRollout(PlanRollout):
    """Rollouts of networks.

    Args:
        heads: networks with one hidden layer that predict the changes.
        layout: what the networks see and what follows from their change.
        inputs: scale of the features.
        targets: scale of the changes.
        obs: where all begin.
        paths: slot that acts on each step of each path.
        noise: what is added to the changes of every body at each step of each path, in their units; None for expected
            steps.
    """

    def __init__(
        self,
        heads: ContextHeads,
        layout: StepLayout,
        inputs: ColumnScaler,
        targets: ColumnScaler,
        obs: Float[Tensor, " S"],
        paths: Int[Tensor, "paths steps"],
        noise: Float[Tensor, "paths steps changes"] | None,
    ) -> None:
        width = layout.num_bodies * len(targets.centre)
        shift = obs.new_zeros(*paths.shape, width) if noise is None else noise
        tables = _tables(heads, layout, inputs, targets), array_of(shift), noise is not None
        super().__init__(_roll_out, obs, paths, layout.act_dim, tables)


def plans_by_path(acts: Tensor, shape: tuple[int, ...], act_dim: int) -> Tensor:
    """Return plans as `P rows steps A`, with P = 1 where they are the same on every path.

    Raises:
        DataError: on plans of another length or width.
    """
    num_paths, horizon = shape
    by_path = acts[None] if acts.dim() == 3 else acts
    if by_path.shape[2:] != (horizon, act_dim) or len(by_path) not in (1, num_paths):
        raise DataError(
            f"plans must be (rows, {horizon}, {act_dim}) or ({num_paths}, rows, {horizon}, {act_dim}), "
            f"got {tuple(acts.shape)}"
        )
    return by_path


def array_of(tensor: Tensor) -> Array:
    """Return the numbers of a tensor on the CPU; a view where they lie in order."""
    return tensor.detach().contiguous().numpy()


@compiled()
@no_type_check
def _start(state, obs, states, num_shared, p, first, rows):
    """Set the rows of a chunk to where they begin: the observation, or the end of the steps that were copied."""
    for s in range(obs.shape[0]):
        for r in range(_rounded_up(rows)):
            state[s, r] = obs[s]
        for r in range(rows if num_shared else 0):
            state[s, r] = states[num_shared - 1, p, first + r, s]


@compiled()
@no_type_check
def _store(state, reached, first, rows, body_width):
    """Write a chunk of states to where the plans are, `C S`; bodies after the first are alike in all rows."""
    for s in range(body_width):
        for r in range(rows):
            reached[first + r, s] = state[s, r]
    for s in range(body_width, state.shape[0]):
        for r in range(rows):
            reached[first + r, s] = state[s, 0]


@compiled()
@no_type_check
def _predict_change(x, k, tables, noise, change, pre, width):
    """Run the networks of slot k and return to the data's units."""
    forward_chunk(x, tables.affine[k], tables.by_unit[k], tables.out_bias[k], change, pre, width)
    centres, scales = tables.out_centre, tables.out_scale
    for o in range(change.shape[0]):
        shift, scale = centres[o] + noise[o], scales[o]
        for r in range(width):
            change[o, r] = shift + change[o, r] * scale


@compiled()
@no_type_check
def _roll_out(obs, acts, paths, tables, noise, is_noisy, states):
    """Set states[h, p, c] to where plan c is after step h on path p.

    Without noise, steps that a path has in common with an earlier one are copied: plans react to earlier contexts only.
    Bodies after the first do not act, so all plans of a path share their motion: one vector of rows is computed.

    Args:
        obs: start, `S`.
        acts: plans, `P C H A`; `1 C H A` if they are the same on every path.
        paths: slots, `P H`.
        tables: networks, scales and layout of a step.
        noise: scaled noise of every path and step, `P H bodies*O`, the same for all plans.
        is_noisy: whether there is any.
        states: receives the result, `H P C S`.
    """
    _, num_plans, horizon, _ = acts.shape
    affine, is_angle, num_changes = tables.affine, tables.is_angle, tables.out_scale.shape[0]
    body_width = is_angle.shape[0]
    chunk = min(_CHUNK, _rounded_up(num_plans))
    x = np.zeros((affine.shape[2], chunk), affine.dtype)
    x[tables.features.shape[0]] = 1  # the biases' input
    state = np.empty((obs.shape[0], chunk), affine.dtype)
    sine = np.empty((body_width, chunk), affine.dtype)
    cosine = np.empty((body_width, chunk), affine.dtype)
    change = np.empty((num_changes, chunk), affine.dtype)
    pre = np.empty((BLOCK, chunk), affine.dtype)
    for p in range(paths.shape[0]):
        twin, num_shared = (0, 0) if is_noisy else longest_prefix(paths, p)
        for h in range(num_shared):
            for r in range(num_plans):
                for s in range(obs.shape[0]):
                    states[h, p, r, s] = states[h, twin, r, s]
        path_acts = acts[p if acts.shape[0] > 1 else 0]
        for first in range(0, num_plans, chunk):
            rows = min(chunk, num_plans - first)
            _start(state, obs, states, num_shared, p, first, rows)
            for h in range(num_shared, horizon):
                for body in range(tables.num_bodies):
                    width = _rounded_up(rows) if body == 0 else _VECTOR
                    own = state[body * body_width : (body + 1) * body_width]
                    for s in range(body_width):
                        if is_angle[s]:
                            _sine_cosine(own[s], sine[s], cosine[s], width)
                    _load_features(own, sine, cosine, path_acts, first, h, body == 0, tables, x, width)
                    own_noise = noise[p, h, body * num_changes : (body + 1) * num_changes]
                    _predict_change(x, paths[p, h], tables, own_noise, change, pre, width)
                    _advance(own, change, sine, cosine, tables, width)
                _store(state, states[h, p], first, rows, body_width)
