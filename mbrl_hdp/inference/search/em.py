"""Expectation maximisation: heads, noise and chain given the contexts, contexts given those, by exact messages."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float

from mbrl_hdp.inference.search.heads import cross_predict
from mbrl_hdp.inference.search.noise import Noise, mean_residual
from mbrl_hdp.inference.search.rows import Rows
from mbrl_hdp.inference.search.stages import sign_of_life
from mbrl_hdp.probability.hmm import smooth
from mbrl_hdp.types import ContextChain

STAY_COUNTS = 5.0


@dataclass
class State:
    """A model with K contexts.

    Attributes:
        weight: probability of every context in every row, `M K`.
        transition: chain, `K K`.
        noise: noise shared by the contexts.
        offset: part of the targets that the past explains, `M Y` (zeros: nothing).
        evidence: cross-fitted log evidence of every episode, `N`.
        residuals: cross-fitted residuals of every context, `K M Y`.
        log_lik: log density of every row in every context, `M K`.
    """

    weight: Float[np.ndarray, "M K"]
    transition: Float[np.ndarray, "K K"]
    noise: Noise
    offset: Float[np.ndarray, "M Y"]
    evidence: Float[np.ndarray, " N"] = field(default_factory=lambda: np.zeros(0))
    residuals: Float[np.ndarray, "K M Y"] = field(default_factory=lambda: np.zeros((0, 0, 0)))
    log_lik: Float[np.ndarray, "M K"] = field(default_factory=lambda: np.zeros((0, 0)))
    robust: Float[np.ndarray, "M K"] | None = None

    @property
    def num_contexts(self) -> int:
        """Number of contexts."""
        return self.weight.shape[1]

    def copy(self) -> State:
        """Copy what EM changes in place."""
        noise = Noise(self.noise.floor, self.noise.covariance.copy(), self.noise.scale)
        return State(
            self.weight, self.transition, noise, self.offset, self.evidence, self.residuals, self.log_lik, self.robust
        )

    def mean_residual(self) -> Float[np.ndarray, "M Y"]:
        """Return the residual expected under the context probabilities."""
        return mean_residual(self.residuals, self.weight)


def sticky(num_contexts: int, leave: float) -> Float[np.ndarray, "K K"]:
    """Return a chain that leaves every context with probability `leave`."""
    if num_contexts == 1:
        return np.ones((1, 1))
    matrix = np.full((num_contexts, num_contexts), leave / (num_contexts - 1))
    np.fill_diagonal(matrix, 1.0 - leave)
    return matrix


def start_state(rows: Rows, weight: Float[np.ndarray, "M K"], floor: float, scale: np.ndarray | None = None) -> State:
    """Return a state that knows only the context probabilities."""
    noise = Noise(floor, np.eye(rows.targets.shape[1]), scale)
    return State(weight, sticky(weight.shape[1], 0.05), noise, np.zeros_like(rows.targets))


def maximise(rows: Rows, features: Float[np.ndarray, "M D"], state: State, num_noise: int = 1) -> None:
    """Fit heads and noise to the present context probabilities."""
    weight = state.weight if state.robust is None else state.weight * state.robust
    ridge = float(np.clip(np.diagonal(state.noise.covariance).mean(), 1e-5, 1.0))
    targets = rows.targets - state.offset
    state.residuals = targets - cross_predict(rows, features, targets, weight, ridge)
    for _ in range(num_noise):
        if state.robust is None:
            state.noise.covariance = _covariance(state)
            state.robust = state.noise.log_density(state.residuals)[1]
        state.noise.update(state.residuals, state.weight, state.robust)
        state.log_lik, state.robust = state.noise.log_density(state.residuals)


def _covariance(state: State) -> Float[np.ndarray, "Y Y"]:
    residuals = state.residuals if state.noise.scale is None else state.residuals / state.noise.scale
    return sum(
        (r * w[:, None]).T @ r for r, w in zip(residuals, state.weight.T, strict=True)
    ) / state.weight.sum()  # fmt: skip


def expect(
    rows: Rows, state: State, most_votes: float | None = None, leave: float | None = None, learn_chain: bool = True
) -> None:
    """Infer the contexts; update the chain.

    Args:
        rows: data.
        state: changed in place.
        most_votes: a step's log densities differ by at most this; None leaves them.
        leave: run on a chain that leaves with this probability instead of the state's own.
        learn_chain: set the chain to what the counts say.
    """
    sign_of_life()
    count = state.num_contexts
    log_lik = state.log_lik
    if most_votes is not None:
        log_lik = np.maximum(log_lik - log_lik.max(1, keepdims=True), -most_votes)
    transition = state.transition if leave is None else sticky(count, leave)
    chain = ContextChain(torch.full((count,), 1.0 / count, dtype=torch.float64), torch.as_tensor(transition))
    found = smooth(chain, torch.as_tensor(rows.pad(log_lik)), rows.length_tensor)
    state.weight = rows.flatten(found.marginals.numpy())
    state.evidence = found.log_evidence.numpy()
    if learn_chain:
        counts = found.expected_transitions.numpy() + 1.0 / count + STAY_COUNTS * np.eye(count)
        state.transition = counts / counts.sum(1, keepdims=True)


def run(
    rows: Rows,
    features: Float[np.ndarray, "M D"],
    state: State,
    num_steps: int,
    most_votes: float | None = None,
    leave: float | None = None,
    tolerance: float = 1e-4,
) -> State:
    """Alternate both steps until the evidence per row stops rising; changes and returns `state`."""
    last = -np.inf
    for _ in range(num_steps):
        maximise(rows, features, state)
        expect(rows, state, most_votes, leave)
        value = float(state.evidence.sum()) / len(rows)
        if most_votes is None and abs(value - last) < tolerance:
            break
        last = value
    return state


def subset(rows: Rows, num_rows: int, seed: int) -> np.ndarray:
    """Return a sorted random choice of rows."""
    if len(rows) <= num_rows:
        return np.arange(len(rows))
    return np.sort(np.random.default_rng(seed).choice(len(rows), num_rows, replace=False))
