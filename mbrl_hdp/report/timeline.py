"""The whole log as a page draws it: smallest and largest value of every few rows, contexts as runs of equal labels.

Rows are the observations of all episodes, end to end; an episode of L steps has L + 1 of them, and the last one, which
no step begins at, has no label. Short logs are kept row by row. Of long ones, neighbouring rows share a bin that keeps
their smallest and largest value, so that no peak is lost; labels stay exact as long as a page can hold them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, Int16, Int32, UInt8

from mbrl_hdp.data.logs import Log
from mbrl_hdp.data.tensor_files import read_tensors, write_tensors
from mbrl_hdp.errors import CheckpointError
from mbrl_hdp.inference.analysis import Analysis

# What a page can hold besides an animation; base64 adds a third to it.
_MOST_BYTES, _FEWEST_BINS = 3_000_000, 400
MOST_COLUMNS = 500
_MOST_RUNS = 60_000
_MISSING, _LARGEST = -32768, 32767
TIMELINE = "timeline.safetensors"


@dataclass(frozen=True)
class Column:
    """A sensor or an action.

    Attributes:
        name: as in the file.
        unit: as in the file; empty where unknown.
        kind: `sensor` or `action`.
        low: smallest value, stored as -32767.
        high: largest value, stored as 32767.
    """

    name: str
    unit: str
    kind: str
    low: float
    high: float


@dataclass(frozen=True)
class LabelRuns:
    """Labels as runs of equal ones.

    Attributes:
        start: first row of every run.
        value: its label, -1 for none.
        bin_rows: rows that a label stands for; 1: labels are exact.
    """

    start: Int32[np.ndarray, " n"]
    value: Int16[np.ndarray, " n"]
    bin_rows: int


@dataclass(frozen=True)
class Timeline:
    """A log, drawn.

    Attributes:
        num_rows: rows of the log.
        bin_rows: rows that share a bin of `low`, `high` and `belief`.
        columns: sensors, then actions.
        low: smallest value of every column and bin, scaled; -32768 where all are missing.
        high: largest value likewise; the same array where bins hold one row.
        belief: mean filtered probability of every context by bin, 0 to 255.
        labels: most likely contexts.
        truth: true contexts, in their own numbering; None where unknown.
        starts: first row of every episode.
        episode_names: what the episodes are called; empty where they have numbers only.
        first_stamps: time stamp of the first row of every episode, as in the file; empty without a time column.
        dt: seconds per row, where known.
        num_columns: columns of the log, of which the first ones are kept.
    """

    num_rows: int
    bin_rows: int
    columns: list[Column]
    low: Int16[np.ndarray, "C B"]
    high: Int16[np.ndarray, "C B"]
    belief: UInt8[np.ndarray, "B k"]
    labels: LabelRuns
    truth: LabelRuns | None
    starts: Int32[np.ndarray, " N"]
    episode_names: list[str]
    first_stamps: list[str]
    dt: float | None
    num_columns: int

    @staticmethod
    def of(found: Analysis, log: Log) -> Timeline:
        """Draw what a model says about a log.

        Args:
            found: `model.analyse(log.data)`.
            log: the data with the names of its columns, episodes and times.
        """
        data = log.data
        is_row = np.arange(data.max_steps + 1) <= data.lengths[:, None]
        num_rows = int(is_row.sum())
        act = np.where(data.is_step[..., None], data.act, np.nan)  # an episode's last row begins no step
        sources = [(name, "sensor", data.obs[..., c]) for c, name in enumerate(log.obs_names)]
        sources += [(name, "action", _one_longer(act[..., c], np.nan)) for c, name in enumerate(log.act_names)]
        kept = sources[:MOST_COLUMNS]
        bin_rows = _bin_rows(num_rows, len(kept), found.filtered.shape[-1])
        pairs = [_scaled(name, log.units.get(name, ""), kind, values[is_row], bin_rows) for name, kind, values in kept]
        belief = [
            _binned(_one_longer(found.filtered[..., k], np.nan)[is_row], bin_rows, _mean)
            for k in range(found.filtered.shape[-1])
        ]
        truth = None if data.context is None else np.where(data.is_step, data.context, -1)
        return Timeline(
            num_rows=num_rows,
            bin_rows=bin_rows,
            columns=[column for column, _, _ in pairs],
            low=np.stack([low for _, low, _ in pairs]),
            high=np.stack([high for _, _, high in pairs]),
            belief=np.round(255 * np.nan_to_num(np.stack(belief, -1))).astype(np.uint8),
            labels=runs_of(_one_longer(found.most_likely, -1)[is_row]),
            truth=None if truth is None or not (truth >= 0).any() else runs_of(_one_longer(truth, -1)[is_row]),
            starts=np.append(0, np.cumsum(data.lengths + 1)[:-1]).astype(np.int32),
            episode_names=list(log.episode_names),
            first_stamps=[str(stamps[0]) for stamps in log.stamps],
            dt=log.dt,
            num_columns=len(sources),
        )

    def save(self, folder: Path) -> None:
        """Write timeline.safetensors, from which `mbrl-hdp report` draws without the data."""
        tensors = {"low": self.low, "high": self.high, "belief": self.belief, "starts": self.starts}
        words: dict[str, Any] = {
            name: getattr(self, name)
            for name in ("num_rows", "bin_rows", "episode_names", "first_stamps", "dt", "num_columns")
        }
        words["columns"] = [asdict(column) for column in self.columns]
        for name, runs in (("labels", self.labels), ("truth", self.truth)):
            if runs is not None:
                tensors |= {f"{name}_start": runs.start, f"{name}_value": runs.value}
                words[f"{name}_bin_rows"] = runs.bin_rows
        plain = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in tensors.items()}
        write_tensors(folder / TIMELINE, plain, words)

    @staticmethod
    def load(folder: Path) -> Timeline | None:
        """Read it back; None where there is none.

        Raises:
            CheckpointError: if it is damaged.
        """
        if not (folder / TIMELINE).exists():
            return None
        tensors, words = read_tensors(folder / TIMELINE)
        arrays: dict[str, Any] = {name: tensor.numpy() for name, tensor in tensors.items()}
        try:
            columns = [Column(**column) for column in words.pop("columns")]
            runs = {}
            for name in ("labels", "truth"):
                bins = words.pop(f"{name}_bin_rows", None)
                runs[name] = (
                    None if bins is None else LabelRuns(arrays.pop(f"{name}_start"), arrays.pop(f"{name}_value"), bins)
                )
            assert runs["labels"] is not None
            return Timeline(columns=columns, labels=runs["labels"], truth=runs["truth"], **arrays, **words)
        except (KeyError, TypeError, AssertionError) as error:
            raise CheckpointError(f"{folder / TIMELINE} is not what `mbrl-hdp fit` writes: {error}") from error


def runs_of(labels: Int[np.ndarray, " R"], most: int = _MOST_RUNS) -> LabelRuns:
    """Return labels as runs; of too many, the most frequent label of every few rows."""
    bin_rows, shown = 1, labels
    starts = _starts(shown)
    if len(starts) > most:
        bin_rows = -(-len(labels) // most)
        shown = _most_frequent(labels, bin_rows)
        starts = _starts(shown)
    return LabelRuns((starts * bin_rows).astype(np.int32), shown[starts].astype(np.int16), bin_rows)


def _starts(labels: Int[np.ndarray, " R"]) -> Int[np.ndarray, " n"]:
    return np.append(0, np.flatnonzero(np.diff(labels)) + 1)


def _most_frequent(labels: Int[np.ndarray, " R"], bin_rows: int) -> Int[np.ndarray, " B"]:
    bins = np.arange(len(labels)) // bin_rows
    counts = np.zeros((bins[-1] + 1, int(labels.max()) + 2), dtype=np.int64)
    np.add.at(counts, (bins, labels + 1), 1)
    return counts.argmax(-1) - 1


def _bin_rows(num_rows: int, num_columns: int, num_contexts: int) -> int:
    """Return the rows of a bin: one as long as every row fits onto a page."""
    if num_rows * (2 * num_columns + num_contexts) <= _MOST_BYTES:
        return 1
    return -(-num_rows // max(_MOST_BYTES // (4 * num_columns + num_contexts), _FEWEST_BINS))


def _one_longer(values: np.ndarray, last: float) -> np.ndarray:
    """Return values of steps, `N T`, in the shape of observations, `N T+1`."""
    return np.concatenate([values, np.full((len(values), 1), last, dtype=values.dtype)], axis=1)


def _binned(values: Float[np.ndarray, " R"], bin_rows: int, reduce: Any) -> Float[np.ndarray, " B"]:
    if bin_rows == 1:
        return values
    rest = -len(values) % bin_rows
    return reduce(np.append(values, np.full(rest, np.nan)).reshape(-1, bin_rows))


def _mean(values: Float[np.ndarray, "B r"]) -> Float[np.ndarray, " B"]:
    is_known = np.isfinite(values)
    return np.where(is_known, values, 0.0).sum(-1) / np.maximum(is_known.sum(-1), 1)


def _smallest(values: Float[np.ndarray, "B r"]) -> Float[np.ndarray, " B"]:
    return np.fmin.reduce(values, axis=-1)


def _largest(values: Float[np.ndarray, "B r"]) -> Float[np.ndarray, " B"]:
    return np.fmax.reduce(values, axis=-1)


def _scaled(
    name: str, unit: str, kind: str, values: Float[np.ndarray, " R"], bin_rows: int
) -> tuple[Column, Int16[np.ndarray, " B"], Int16[np.ndarray, " B"]]:
    """Return a column with the smallest and largest value of every bin."""
    values = values.astype(np.float64)
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 0.0)
    edges = _binned(values, bin_rows, _smallest), _binned(values, bin_rows, _largest)
    half = 0.5 * (high - low) or 1.0
    whole = [np.nan_to_num((edge - 0.5 * (low + high)) / half * _LARGEST, nan=_MISSING) for edge in edges]
    first, second = (np.round(each).astype(np.int16) for each in whole)
    return Column(name, unit, kind, low, high), first, second
