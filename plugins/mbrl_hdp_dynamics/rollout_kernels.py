"""Compiled rollouts of candidate plans: one call for all steps, paths and candidates.

A planner's tensors are so small that one torch call after the other costs several times the arithmetic. Here the
candidates of a path go through the whole horizon together, feature-major, in chunks that stay in the first-level
cache. `ContextDynamics.rollout_blocks` does the same step by step, and the tests hold one against the other.
"""

from __future__ import annotations

from typing import Any, no_type_check

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from mbrl_hdp.compiling import compiled
from mbrl_hdp.errors import DataError
from mbrl_hdp.inference.head_kernels import BLOCK, forward_chunk, pad_hidden, pad_output
from mbrl_hdp.inference.heads import ContextHeads
from mbrl_hdp_dynamics.scaler import ColumnScaler

Array = NDArray[Any]

_CHUNK = 512
_VECTOR = 32  # numbers that one pass of an unrolled loop takes
_MOST_COMPARED = 64
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


@compiled()
@no_type_check
def _load_features(state, acts, first, step, is_angle, centre, factor, x, width):
    """Fill x with the scaled features: observations (angles as sine and cosine), actions, one."""
    column = 0
    for s in range(state.shape[0]):
        if is_angle[s]:
            _sine_cosine(state[s], x[column], x[column + 1], width)
            column += 2
        else:
            for r in range(width):
                x[column, r] = state[s, r]
            column += 1
    rows = min(width, acts.shape[0] - first)
    for a in range(acts.shape[2]):
        for r in range(rows):
            x[column, r] = acts[first + r, step, a]
        for r in range(rows, width):
            x[column, r] = 0
        column += 1
    for i in range(column):
        for r in range(width):
            x[i, r] = (x[i, r] - centre[i]) * factor[i]
    for r in range(width):
        x[column, r] = 1


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


class DeltaRollout:
    """Where plans lead from one observation on given paths of contexts.

    Call it with plans `rows steps A`, or `paths rows steps A` where they react to the contexts before.

    Args:
        heads: networks with one hidden layer that predict the change of the observation.
        angle_columns: observation columns that the networks see as sine and cosine.
        inputs: scale of the features.
        targets: scale of the changes.
        obs: where all begin.
        paths: slot that acts on each step of each path.
        noise: what is added to the observation at each step of each path, in its units; None for expected steps.
    """

    def __init__(
        self,
        heads: ContextHeads,
        angle_columns: tuple[int, ...],
        inputs: ColumnScaler,
        targets: ColumnScaler,
        obs: Float[Tensor, " S"],
        paths: Int[Tensor, "paths steps"],
        noise: Float[Tensor, "paths steps S"] | None,
    ) -> None:
        (weight, out_weight), (bias, out_bias) = heads.weights, heads.biases
        is_angle = np.zeros(len(obs), np.bool_)
        is_angle[list(angle_columns)] = True
        scales = [array_of(scale) for scale in (inputs.centre, inputs.inverse_scale, targets.centre, targets.scale)]
        layers = pad_hidden(array_of(weight), array_of(bias)), pad_output(array_of(out_weight)), array_of(out_bias)
        shift = obs.new_zeros(*paths.shape, len(obs)) if noise is None else noise
        self._act_dim = len(inputs.centre) - len(obs) - len(angle_columns)
        self._start = array_of(obs), array_of(paths)
        self._networks = is_angle, *scales, *layers, array_of(shift), noise is not None

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
        _roll_out_deltas(obs, array_of(by_path), paths, *self._networks, states.numpy())
        return states


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
def _roll_out_deltas(
    obs,
    acts,
    paths,
    is_angle,
    in_centre,
    in_factor,
    out_centre,
    out_scale,
    affine,
    by_unit,
    out_bias,
    noise,
    is_noisy,
    states,
):
    """Set states[h, p, c] to where plan c is after step h on path p: obs' = obs + change of the path's context.

    Without noise, steps that a path has in common with an earlier one are copied: plans react to earlier contexts only.

    Args:
        obs: start, `S`.
        acts: plans, `P C H A`; `1 C H A` if they are the same on every path.
        paths: slots, `P H`.
        is_angle: which observation columns are angles, `S`.
        in_centre: centre of the features, `I`.
        in_factor: 1 / scale of the features, `I`.
        out_centre: centre of the changes, `S`.
        out_scale: scale of the changes, `S`.
        affine: hidden weights and biases from `pad_hidden`.
        by_unit: output weights from `pad_output`.
        out_bias: output biases, `K S`.
        noise: scaled noise of every path and step, `P H S`, the same for all plans.
        is_noisy: whether there is any.
        states: receives the result, `H P C S`.
    """
    _, num_plans, horizon, _ = acts.shape
    chunk = min(_CHUNK, _rounded_up(num_plans))
    x = np.zeros((affine.shape[2], chunk), affine.dtype)
    state = np.empty((obs.shape[0], chunk), affine.dtype)
    mean = np.empty((obs.shape[0], chunk), affine.dtype)
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
            width = _rounded_up(rows)
            for s in range(obs.shape[0]):
                for r in range(width):
                    state[s, r] = obs[s]
                for r in range(rows if num_shared else 0):
                    state[s, r] = states[num_shared - 1, p, first + r, s]
            for h in range(num_shared, horizon):
                k = paths[p, h]
                _load_features(state, path_acts, first, h, is_angle, in_centre, in_factor, x, width)
                forward_chunk(x, affine[k], by_unit[k], out_bias[k], mean, pre, width)
                for s in range(obs.shape[0]):
                    shift = out_centre[s] + noise[p, h, s]
                    for r in range(width):
                        state[s, r] += shift + mean[s, r] * out_scale[s]
                    for r in range(rows):
                        states[h, p, first + r, s] = state[s, r]
