"""Observed columns that nothing recorded influences, such as weather or load: inputs rather than states.

Among the observations they hide contexts: day and night are contexts of the weather, and multiply those of the machine.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.inference.search.labelling import part_of
from mbrl_hdp.inference.search.memory import earlier_rows, explained_share
from mbrl_hdp.inference.search.rows import Rows, make_rows
from mbrl_hdp.inference.search.search import MOST_ROWS, find_contexts

# A column is influenced if the sources explain this share of what its own past and the other columns leave over ...
_LEAST_SHARE = 0.01
# ... or a smaller one by so many nats over the whole data.
_LEAST_NATS = 15.0
# ... or this one of what the other columns alone leave over.
_CLEAR_SHARE = 0.3
# Changes of the last steps, which say where in its own course a column is.
_PAST = 3
# With fewer transitions that have such a past nothing is said.
_LEAST_ROWS = 500
# Standardised values beyond this count as this: products of far values would decide everything.
_FAR = 4.0

# Contexts of the columns in question that are looked for: enough to see an influence that they turn round.
_OWN_CONTEXTS = 3


def external_columns(data: Trajectories, max_contexts: int = 10) -> list[int]:
    """Return the observed columns that neither inputs nor columns that depend on inputs influence.

    First without contexts. These may hide an influence, where they turn it round, so contexts are searched for twice:
    in the other columns, and in the columns in question. Columns that are influenced within a context, or by the
    contexts of the others, are taken back.

    Args:
        data: episodes; without inputs, or with few transitions, nothing can be said, and no column is external.
        max_contexts: largest number of contexts that are searched for.

    Returns:
        Observation columns, in order; none where no input reaches any column.
    """
    data = part_of(data, MOST_ROWS)
    rows = make_rows(data)
    if not (rows.input_columns >= data.obs_dim).any() or (earlier_rows(rows, _PAST)[-1] >= 0).sum() < _LEAST_ROWS:
        return []
    found = _unreached(rows, data.obs_dim)
    while found and len(found) < len(rows.target_columns):
        kept = found
        for is_own in (False, True):
            columns = [column for column in range(data.obs_dim) if (column in found) != is_own]
            most = min(max_contexts, _OWN_CONTEXTS) if is_own else max_contexts
            labels = find_contexts(data.with_inputs(columns), most).labels
            unreached = _unreached(rows, data.obs_dim, labels[rows.episode, rows.step], is_own)
            kept = [column for column in kept if column in unreached]
        if kept == found:
            return found
        found = kept
    return []


def _unreached(
    rows: Rows, obs_dim: int, labels: Int[np.ndarray, " M"] | None = None, is_own: bool = False
) -> list[int]:  # fmt: skip
    """Return the columns whose changes nothing that depends on inputs predicts, given the contexts of the rows.

    Args:
        rows: the transitions.
        obs_dim: observation columns; the inputs after them are actions.
        labels: context of every row; None: there is one.
        is_own: whether these contexts were found in the columns in question, so that they say nothing about others.
    """
    labels = np.zeros(len(rows), int) if labels is None else labels
    past = _past_changes(rows)
    kept = np.flatnonzero(np.isfinite(past).all((1, 2)) & (labels >= 0))
    known = _Known(
        rows,
        kept,
        np.clip(rows.inputs[kept], -_FAR, _FAR),
        np.clip(past[kept], -_FAR, _FAR),
        (labels[kept, None] == np.unique(labels[kept])).astype(float),
        is_own,
    )
    waiting = [int(column) for column in rows.target_columns]
    sources = [int(column) for column in rows.input_columns if column >= obs_dim]
    while True:
        reached = [column for column in waiting if known.is_influenced(column, waiting, sources)]
        if not reached:
            return waiting
        waiting = [column for column in waiting if column not in reached]
        sources += reached


@dataclass(frozen=True)
class _Known:
    """Rows with a past, and what may explain their changes: inputs, past changes, contexts (one-hot)."""

    rows: Rows
    kept: Int[np.ndarray, " m"]
    inputs: Float[np.ndarray, "m X"]
    past: Float[np.ndarray, "m n Y"]
    context: Float[np.ndarray, "m K"]
    is_own: bool

    def is_influenced(self, column: int, waiting: list[int], sources: list[int]) -> bool:
        """Return whether the sources predict the change of a column beyond what its own group knows."""
        rows, fold = self.rows, self.rows.fold[self.kept]
        target = np.clip(rows.targets[self.kept][:, rows.target_columns == column], -_FAR, _FAR)
        own = self.inputs[:, np.isin(rows.input_columns, waiting)]
        history = self.past[:, :, np.isin(rows.target_columns, waiting)].reshape(len(own), -1)
        base = np.concatenate([own, _products(own, own)], 1)
        other = self.inputs[:, np.isin(rows.input_columns, sources)]
        simple = _products(self.context, other)
        if self.is_own:
            base = np.concatenate([base, self.context, _products(self.context, own)], 1)
        else:
            simple = np.concatenate([simple, self.context], 1)
        rich = np.concatenate([simple, other**2, _products(other, own)], 1)
        least = min(_LEAST_SHARE, 2.0 * _LEAST_NATS / len(own))
        # The past of a position is as good as a velocity, so a large share counts without that past as well.
        tests = [(base, simple, _CLEAR_SHARE), *((np.append(base, history, 1), more, least) for more in (simple, rich))]
        for known, more, share in tests:
            left = 1.0 - explained_share(known, target, fold)[0]
            if 1.0 - explained_share(np.append(known, more, 1), target, fold)[0] < (1.0 - share) * left:
                return True
        return False


def _products(
    one: Float[np.ndarray, "m a"], two: Float[np.ndarray, "m b"]
) -> Float[np.ndarray, "m c"]:  # fmt: skip
    """Return the products of every column of one with every column of the other."""
    return (one[:, :, None] * two[:, None, :]).reshape(len(one), -1)


def _past_changes(rows: Rows) -> Float[np.ndarray, "M n Y"]:
    """Return the changes of the last steps, NaN where there are none."""
    ago = earlier_rows(rows, _PAST)
    return np.where((ago >= 0)[..., None], rows.targets[ago], np.nan).swapaxes(0, 1)
