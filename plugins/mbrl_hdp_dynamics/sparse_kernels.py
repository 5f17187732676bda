"""Compiled rollouts of `sparse`: one call for all steps, paths and candidates, in double precision."""

from __future__ import annotations

from typing import TYPE_CHECKING, no_type_check

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mbrl_hdp.compiling import compiled
from mbrl_hdp_dynamics.rollout_kernels import PlanRollout, array_of, longest_prefix

if TYPE_CHECKING:
    from mbrl_hdp_dynamics.sparse import SparseDynamics

_CHUNK = 256


class SparseRollout(PlanRollout):
    """Rollouts of sparse heads.

    Args:
        dynamics: the heads; read now, not when plans come.
        obs: where all begin.
        paths: slot that acts on each step of each path.
        generator: draws weights, variances and noise of every path; None for expected steps.
    """

    def __init__(
        self,
        dynamics: SparseDynamics,
        obs: Float[Tensor, " S"],
        paths: Int[Tensor, "paths steps"],
        generator: torch.Generator | None,
    ) -> None:
        table, inputs, targets = dynamics.table, dynamics.input_scaler, dynamics.target_scaler
        noise = torch.zeros(*paths.shape, len(obs), dtype=torch.float64)
        weight = dynamics.weight.detach()[None]
        if generator is not None:
            weight, std = _draw(dynamics, len(paths), generator)
            steps = torch.randn(noise.shape, generator=generator, dtype=torch.float64)
            std = std[torch.arange(len(paths))[:, None], paths] * dynamics.draw_widening(paths, generator)
            noise = dynamics.colour(steps, paths) * std * targets.scale
        # Scales of features and targets go into the weights, their centres into the constant's.
        terms = dynamics.term_scaler
        weight = weight * terms.inverse_scale[:, None] * targets.scale
        weight[..., 0, :] += targets.centre - (weight[..., 1:, :] * terms.centre[1:, None]).sum(-2)
        heads = (
            *(array_of(each) for each in (table.column, table.kind, table.number, table.index)),
            *(array_of(each) for each in (inputs.centre, inputs.inverse_scale, weight, noise)),
            generator is not None,
        )
        super().__init__(_roll_out_terms, obs.double(), paths, dynamics.act_dim, heads)


def _draw(dynamics: SparseDynamics, num_paths: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return weights `P K D S` and noise std `P K S` drawn from the posterior, once for each path."""
    shape = dynamics.shape[:, None].expand(num_paths, *dynamics.log_variance.shape).contiguous()
    gamma = torch._standard_gamma(shape, generator=generator)
    std = (dynamics.noise_variance() * shape / gamma).sqrt()
    normal = torch.randn(num_paths, *dynamics.weight.shape, generator=generator, dtype=torch.float64)
    slots = torch.arange(dynamics.max_contexts).expand(num_paths, -1)
    return dynamics.weight + std[..., None, :] * dynamics.colour(dynamics.factor @ normal, slots), std


@compiled()
@no_type_check
def _load_factors(state, acts, first, step, rows, column, kind, number, centre, inverse_scale, values):
    """Fill `values`, `F+1 rows`, with the factors of every row, and ones."""
    num_obs = state.shape[0]
    for f in range(len(column)):
        c = column[f]
        for r in range(rows):
            raw = state[c, r] if c < num_obs else acts[first + r, step, c - num_obs]
            if kind[f] == 1:
                values[f, r] = np.sin(number[f] * raw)
            elif kind[f] == 2:
                values[f, r] = np.cos(number[f] * raw)
            else:
                x = (raw - centre[c]) * inverse_scale[c]
                values[f, r] = x if kind[f] == 0 else max(x - number[f], 0.0)
    for r in range(rows):
        values[len(column), r] = 1.0


@compiled()
@no_type_check
def _add_terms(values, index, head, rows, term, change):
    """Add every term, the product of its factors' values, times its weight to the change."""
    ones = values.shape[0] - 1
    for d in range(index.shape[0]):
        for r in range(rows):
            term[r] = values[index[d, 0], r]
        for n in range(1, index.shape[1]):
            f = index[d, n]
            if f < ones:
                for r in range(rows):
                    term[r] *= values[f, r]
        for s in range(change.shape[0]):
            for r in range(rows):
                change[s, r] += head[d, s] * term[r]


@compiled()
@no_type_check
def _roll_out_terms(
    obs, acts, paths, column, kind, number, index, centre, inverse_scale, weight, noise, is_noisy, states
):
    """Set states[h, p, c] to where plan c is after step h on path p.

    Args:
        obs: start, `S`.
        acts: plans, `P C H A`; `1 C H A` if they are the same on every path.
        paths: slots, `P H`.
        column: input column of every factor, `F`.
        kind: kind of every factor, `F`.
        number: frequency or knot of every factor, `F`.
        index: factors of every term, `D N`.
        centre: centre of every input column.
        inverse_scale: 1 / scale of every input column.
        weight: weights of unscaled terms for changes in own units, `P K D S`, or `1 K D S` for all paths.
        noise: added at every step, `P H S`.
        is_noisy: whether there is any.
        states: receives the result, `H P C S`.
    """
    num_plans, horizon = acts.shape[1], acts.shape[2]
    num_obs = obs.shape[0]
    chunk = min(_CHUNK, num_plans)
    state = np.empty((num_obs, chunk))
    change = np.empty((num_obs, chunk))
    values = np.empty((len(column) + 1, chunk))
    term = np.empty(chunk)
    for p in range(paths.shape[0]):
        twin, num_shared = (0, 0) if is_noisy else longest_prefix(paths, p)
        for h in range(num_shared):
            states[h, p] = states[h, twin]
        path_acts = acts[p if acts.shape[0] > 1 else 0]
        heads = weight[p if weight.shape[0] > 1 else 0]
        for first in range(0, num_plans, chunk):
            rows = min(chunk, num_plans - first)
            for s in range(num_obs):
                for r in range(rows):
                    state[s, r] = states[num_shared - 1, p, first + r, s] if num_shared else obs[s]
            for h in range(num_shared, horizon):
                head = heads[paths[p, h]]
                _load_factors(state, path_acts, first, h, rows, column, kind, number, centre, inverse_scale, values)
                for s in range(num_obs):
                    for r in range(rows):
                        change[s, r] = noise[p, h, s]
                _add_terms(values, index, head, rows, term, change)
                for s in range(num_obs):
                    for r in range(rows):
                        state[s, r] += change[s, r]
                        states[h, p, first + r, s] = state[s, r]
