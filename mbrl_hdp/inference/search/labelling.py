"""Large data: search on a part, then label everything in one pass, so that the time grows linearly."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.inference.search.em import expect, start_state
from mbrl_hdp.inference.search.heads import solve_ridge
from mbrl_hdp.inference.search.moves import Candidate
from mbrl_hdp.inference.search.rows import Rows, make_rows

_SEGMENT = 200
_CHUNK_ROWS = 50_000


def part_of(data: Trajectories, most_rows: int, seed: int = 0) -> Trajectories:
    """Return segments of at most 200 steps, drawn at random, with at most `most_rows` transitions together.

    Data that is no larger is returned as it is.
    """
    if data.num_transitions <= most_rows:
        return data
    width = min(_SEGMENT, data.max_steps)
    pieces = [(i, begin) for i, length in enumerate(data.lengths) for begin in range(0, int(length), width)]
    lengths = np.array([min(width, int(data.lengths[i]) - begin) for i, begin in pieces])
    order = np.random.default_rng(seed).permutation(len(pieces))
    chosen = np.sort(order[np.cumsum(lengths[order]) <= most_rows])
    obs = np.zeros((len(chosen), width + 1, data.obs.shape[2]), dtype=data.obs.dtype)
    act = np.zeros((len(chosen), width, data.act.shape[2]), dtype=data.act.dtype)
    for place, number in enumerate(chosen):
        (episode, begin), length = pieces[number], lengths[number]
        obs[place, : length + 1] = data.obs[episode, begin : begin + length + 1]
        act[place, :length] = data.act[episode, begin : begin + length]
    return Trajectories(obs=obs, act=act, lengths=lengths[chosen], allow_missing=data.allow_missing)


def label(data: Trajectories, rows: Rows, found: Candidate) -> Float[np.ndarray, "N T K"]:
    """Return the probability of every context at every step of `data` under a model found on `rows`."""
    heads = _heads(rows, found)
    probability = np.zeros((data.num_episodes, data.max_steps, found.num_contexts))
    stride = max(1, _CHUNK_ROWS // data.max_steps)
    for begin in range(0, data.num_episodes, stride):
        chosen = slice(begin, begin + stride)
        chunk = make_rows(data.select(np.arange(data.num_episodes)[chosen]), like=rows)
        design = found.features.on(chunk)
        state = start_state(chunk, np.zeros((len(chunk), found.num_contexts)), found.state.noise.floor)
        state.transition, state.noise.covariance = found.state.transition, found.state.noise.covariance
        state.log_lik = state.noise.log_density(np.stack([chunk.targets - design @ head for head in heads]))[0]
        expect(chunk, state, learn_chain=False)
        probability[chosen] = chunk.pad(state.weight)
    return probability


def _heads(rows: Rows, found: Candidate) -> list[Float[np.ndarray, "D Y"]]:
    state, design = found.state, found.features.values
    ridge = float(np.clip(np.diagonal(state.noise.covariance).mean(), 1e-5, 1.0))
    weight = state.weight if state.robust is None else state.weight * state.robust
    heads = []
    for share in weight.T:
        scaled = design * share[:, None]
        heads.append(solve_ridge(scaled.T @ design, scaled.T @ rows.targets, ridge))
    return heads
