"""The built-in structures as density tables, for the compiled online filter and for export."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mbrl_hdp.inference.density_table import COSINE, PLAIN, SINE, DensityTable, TermArrays
from mbrl_hdp_dynamics import layout as step

if TYPE_CHECKING:
    from mbrl_hdp_dynamics.sparse import SparseDynamics
    from mbrl_hdp_dynamics.structured import StructuredDynamics

_LOG_2PI = math.log(2.0 * math.pi)
_KINDS = {step.STATE: PLAIN, step.ACT: PLAIN, step.ACT_SQUARE: PLAIN, step.SINE: SINE, step.COSINE: COSINE}
Array = NDArray[Any]


def network_table(
    dynamics: StructuredDynamics,
    layout: step.StepLayout,
    slots: Tensor,
    num_bodies: int = 1,
    whitening: Tensor | None = None,
) -> DensityTable:
    """Return the density of networks on the features of a layout, for some slots.

    Args:
        dynamics: the networks, their noise and scales.
        layout: features and columns.
        slots: contexts of the table.
        num_bodies: bodies whose motion counts.
        whitening: mixing of the noise of all slots; none where it is independent.
    """
    with torch.no_grad():
        std = _double(dynamics.noise_std()[slots])
        weights = tuple(_double(weight[slots]) for weight in dynamics.heads.weights)
        biases = tuple(_double(bias[slots]) for bias in dynamics.heads.biases)
        mixing = None if whitening is None else _double(whitening[slots])
    inverse = _double(dynamics.target_scaler.inverse_scale)
    varies = inverse > 0
    peak = np.where(varies, -np.log(std) - 0.5 * _LOG_2PI, 0.0).sum(-1) - _log_volume(dynamics.target_scaler)
    return DensityTable(
        dynamics.obs_dim,
        dynamics.act_dim,
        layout.body_width,
        num_bodies,
        _network_terms(layout, dynamics.input_scaler),
        weights,
        biases,
        layout.first_changed + np.arange(std.shape[1]),
        _double(dynamics.target_scaler.centre),
        inverse,
        np.where(varies, 1.0 / std, 0.0),
        peak,
        mixing,
    )


def _network_terms(layout: step.StepLayout, scaler: Any) -> TermArrays:
    count = len(layout.features)
    acts = {step.ACT, step.ACT_SQUARE}
    index = [[place, place if kind == step.ACT_SQUARE else count] for place, (kind, _) in enumerate(layout.features)]
    return TermArrays(
        np.array([_KINDS[kind] for kind, _ in layout.features]),
        np.array([column + (layout.body_width if kind in acts else 0) for kind, column in layout.features]),
        np.ones(count),
        np.zeros(count),
        np.ones(count),
        np.array(index),
        _double(scaler.centre),
        _double(scaler.inverse_scale),
    )


def sparse_table(dynamics: SparseDynamics, slots: Tensor, whitening: Tensor | None = None) -> DensityTable:
    """Return the Student t density of `sparse`, for some slots.

    Args:
        dynamics: the heads.
        slots: contexts of the table.
        whitening: mixing of the noise of all slots; none where it is independent.
    """
    with torch.no_grad():
        variance, halves = _double(dynamics.noise_variance()[slots]), dynamics.half_degrees()[slots]
        weight, factor = _double(dynamics.weight[slots]), _double(dynamics.factor[slots])
        peak = torch.lgamma(halves + 0.5) - torch.lgamma(halves)
    half = np.broadcast_to(_double(halves), variance.shape)
    inverse = _double(dynamics.target_scaler.inverse_scale)
    varies = inverse > 0
    peaks = _double(peak) - 0.5 * np.log(2.0 * np.pi * half) - 0.5 * np.log(variance)
    return DensityTable(
        dynamics.obs_dim,
        dynamics.act_dim,
        dynamics.obs_dim,
        1,
        _sparse_terms(dynamics),
        (weight.transpose(0, 2, 1),),
        (np.zeros((len(slots), dynamics.obs_dim)),),
        np.arange(dynamics.obs_dim),
        _double(dynamics.target_scaler.centre),
        inverse,
        np.where(varies, variance**-0.5, 0.0),
        np.where(varies, peaks, 0.0).sum(-1) - _log_volume(dynamics.target_scaler),
        None if whitening is None else _double(whitening[slots]),
        factor,
        half,
    )


def _sparse_terms(dynamics: SparseDynamics) -> TermArrays:
    table = dynamics.table
    column = table.column.cpu().numpy()
    return TermArrays(
        table.kind.cpu().numpy(),  # `KINDS` of the terms are in the order of the table's kinds
        column,
        _double(table.number),
        _double(dynamics.input_scaler.centre)[column],
        _double(dynamics.input_scaler.inverse_scale)[column],
        table.index.cpu().numpy(),
        _double(dynamics.term_scaler.centre),
        _double(dynamics.term_scaler.inverse_scale),
    )


def _log_volume(scaler: Any) -> float:
    scale = _double(scaler.scale)
    return float(np.log(scale[scale > 0]).sum())


def _double(tensor: Tensor) -> Array:
    return tensor.detach().double().cpu().numpy()
