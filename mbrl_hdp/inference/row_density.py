"""The log density of one step under every context, quickly: compiled, nothing allocated, everything prepared.

Serves transition models that offer a `DensityTable`; the online filter takes it where it returns the model's own
numbers, and goes through torch where it does not.
"""

from __future__ import annotations

from typing import Any, NamedTuple, no_type_check

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from mbrl_hdp.compiling import compiled
from mbrl_hdp.errors import DataError
from mbrl_hdp.inference.density_table import COSINE, HINGE, SINE, DensityTable
from mbrl_hdp.inference.dynamics import ContextDynamics

Array = NDArray[Any]


class _Numbers(NamedTuple):
    """A `DensityTable` as the kernel takes it; what a table does not have is of size 0."""

    layout: Array
    kind: Array
    column: Array
    products: Array
    number: Array
    centre: Array
    inverse_scale: Array
    term_centre: Array
    term_inverse: Array
    sizes: Array
    weights: Array
    biases: Array
    targets: Array
    target_centre: Array
    target_inverse: Array
    inverse_std: Array
    offset: Array
    whitening: Array
    factor: Array
    half: Array


class _Scratch(NamedTuple):
    """Buffers of the kernel."""

    factors: Array
    terms: Array
    one: Array
    other: Array
    error: Array


class CompiledRow:
    """log p(next_obs | obs, act, context=k) of one step for every context of a table."""

    def __init__(self, table: DensityTable) -> None:
        self.table = table
        self._rows = [np.zeros(width) for width in (table.obs_dim, table.act_dim, table.obs_dim)]
        self._numbers = _numbers(table)
        widest = int(self._numbers.sizes.max())
        sizes = (len(table.terms.kind) + 1, len(table.terms.index), widest, widest, len(table.targets))
        self._scratch = _Scratch(*(np.zeros(size) for size in sizes))

    def __call__(self, obs: Array, act: Array, next_obs: Array, out: Array | None = None) -> Array:
        """Return the log density under every context; NaN where the step has a missing value.

        Args:
            obs: observation before the step.
            act: action.
            next_obs: observation after it.
            out: where to write the densities (float64); a new array by default.

        Raises:
            DataError: on rows of the wrong width.
        """
        density = np.empty(self.table.num_contexts) if out is None else out
        obs_row, act_row, next_row = self._rows
        fill_row(obs_row, obs, "obs")
        fill_row(act_row, act, "act")
        fill_row(next_row, next_obs, "next_obs")
        _row_density(obs_row, act_row, next_row, self._numbers, self._scratch, density)
        return density


def fill_row(row: Array, values: Any, name: str) -> None:
    """Copy numbers into a row of their width; nothing is allocated for an array.

    Raises:
        DataError: on another shape, or on what is no number.
    """
    shape = values.shape if isinstance(values, np.ndarray) else np.shape(values)
    if shape != row.shape:
        raise DataError(f"{name}: a row of {len(row)} numbers is needed here, got shape {shape}")
    try:
        row[:] = values
    except (TypeError, ValueError) as error:
        raise DataError(f"{name}: a row of numbers is needed here: {error}") from error


def compiled_row(dynamics: ContextDynamics, slots: Int[Tensor, " n"]) -> CompiledRow | None:
    """Return the quick density of a transition model, None where it offers no table.

    A table that means something else than the model (a subclass that changed the features) is found out on a few
    random steps.
    """
    table = dynamics.density_table(slots)
    if table is None:
        return None
    quick = CompiledRow(table)
    generator = torch.Generator().manual_seed(0)
    widths = dynamics.obs_dim, dynamics.act_dim, dynamics.obs_dim
    dtype = next(dynamics.parameters()).dtype
    rows = [torch.randn(3, width, generator=generator).to(dtype) for width in widths]
    with torch.no_grad():
        wanted = dynamics.log_prob_slots(rows[0], rows[1], rows[2], slots).double().numpy()
    found = [quick(*(row[step].numpy() for row in rows)) for step in range(3)]
    return quick if _is_close(found, wanted) else None


def _is_close(found: list[Array], wanted: Float[np.ndarray, "steps n"]) -> bool:
    return all(row.shape == wanted.shape[1:] for row in found) and np.allclose(found, wanted, rtol=1e-3, atol=1e-2)


def _numbers(table: DensityTable) -> _Numbers:
    terms, none = table.terms, np.zeros((0, 0, 0))
    sizes = [len(terms.index), *(bias.shape[1] for bias in table.biases)]
    parts: list[Array] = [
        np.array([table.body_width, table.num_bodies, table.num_varying], np.int64),
        *(np.ascontiguousarray(part, np.int64) for part in (terms.kind, terms.column, terms.index)),
        *(_real(part) for part in (terms.number, terms.centre, terms.inverse_scale)),
        *(_real(part) for part in (terms.term_centre, terms.term_inverse)),
        np.array(sizes, np.int64),
        # One vector holds all layers, inputs first: inner loops run along outputs.
        np.concatenate([_real(weight.transpose(0, 2, 1)).ravel() for weight in table.weights]),
        np.concatenate([_real(bias).ravel() for bias in table.biases]),
        np.ascontiguousarray(table.targets, np.int64),
        *(_real(part) for part in (table.target_centre, table.target_inverse, table.inverse_std, table.offset)),
        none if table.whitening is None else _real(table.whitening),
        none if table.factor is None else _real(table.factor),
        none.reshape(0, 0) if table.half is None else _real(table.half),
    ]
    return _Numbers(*parts)


def _real(values: Any) -> Array:
    return np.ascontiguousarray(values, dtype=np.float64)


@compiled("reordered", is_inlined=True)
@no_type_check
def _evaluate_terms(obs, act, body, table, factors, terms):
    """Set the factors and terms of one body; only the first body acts."""
    width, num_factors = table.layout[0], table.kind.shape[0]
    for f in range(num_factors):
        kind, column = table.kind[f], table.column[f]
        value = 0.0
        if column < width:
            value = obs[body * width + column]
        elif body == 0:
            value = act[column - width]
        if kind == SINE:
            value = np.sin(table.number[f] * value)
        elif kind == COSINE:
            value = np.cos(table.number[f] * value)
        else:
            value = (value - table.centre[f]) * table.inverse_scale[f]
            if kind == HINGE:
                value -= table.number[f]
                value = 0.0 if value < 0.0 else value  # a missing value stays one
        factors[f] = value
    factors[num_factors] = 1.0
    for d in range(table.products.shape[0]):
        product = 1.0
        for p in range(table.products.shape[1]):
            product *= factors[table.products[d, p]]
        terms[d] = (product - table.term_centre[d]) * table.term_inverse[d]


@compiled("reordered", is_inlined=True)
@no_type_check
def _run_network(k, table, terms, one, other):
    """Run context k's layers, `one` and `other` by turns; the outputs are in `one` at the end."""
    num_slots, num_layers = table.offset.shape[0], table.sizes.shape[0] - 1
    weight_start = bias_start = 0
    source = terms
    for layer in range(num_layers):
        num_in, num_out = table.sizes[layer], table.sizes[layer + 1]
        target = one if (num_layers - layer) % 2 == 1 else other
        start = weight_start + k * num_in * num_out
        for o in range(num_out):
            target[o] = table.biases[bias_start + k * num_out + o]
        for i in range(num_in):
            value = source[i]
            if layer > 0:
                value = 0.0 if value < 0.0 else value  # a missing value stays one
            for o in range(num_out):
                target[o] += table.weights[start + i * num_out + o] * value
        weight_start += num_slots * num_in * num_out
        bias_start += num_slots * num_out
        source = target


@compiled("reordered", is_inlined=True)
@no_type_check
def _log_density(k, table, error, terms):
    """Return the part of the log density that depends on the step; `error` is in units of the noise."""
    is_student = table.half.shape[0] > 0
    leverage = 0.0
    if is_student:
        for c in range(terms.shape[0]):
            total = 0.0
            for d in range(terms.shape[0]):
                total += terms[d] * table.factor[k, d, c]
            leverage += total * total
    found = -0.5 * table.layout[2] * np.log1p(leverage)
    for o in range(error.shape[0]):
        white = error[o]
        if table.whitening.shape[0] > 0:
            for i in range(o):
                white += table.whitening[k, o, i] * error[i]
        if is_student:
            half = table.half[k, o]
            found -= (half + 0.5) * np.log1p(white * white / (2.0 * half * (1.0 + leverage)))
        else:
            found -= 0.5 * white * white
    return found


@compiled("reordered")
@no_type_check
def _row_density(obs, act, next_obs, table, scratch, out):
    width, num_bodies = table.layout[0], table.layout[1]
    num_slots = table.offset.shape[0]
    mean, error = scratch.one, scratch.error
    for k in range(num_slots):
        out[k] = 0.0
    for body in range(num_bodies):
        _evaluate_terms(obs, act, body, table, scratch.factors, scratch.terms)
        for k in range(num_slots):
            _run_network(k, table, scratch.terms, mean, scratch.other)
            for o in range(error.shape[0]):
                place = body * width + table.targets[o]
                change = (next_obs[place] - obs[place] - table.target_centre[o]) * table.target_inverse[o]
                error[o] = (change - mean[o]) * table.inverse_std[k, o]
            out[k] += table.offset[k] + _log_density(k, table, error, scratch.terms)
