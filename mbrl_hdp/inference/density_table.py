"""The log density of one step as plain arrays: what a compiled filter runs and what leaves for other runtimes (ONNX).

A transition model that can be written so says it once (`ContextDynamics.density_table`). The structure: products of
simple factors of (obs, act) are scaled and go through one small network for each context; the scaled change of some
columns has a normal distribution around its output, or a Student t distribution that is wider where the weights are
known less.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

PLAIN, SINE, COSINE, HINGE = range(4)
"""Kinds of factors: the scaled column, sine or cosine of number * column, max(scaled column - number, 0)."""


@dataclass(frozen=True)
class TermArrays:
    """Features of x = [obs, act] of one body: factors, and terms that are products of them.

    Attributes:
        kind: kind of every factor.
        column: column of x that it is made of.
        number: frequency of a sine or cosine, knot of a hinge.
        centre: what is subtracted from the column before scaling (plain and hinge factors).
        inverse_scale: what it is multiplied by then.
        index: factors of every term; F, one past the last factor, stands for the number one.
        term_centre: what is subtracted from every term.
        term_inverse: what it is multiplied by then.
    """

    kind: Int[np.ndarray, " F"]
    column: Int[np.ndarray, " F"]
    number: Float[np.ndarray, " F"]
    centre: Float[np.ndarray, " F"]
    inverse_scale: Float[np.ndarray, " F"]
    index: Int[np.ndarray, "D P"]
    term_centre: Float[np.ndarray, " D"]
    term_inverse: Float[np.ndarray, " D"]


@dataclass(frozen=True)
class DensityTable:
    """log p(next_obs | obs, act, context=k) for n contexts, in double precision.

        white = whitening_k ((change - target_centre) * target_inverse - network_k(terms)) * inverse_std_k
        normal:    offset_k - 1/2 sum white^2
        Student t: offset_k - 1/2 m log(1 + l) - sum (half_k + 1/2) log(1 + white^2 / (2 half_k (1 + l)))

    with l = |factor_k^T terms|^2 and m the number of targets that vary (inverse_std above 0). An observation may hold
    several bodies with the same columns; only the first one acts, and their log densities add up.

    Attributes:
        obs_dim: width of an observation.
        act_dim: width of an action.
        body_width: columns of a body.
        num_bodies: bodies whose motion counts, from the first column on.
        terms: what the networks see.
        weights: one array a layer, `n outputs inputs`; ReLU between layers.
        biases: one array a layer, `n outputs`.
        targets: columns of a body whose change is predicted.
        target_centre: centre of their changes.
        target_inverse: 1 / spread of their changes; 0 where a column never changes.
        inverse_std: 1 / noise std in scaled units; 0 for targets without density.
        whitening: unit lower triangular matrices that decorrelate the noise; None where it is independent.
        offset: log density at the mean, without what depends on the step.
        factor: factor of the weights' covariance; None for normal densities.
        half: half the degrees of freedom of every target; None for normal densities.
    """

    obs_dim: int
    act_dim: int
    body_width: int
    num_bodies: int
    terms: TermArrays
    weights: tuple[Float[np.ndarray, "n _ _"], ...]
    biases: tuple[Float[np.ndarray, "n _"], ...]
    targets: Int[np.ndarray, " O"]
    target_centre: Float[np.ndarray, " O"]
    target_inverse: Float[np.ndarray, " O"]
    inverse_std: Float[np.ndarray, "n O"]
    offset: Float[np.ndarray, " n"]
    whitening: Float[np.ndarray, "n O O"] | None = None
    factor: Float[np.ndarray, "n D D"] | None = None
    half: Float[np.ndarray, "n O"] | None = None

    @property
    def num_contexts(self) -> int:
        """Number of contexts."""
        return len(self.offset)

    @property
    def num_varying(self) -> int:
        """Number of targets that have a density."""
        return int((self.target_inverse > 0).sum())
