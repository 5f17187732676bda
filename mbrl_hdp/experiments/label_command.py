"""`mbrl-hdp label`: the context of every step of a data file, by a model on disk."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from mbrl_hdp.data.atomic import atomic_path
from mbrl_hdp.data.files import load_trajectories
from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.errors import DataError
from mbrl_hdp.experiments.columns import ColumnNames
from mbrl_hdp.inference.model import ContextModel
from mbrl_hdp.inference.saving import load
from mbrl_hdp.inference.scoring import align


@dataclass(frozen=True)
class Labels:
    """What a model says about every step.

    Attributes:
        filtered: p(context | what had been seen by then), `N T k`; NaN beyond an episode's end.
        smoothed: p(context | the whole episode), `N T k`; NaN beyond an episode's end.
        most_likely: the most likely path, `N T`; -1 beyond an episode's end.
        lengths: transitions of every episode, `N`.
    """

    filtered: Float[np.ndarray, "N T k"]
    smoothed: Float[np.ndarray, "N T k"]
    most_likely: Int[np.ndarray, "N T"]
    lengths: Int[np.ndarray, " N"]

    @staticmethod
    def of(model: ContextModel, data: Trajectories) -> Labels:
        """Label data by a model."""
        return Labels(model.filter(data), model.smooth(data), model.most_likely(data), data.lengths)

    def save(self, path: Path) -> None:
        """Write one row a step: episode, step, filtered_0.., smoothed_0.., most_likely."""
        contexts = range(self.filtered.shape[-1])
        header = [f"{kind}_{k}" for kind in ("filtered", "smoothed") for k in contexts]
        with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["episode", "step", *header, "most_likely"])
            for episode in range(len(self.lengths)):
                writer.writerows(self._rows(episode))

    def _rows(self, episode: int) -> Iterator[list[int | str]]:
        length = int(self.lengths[episode])
        probs = np.concatenate([self.filtered[episode, :length], self.smoothed[episode, :length]], -1).tolist()
        path = self.most_likely[episode, :length].tolist()
        for step, (row, label) in enumerate(zip(probs, path, strict=True)):
            yield [episode, step, *(f"{value:.6g}" for value in row), label]


def label_file(folder: str, source: str, out: str, allow_missing: bool = False) -> str:
    """Label a data file by the model in a folder; write a CSV file and tell in words what is in it.

    Raises:
        CheckpointError: if there is no model in the folder.
        DataError: if the data is not what the model was learned on, or `out` cannot be written.
    """
    _check_out(Path(out), source)
    model = load(folder)
    data = load_trajectories(source, allow_missing)
    known = ColumnNames.load(Path(folder))
    if known is not None:
        known.check_same(ColumnNames.of(source, data.obs_dim, data.act_dim), source)
    labels = Labels.of(model, data)
    labels.save(Path(out))
    return describe(model, data, labels, out)


def _check_out(out: Path, source: str) -> None:
    """Raise, before any work, if the labels would go nowhere or in place of a model or the data."""
    if not out.name:
        raise DataError("-o names no file; write -o labels.csv")
    if out.is_dir():
        raise DataError(f"cannot write {out}: it is a folder; name a CSV file")
    if not out.absolute().parent.is_dir():
        raise DataError(f"cannot write {out}: there is no folder {out.parent}")
    if out.suffix.lower() != ".csv":
        raise DataError(f"-o {out}: labels are a table; name a file that ends in .csv")
    if out.exists() and Path(source).exists() and out.samefile(source):
        raise DataError(f"-o {out} would overwrite the data; name another file")


def describe(model: ContextModel, data: Trajectories, labels: Labels, out: str) -> str:
    """Return how often each context was active, how likely the data is and, with true contexts, how right it was."""
    counts = np.bincount(labels.most_likely[data.is_step], minlength=model.num_contexts)
    shares = ", ".join(f"context {k} {count / counts.sum():.1%}" for k, count in enumerate(counts))
    per_step = model.log_likelihood(data).sum() / max(int(data.is_observed.sum()), 1)
    lines = [
        f"{data.num_transitions} steps of {data.num_episodes} episodes -> {out}",
        f"share of steps: {shares}",
        f"log-likelihood per step: {per_step:.4g}" + _compared(model, float(per_step)),
    ]
    if data.context is not None:
        lines.append(f"accuracy against the file's contexts: {align(labels.most_likely, data.context).accuracy:.4f}")
    return "\n".join(lines)


def _compared(model: ContextModel, per_step: float) -> str:
    """Set the likelihood beside that of the fit's held-out episodes: much lower means data of another kind."""
    scores = [run["held_out_log_likelihood"] for run in model.report.runs if run.get("taken")]
    if not scores:
        return ""
    words = f" (held-out episodes of the fit, before its last polish: {scores[0]:.4g}"
    is_strange = per_step < scores[0] - max(3.0, abs(scores[0]))
    return words + ("; far lower here: is this the same machine in the same units?)" if is_strange else ")")
