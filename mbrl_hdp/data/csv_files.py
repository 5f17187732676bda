"""Trajectories to CSV: one row a step, T+1 rows an episode, what belongs to a transition in the row it starts from.

    episode,step,obs_0,obs_1,act_0,context,reward,terminated
    0,0,0.1,-1.5,0.25,0,1.0,0
    0,1,0.2,-1.25,0.5,1,0.5,1
    0,2,0.3,-1.0,,,,

Columns `episode`, `step` (from 0) and at least one `obs_*` are needed; `act_*`, `context`, `reward`, `terminated` are
optional. The last row of an episode holds only the last observation. Rows are sorted; episodes may carry any increasing
numbers and are counted from 0 after loading.
"""

from __future__ import annotations

import csv
import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from mbrl_hdp.data.atomic import atomic_path
from mbrl_hdp.data.names import numbered
from mbrl_hdp.data.trajectories import Episode, Trajectories


def save_csv(data: Trajectories, path: str | Path) -> None:
    """Write one row a step; numbers are written so that loading gives exactly the same values back, as float64.

    Missing samples become empty cells. Padding is not written. Columns keep their names behind `obs_` and `act_`.
    """
    optional = [name for name in ("context", "reward", "terminated") if getattr(data, name) is not None]
    names = [*_header(data, "obs_"), *_header(data, "act_")]
    with atomic_path(Path(path)) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["episode", "step", *names, *optional])
        for number, episode in enumerate(data):
            writer.writerows(_episode_rows(number, episode))


def _header(data: Trajectories, prefix: str) -> tuple[str, ...]:
    """Return the columns' names with this layout's prefix; numbers where there are none, or two would be the same."""
    count = data.obs_dim if prefix == "obs_" else data.act_dim
    known = () if data.names is None else data.names.obs if prefix == "obs_" else data.names.act
    names = tuple(prefix + name.strip().removeprefix(prefix) for name in known)
    return names if len(set(names)) == count else numbered(prefix, count)


def _episode_rows(number: int, episode: Episode) -> Iterator[tuple[Any, ...]]:
    length = len(episode.obs) - 1
    table: list[list[Any]] = _cell_columns(episode.obs)
    if episode.act is not None:
        table += [[*column, None] for column in _cell_columns(episode.act)]
    if episode.context is not None:
        table.append([*(label if label >= 0 else None for label in episode.context.tolist()), None])
    if episode.reward is not None:
        table += [[*column, None] for column in _cell_columns(episode.reward[:, None])]
    if episode.terminated is not None:
        table.append([0] * (length - 1) + [int(episode.terminated), None])
    return zip(itertools.repeat(number), range(length + 1), *table, strict=False)


def _cell_columns(values: Float[np.ndarray, "T D"]) -> list[list[float | None]]:
    # Python floats (csv writes their repr, which is exact) and None (an empty cell) for missing samples.
    columns = values.T.tolist()
    if np.isnan(values).any():
        columns = [[None if math.isnan(value) else value for value in column] for column in columns]
    return columns
