"""Compiled loops over (context, phase) that need no messages: the most likely path, and how long stays last."""

from __future__ import annotations

from typing import no_type_check

import numpy as np

from mbrl_hdp.compiling import compiled


@compiled()
@no_type_check
def most_likely_paths(initial, stay, advance, leave, moves, first, log_lik, lengths, paths):
    """Fill `paths` with the contexts of the most likely path of states (Viterbi); all but lik in logarithms."""
    batch, num_steps, num_contexts = log_lik.shape
    num_states = len(stay)
    origin = np.zeros((num_steps, num_states), np.int64)
    best, score = np.empty(num_states), np.empty(num_states)
    exit_score, exit_state = np.empty(num_contexts), np.zeros(num_contexts, np.int64)
    context = np.zeros(num_states, np.int64)
    for k in range(num_contexts):
        context[first[k] : first[k + 1]] = k
    for b in range(batch):
        for t in range(lengths[b]):
            for k in range(num_contexts if t > 0 else 0):
                exit_state[k] = first[k] + np.argmax(best[first[k] : first[k + 1]] + leave[first[k] : first[k + 1]])
                exit_score[k] = best[exit_state[k]] + leave[exit_state[k]]
            for s in range(num_states):
                k = context[s]
                if t == 0:
                    score[s] = initial[s]
                else:
                    score[s], origin[t, s] = best[s] + stay[s], s
                    if s > first[k] and best[s - 1] + advance[s - 1] > score[s]:
                        score[s], origin[t, s] = best[s - 1] + advance[s - 1], s - 1
                    for j in range(num_contexts if s == first[k] else 0):
                        if exit_score[j] + moves[j, k] > score[s]:
                            score[s], origin[t, s] = exit_score[j] + moves[j, k], exit_state[j]
                score[s] += log_lik[b, t, k]
            best[:] = score
        state = np.argmax(best)
        for t in range(lengths[b] - 1, -1, -1):
            paths[b, t] = context[state]
            state = origin[t, state]


@compiled()
@no_type_check
def survival_loops(stay, advance, survival):
    """Fill in the probability that a stay which begins in the first phase lasts longer than n steps."""
    inside = np.zeros(len(stay))
    inside[0] = 1.0
    for n in range(len(survival)):
        survival[n] = inside.sum()
        for s in range(len(stay) - 1, -1, -1):
            inside[s] = stay[s] * inside[s] + (advance[s - 1] * inside[s - 1] if s > 0 else 0.0)
