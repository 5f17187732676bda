"""Cells of `peers` with dynamax: an autoregressive hidden Markov model with sticky transitions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int

from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.errors import ConfigError
from mbrl_hdp.experiments.studies.peer_cell import INSTALL, NUM_ITERATIONS, NUM_STARTS, score, standard

if TYPE_CHECKING:
    from mbrl_hdp.experiments.studies.study import Results, Settings

STICKINESS = 10.0
# Noise added to the changes, in units of their spread: the floor of our own search.
JITTER = 0.01
# Steps of the windows whose regressions the heads start from.
_WINDOW = 12
_START_VARIANCE = 0.1


def run_cell(settings: Settings) -> Results:
    """Label one data set.

    Raises:
        ConfigError: if dynamax is not installed.
    """
    return score(settings, label)


def label(data: Trajectories, num_contexts: int) -> Int[np.ndarray, "N T"]:
    """Fit by EM, the action as a further input; return the most likely paths.

    Changes are regressed on observation and action, all standardised, which is the autoregressive model of order one in
    other units. Every start takes its heads from regressions in windows drawn at random; the start of largest log
    density in the end is taken. Without a little noise on the changes its covariances become singular on exact data.
    """
    try:
        import jax
        from dynamax.hidden_markov_model import LinearRegressionHMM
    except ImportError as error:
        raise ConfigError(f"the peer ar_hmm needs dynamax, which is not installed; {INSTALL}") from error
    jax.config.update("jax_enable_x64", True)
    inputs = standard(np.concatenate([data.obs[:, :-1], data.act], -1))
    changes = standard(np.diff(data.obs, axis=1))
    changes = changes + JITTER * np.random.default_rng(0).normal(size=changes.shape)
    size = changes.shape[-1]
    model = LinearRegressionHMM(num_contexts, inputs.shape[-1], size, transition_matrix_stickiness=STICKINESS)
    best: Any = None
    best_density = -np.inf
    for number in range(NUM_STARTS):
        weights, biases = window_heads(inputs, changes, num_contexts, np.random.default_rng(number))
        start, kinds = model.initialize(
            jax.random.PRNGKey(number),
            transition_matrix=np.full((num_contexts, num_contexts), 0.1 / num_contexts) + 0.9 * np.eye(num_contexts),
            emission_weights=weights,
            emission_biases=biases,
            emission_covariances=np.tile(_START_VARIANCE * np.eye(size), (num_contexts, 1, 1)),
        )
        found, densities = model.fit_em(start, kinds, changes, inputs, num_iters=NUM_ITERATIONS, verbose=False)
        density = float(densities[-1])
        if best is None or (np.isfinite(density) and density > best_density):
            best, best_density = found, density
    return np.asarray(jax.vmap(lambda change, row: model.most_likely_states(best, change, row))(changes, inputs))


def window_heads(
    inputs: Float[np.ndarray, "N T X"], changes: Float[np.ndarray, "N T Y"], num_contexts: int, rng: np.random.Generator
) -> tuple[Float[np.ndarray, "K Y X"], Float[np.ndarray, "K Y"]]:
    """Return weights and biases of ridge regressions in windows drawn at random."""
    weights, biases = [], []
    for _ in range(num_contexts):
        episode, first = rng.integers(len(inputs)), rng.integers(max(1, inputs.shape[1] - _WINDOW))
        window = slice(first, first + _WINDOW)
        rows = np.concatenate([inputs[episode, window], np.ones((len(inputs[episode, window]), 1))], 1)
        gram = rows.T @ rows + 1e-3 * np.eye(rows.shape[1])
        head = np.linalg.solve(gram, rows.T @ changes[episode, window])
        weights.append(head[:-1].T)
        biases.append(head[-1])
    return np.stack(weights), np.stack(biases)
