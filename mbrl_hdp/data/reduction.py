"""Fewer observations from many sensors (principal components), and remarks on what a log holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float

from mbrl_hdp.data.logs import Log
from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.errors import ConfigError, DataError


@dataclass(frozen=True)
class Reduction:
    """Principal components of standardised observations: z = (obs - centre) / scale @ directions.

    Attributes:
        columns: the columns that go in.
        centre: mean of every column.
        scale: spread of every column, 0 where it never changes.
        directions: one column a component, `S k`.
        explained: share of the standardised variance that the components hold.
    """

    columns: list[str]
    centre: list[float]
    scale: list[float]
    directions: list[list[float]]
    explained: float

    @staticmethod
    def of(log: Log, num_components: int) -> Reduction:
        """Find the components of a log.

        Raises:
            ConfigError: if there are fewer varying columns than components.
            DataError: if no two rows are complete.
        """
        rows = _complete_rows(log.data)
        if rows is None:
            raise DataError("no two rows are complete: principal components cannot be found with so much missing")
        centre, scale = rows.mean(0), np.where(varying(log.data), rows.std(0), 0.0)
        if num_components > int((scale > 0).sum()):
            raise ConfigError(f"pca={num_components} is above the number of columns that change, {(scale > 0).sum()}")
        values, vectors = np.linalg.eigh(np.cov(_standard(rows, centre, scale).T).reshape(len(scale), -1))
        values, vectors = values[::-1], vectors[:, ::-1]
        # The sign of a component is free: with its largest entry positive it does not depend on the machine.
        vectors = vectors * np.sign(vectors[np.abs(vectors).argmax(0), np.arange(len(values))])
        return Reduction(
            list(log.obs_names),
            centre.tolist(),
            scale.tolist(),
            vectors[:, :num_components].tolist(),
            float(values[:num_components].sum() / values.sum()),
        )

    def apply(self, log: Log) -> Log:
        """Return the log with components in place of the observations; a row with a missing sensor is missing.

        Raises:
            DataError: if its width is another one.
        """
        if log.data.obs_dim != len(self.columns):
            raise DataError(
                f"the components are those of {len(self.columns)} columns, this data has {log.data.obs_dim}"
            )
        directions = np.array(self.directions)
        obs = _standard(log.data.obs, np.array(self.centre), np.array(self.scale)) @ directions
        kept = {name: getattr(log.data, name) for name in ("act", "lengths", "context", "reward", "terminated")}
        data = Trajectories(obs, **kept, allow_missing=log.data.allow_missing)
        count = directions.shape[1]
        names = tuple(f"pc_{number}" for number in range(1, count + 1))
        became = "1 component" if count == 1 else f"{count} components"
        note = f"pca: {len(self.columns)} columns became {became} with {self.explained:.1%} of the variance"
        parts = (f"{name}: {self._strongest(number)}" for number, name in enumerate(names))
        return replace(log, data=data, obs_names=names, notes=(*log.notes, note, *parts))

    def _strongest(self, component: int, most: int = 3) -> str:
        """Return the columns with the largest weights in a component."""
        weights = np.array(self.directions)[:, component]
        order = np.argsort(-np.abs(weights))[:most]
        more = ", ..." if len(self.columns) > most else ""
        return ", ".join(f"{weights[place]:+.2f} {self.columns[place]}" for place in order.tolist()) + more


WIDE = 15
"""Observation columns from which on a reduction is suggested, if few components hold almost all variance."""
ENOUGH = 0.995
"""Share of the variance that suggested components hold: what is left out may be where contexts differ."""


def varying(data: Trajectories) -> Bool[np.ndarray, " S"]:
    """Return which observation columns ever change."""
    rows = data.obs[np.arange(data.max_steps + 1) <= data.lengths[:, None]]
    is_known = ~np.isnan(rows)
    high = np.where(is_known, rows, -np.inf).max(0)
    low = np.where(is_known, rows, np.inf).min(0)
    return high > low


def remarks(log: Log) -> Iterator[str]:
    """Yield what a person should know before a fit: columns that never change, and many columns that say the same."""
    still = [name for name, varies in zip(log.obs_names, varying(log.data), strict=True) if not varies]
    if still and len(still) < log.data.obs_dim:
        words = "never changes and is" if len(still) == 1 else "never change and are"
        yield f"{', '.join(still)} {words} left out: no context can be seen in it"
    count = few_components(log.data)
    if count is not None:
        hold = "1 principal component holds" if count == 1 else f"{count} principal components hold"
        yield (
            f"{log.data.obs_dim} observations, but {hold} {ENOUGH:.1%} of their variance: pca={count} learns on these, "
            "which is faster and finds contexts that so many columns hide"
        )


def few_components(data: Trajectories) -> int | None:
    """Return how many principal components hold almost all variance of many columns; None where a reduction is idle."""
    is_varying = varying(data)
    num_columns = int(is_varying.sum())
    if num_columns < WIDE:
        return None
    rows = _complete_rows(data)
    if rows is None:
        return None
    scale = np.where(is_varying, rows.std(0), 0.0)
    values = np.linalg.eigvalsh(np.cov(_standard(rows, rows.mean(0), scale).T))[::-1]
    count = int(np.searchsorted(np.cumsum(values) / values.sum(), ENOUGH)) + 1
    return count if count <= num_columns // 2 else None


def _standard(rows: Float[np.ndarray, "*n S"], centre: np.ndarray, scale: np.ndarray) -> Float[np.ndarray, "*n S"]:
    return (rows - centre) * np.where(scale > 0, 1.0 / np.where(scale > 0, scale, 1.0), 0.0)


def _complete_rows(data: Trajectories) -> Float[np.ndarray, "M S"] | None:
    """Return the rows in which nothing is missing; None if there are fewer than two."""
    rows = data.obs[np.arange(data.max_steps + 1) <= data.lengths[:, None]]
    complete = rows[np.isfinite(rows).all(-1)]
    return complete if len(complete) > 1 else None
