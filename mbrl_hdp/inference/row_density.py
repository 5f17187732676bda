"""The log density of one step under every context, quickly: compiled, with everything but the step prepared.

Serves transition models that are Gaussian networks with one hidden layer (`GaussianNetworks`); the online filter takes
it where it gives the model's own numbers, and goes through torch where it does not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, no_type_check, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from mbrl_hdp.compiling import compiled
from mbrl_hdp.errors import DataError
from mbrl_hdp.inference.dynamics import ContextDynamics

Array = NDArray[Any]
RowDensity = Callable[[Array, Array, Array], Array]
_LOG_2PI = float(np.log(2.0 * np.pi))


@runtime_checkable
class GaussianNetworks(Protocol):
    """A transition model whose density is that of scaled targets around networks of scaled features."""

    heads: Any
    input_scaler: Any
    target_scaler: Any

    def features(self, obs: Tensor, act: Tensor) -> Tensor:
        """Return what the networks see."""

    def targets(self, obs: Tensor, next_obs: Tensor) -> Tensor:
        """Return what they predict."""

    def noise_std(self) -> Tensor:
        """Return the noise std of every context and target, in scaled units."""


class CompiledRow:
    """log p(next_obs | obs, act, context=k) of one step for the given slots, as they are now."""

    def __init__(self, dynamics: GaussianNetworks, slots: Int[Tensor, " n"]) -> None:
        self._features, self._targets = dynamics.features, dynamics.targets
        # A step is written into the same rows every time: making tensors costs more than the networks.
        self._rows = [torch.zeros(1, width, dtype=torch.float64) for width in _widths(dynamics)]
        self._views = [row.numpy()[0] for row in self._rows]
        with torch.no_grad():
            std = dynamics.noise_std()[slots].double().numpy()
            first, second = (weight[slots].double().numpy() for weight in dynamics.heads.weights)
            first_bias, second_bias = (bias[slots].double().numpy() for bias in dynamics.heads.biases)
        centre, inverse_scale = _scaler(dynamics.input_scaler)
        target_centre, target_inverse = _scaler(dynamics.target_scaler)
        varies = target_inverse > 0
        # Scaling of inputs and targets goes into the weights, so that a step costs two small products and a sum.
        first = first * inverse_scale
        inverse_std = np.where(varies, 1.0 / std, 0.0)
        offset = np.where(varies, -np.log(std) - 0.5 * _LOG_2PI, 0.0).sum(-1) + np.log(target_inverse[varies]).sum()
        self._arrays = (
            np.ascontiguousarray(first.transpose(0, 2, 1)),
            first_bias - first @ centre,
            np.ascontiguousarray(second),
            second_bias,
            target_centre,
            target_inverse,
            inverse_std,
            offset,
        )

    def __call__(self, obs: Array, act: Array, next_obs: Array) -> Array:
        """Return the log density under every slot; NaN where the step has a missing value."""
        for view, row in zip(self._views, (obs, act, next_obs), strict=True):
            if np.shape(row) != view.shape:
                raise DataError(f"a row of {len(view)} numbers is needed here, got shape {np.shape(row)}")
            view[:] = row
        obs_row, act_row, next_row = self._rows
        features = self._features(obs_row, act_row).numpy()[0]
        targets = self._targets(obs_row, next_row).numpy()[0]
        density: Array = _row_density(features, targets, *self._arrays)
        return density


def compiled_row(dynamics: ContextDynamics, slots: Int[Tensor, " n"]) -> RowDensity | None:
    """Return the quick density of a transition model, None where it has another structure.

    A structure that looks alike and means something else is found out on a few random steps.
    """
    if not isinstance(dynamics, GaussianNetworks) or len(getattr(dynamics.heads, "weights", ())) != 2:
        return None
    quick = CompiledRow(dynamics, slots)
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randn(3, width, generator=generator) for width in _widths(dynamics)]
    with torch.no_grad():
        wanted = dynamics.log_prob_slots(rows[0], rows[1], rows[2], slots).double().numpy()
    found = [quick(*(row[step].numpy() for row in rows)) for step in range(3)]
    return quick if _is_close(found, wanted) else None


def _widths(dynamics: Any) -> tuple[int, int, int]:
    return dynamics.obs_dim, dynamics.act_dim, dynamics.obs_dim


def _is_close(found: list[Array], wanted: Float[np.ndarray, "steps n"]) -> bool:
    return all(row.shape == wanted.shape[1:] for row in found) and np.allclose(found, wanted, rtol=1e-3, atol=1e-2)


def _scaler(scaler: Any) -> tuple[Array, Array]:
    return scaler.centre.double().numpy(), scaler.inverse_scale.double().numpy()


@compiled("reordered")
@no_type_check
def _row_density(
    features: Array,
    targets: Array,
    first: Array,
    first_bias: Array,
    second: Array,
    second_bias: Array,
    target_centre: Array,
    target_inverse: Array,
    inverse_std: Array,
    offset: Array,
) -> Array:
    num_slots, num_inputs, num_hidden = first.shape
    num_outputs = second.shape[1]
    log_density = np.empty(num_slots)
    hidden = np.empty(num_hidden)
    for k in range(num_slots):
        hidden[:] = first_bias[k]
        for i in range(num_inputs):
            for h in range(num_hidden):
                hidden[h] += first[k, i, h] * features[i]
        for h in range(num_hidden):
            hidden[h] = 0.0 if hidden[h] < 0.0 else hidden[h]  # a missing value stays one
        distance = 0.0
        for o in range(num_outputs):
            mean = second_bias[k, o]
            for h in range(num_hidden):
                mean += second[k, o, h] * hidden[h]
            error = ((targets[o] - target_centre[o]) * target_inverse[o] - mean) * inverse_std[k, o]
            distance += error * error
        log_density[k] = offset[k] - 0.5 * distance
    return log_density
