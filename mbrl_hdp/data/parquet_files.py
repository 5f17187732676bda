"""Parquet files and folders of them (`pip install pyarrow`)."""

from __future__ import annotations

import heapq
import importlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd

from mbrl_hdp.data.checks import UNKNOWN_CONTEXT
from mbrl_hdp.data.clock import JITTER
from mbrl_hdp.data.log_order import count_of, was
from mbrl_hdp.data.logs import Log, log_from_frame
from mbrl_hdp.data.roles import LogConfig, assign
from mbrl_hdp.data.trajectories import Episode, Trajectories
from mbrl_hdp.errors import DataError

_ENDINGS = (".parquet", ".pq")
PIECE = 500_000
"""Rows that are in memory at a time while a large log is read."""
_INSTALL = "parquet files need the package pyarrow: pip install pyarrow"


def is_parquet(path: str | Path) -> bool:
    """Return whether a path is a parquet file, or a folder that holds some."""
    found = Path(path)
    return found.suffix.lower() in _ENDINGS or (found.is_dir() and any(True for _ in _parts(found)))


def read_parquet_log(path: Path, config: LogConfig, rest: bool = False) -> Log:
    """Read a parquet file, or a folder of them, sorted by name, as one table; a large one in pieces.

    Raises:
        DataError: if pyarrow is not installed, or the file is missing, damaged or not what was said.
    """
    arrow = import_pyarrow()
    if not path.exists():
        raise DataError(f"{path} does not exist")
    try:
        table = arrow.dataset(sorted(_parts(path)) if path.is_dir() else path, format="parquet")
        num_rows = table.count_rows()
        if config.max_rows is None or num_rows <= config.max_rows:
            return log_from_frame(table.to_table().to_pandas(), config, rest, str(path))
        return _sampled(table, num_rows, config, rest, str(path))
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"{path} cannot be read as parquet (damaged or of another kind): {error}") from error


def _sampled(table: Any, num_rows: int, config: LogConfig, rest: bool, place: str) -> Log:
    """Draw whole episodes at random, every one equally likely, with at most `max_rows` rows; one piece at a time.

    Every episode draws a number; those with the smallest are kept. Nothing else of a piece stays in memory.
    """
    assert config.max_rows is not None
    columns = assign(table.schema.names, config, place, rest=rest).all
    rng = np.random.default_rng(0)
    kept: list[tuple[float, int, Episode]] = []  # a heap with the largest number first
    names: list[str] = []
    first: Log | None = None
    size = count = 0
    for number, frame in enumerate(_pieces(table, columns)):
        log = log_from_frame(frame, config, rest, f"{place}, piece {number} of {PIECE:,} rows")
        first = first or replace(log, data=log.data.select([0]))
        check_same_clock(first, log, place)
        for episode in log.data:
            count += 1
            heapq.heappush(kept, (-rng.random(), count, own_episode(episode, log.context_names, names)))
            size += len(episode.obs)
            while size > config.max_rows and len(kept) > 1:
                size -= len(heapq.heappop(kept)[2].obs)
    assert first is not None
    episodes = [episode for _, _, episode in sorted(kept, key=lambda each: each[1])]
    has_holes = any(bool(np.isnan(array).any()) for e in episodes for array in (e.obs, e.act) if array is not None)
    note = (
        f"{num_rows:,} rows were read in pieces of {PIECE:,} (episodes end there, too); {len(episodes)} of "
        f"{count_of(count, 'episode')} with {size:,} rows {was(len(episodes))} drawn at random; max_rows= changes that"
    )
    return Log(
        Trajectories.from_episodes(episodes, config.allow_missing or has_holes),
        first.obs_names,
        first.act_names,
        first.dt,
        (first.notes[0], note) if first.dt is not None else (note,),
        tuple(names),
    )


def _pieces(table: Any, columns: Sequence[str]) -> Iterator[pd.DataFrame]:
    """Yield the rows in order, `PIECE` at a time."""
    arrow = importlib.import_module("pyarrow")
    waiting: list[Any] = []
    size = 0
    for batch in table.to_batches(columns=list(columns), batch_size=1 << 16, batch_readahead=1, fragment_readahead=1):
        waiting.append(batch)
        size += batch.num_rows
        if size >= PIECE:
            yield arrow.Table.from_batches(waiting).to_pandas()
            waiting, size = [], 0
    if size > 1:
        yield arrow.Table.from_batches(waiting).to_pandas()


def own_episode(episode: Episode, words: Sequence[str], names: list[str]) -> Episode:
    """Copy an episode out of its piece, with contexts that are words numbered as in the pieces before."""
    context = episode.context
    if words and context is not None:
        names += [word for word in words if word not in names]
        number = np.array([names.index(word) for word in words] + [UNKNOWN_CONTEXT])
        context = number[context]
    act, own_context, reward = (None if a is None else np.array(a) for a in (episode.act, context, episode.reward))
    return Episode(np.array(episode.obs), act, own_context, reward, episode.terminated)


def check_same_clock(first: Log, log: Log, place: str) -> None:
    """Raise if two parts of one log differ in their seconds per step."""
    if first.dt is not None and log.dt is not None and abs(log.dt / first.dt - 1.0) > JITTER:
        words = f"sampling changes from {first.dt:.4g} to {log.dt:.4g} s a step"
        raise DataError(f"{place}: {words}; resample={first.dt:.4g} makes it one")


def import_pyarrow() -> ModuleType:
    """Return pyarrow's module of data sets.

    Raises:
        DataError: if it is not installed.
    """
    try:
        return importlib.import_module("pyarrow.dataset")
    except ImportError as error:
        raise DataError(_INSTALL) from error


def _parts(folder: Path) -> list[str]:
    return [str(path) for path in folder.rglob("*") if path.suffix.lower() in _ENDINGS]
