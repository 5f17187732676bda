"""Observed columns that nothing recorded influences, such as weather or load: inputs rather than states.

Among the observations they hide contexts: day and night are contexts of the weather, and multiply those of the machine.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.inference.search.labelling import part_of
from mbrl_hdp.inference.search.memory import explained_share, earlier_rows
from mbrl_hdp.inference.search.rows import Rows, make_rows
from mbrl_hdp.inference.search.search import MOST_ROWS, find_contexts

# A column is influenced if what reaches it explains this share of what its own past and the other columns leave over ...
_LEAST_SHARE = 0.01
# ... or a smaller one by so many nats over the whole data.
_LEAST_NATS = 15.0
# Changes of the last steps, which say where in its own course a column is.
_PAST = 3
# Standardised values beyond this count as this: products of far values would decide everything.
_FAR = 4.0


def external_columns(data: Trajectories, max_contexts: int = 10) -> list[int]:
    """Return the observed columns that neither inputs nor columns that depend on inputs influence.

    First without contexts. They may hide an influence, so the contexts of the other columns are searched for, with the
    columns in question as inputs, and columns that are influenced within a context are taken back.

    Args:
        data: episodes; without inputs nothing can be said, and no column is external.
        max_contexts: largest number of contexts in the second step.

    Returns:
        Observation columns, in order; none where no input reaches any column.
    """
    data = part_of(data, MOST_ROWS)
    rows = make_rows(data)
    if not (rows.input_columns >= data.obs_dim).any():
        return []
    found = _unreached(rows, data.obs_dim, np.zeros(len(rows), int))
    while found and len(found) < len(rows.target_columns):
        labels = find_contexts(data.with_inputs(found), max_contexts).labels
        kept = [column for column in found if column in _unreached(rows, data.obs_dim, labels[rows.episode, rows.step])]
        if kept == found:
            return found
        found = kept
    return []


def _unreached(rows: Rows, obs_dim: int, labels: Int[np.ndarray, " M"]) -> list[int]:
    """Return the columns whose changes nothing that depends on inputs predicts, given the contexts of the rows."""
    past = _past_changes(rows)
    waiting = [int(column) for column in rows.target_columns]
    sources = [int(column) for column in rows.input_columns if column >= obs_dim]
    while True:
        reached = [column for column in waiting if _is_influenced(rows, past, column, waiting, sources, labels)]
        if not reached:
            return waiting
        waiting = [column for column in waiting if column not in reached]
        sources += reached


def _is_influenced(
    rows: Rows,
    past: Float[np.ndarray, "M n Y"],
    column: int,
    waiting: list[int],
    sources: list[int],
    labels: Int[np.ndarray, " M"],
) -> bool:
    """Return whether the sources predict the change of a column beyond what its own group knows."""
    kept = np.flatnonzero(np.isfinite(past).all((1, 2)) & (labels >= 0))
    inputs = np.clip(rows.inputs[kept], -_FAR, _FAR)
    target = rows.targets[kept][:, rows.target_columns == column]
    own = inputs[:, np.isin(rows.input_columns, waiting)]
    history = past[kept][:, :, np.isin(rows.target_columns, waiting)].reshape(len(kept), -1)
    base = np.concatenate([own, _products(own, own), history], 1)
    other = inputs[:, np.isin(rows.input_columns, sources)]
    context = (labels[kept, None] == np.unique(labels[kept])).astype(float)
    simple = np.concatenate([_products(context, other), context], 1)
    designs = [simple, np.concatenate([simple, other**2, _products(other, own)], 1)]
    left = 1.0 - explained_share(base, target, rows.fold[kept])[0]
    for more in designs:
        share = 1.0 - (1.0 - explained_share(np.concatenate([base, more], 1), target, rows.fold[kept])[0]) / left
        if share > min(_LEAST_SHARE, 2.0 * _LEAST_NATS / len(kept)):
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
