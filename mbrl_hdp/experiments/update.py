"""`mbrl-hdp fit NEW_DATA update=DIR`: widen the model in a folder by what new data shows, and keep its contexts.

The model goes on from its own contexts on its old data and the new data together: a context that is not in the new data
is then neither forgotten nor distilled away. The old data is read again from where the model's config.yaml says.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf

from mbrl_hdp.data.logs import Log
from mbrl_hdp.data.pieces import piece_of
from mbrl_hdp.data.roles import LogConfig
from mbrl_hdp.data.trajectories import Episode, Trajectories
from mbrl_hdp.errors import ConfigError, DataError
from mbrl_hdp.experiments.columns import ColumnNames
from mbrl_hdp.hooks import Registry
from mbrl_hdp.inference.model import ContextModel
from mbrl_hdp.inference.saving import load

# With fewer episodes, the end of each is held out instead of whole ones.
_FEWEST_EPISODES = 10


@dataclass(frozen=True)
class Previous:
    """The model that is updated, with how its data was read and that data."""

    model: ContextModel
    columns: ColumnNames
    data: Trajectories

    @staticmethod
    def load(folder: Path, registry: Registry) -> Previous:
        """Load a model that `fit` wrote, and its data.

        Raises:
            CheckpointError: if there is no model in the folder.
            ConfigError: if it was not written by `fit`, or its data is no longer there.
        """
        model, columns = load(folder, registry), ColumnNames.load(folder)
        if columns is None:
            raise ConfigError(f"update={folder}: `mbrl-hdp fit` did not write this model, so its data is not known")
        parts = []
        for source in sources_of(folder):
            try:
                parts.append(columns.read_same(source, {}).data)
            except DataError as error:
                raise ConfigError(
                    f"update={folder}: the model's own data is needed beside the new data, but {error}; put it back, "
                    "or run this where it was learned"
                ) from error
        return Previous(model, columns, Trajectories.concatenate(parts))

    def read_new(self, source: str, typed: LogConfig) -> Log:
        """Read new data as the model's own was read, but for settings that differ from their defaults here."""
        defaults = LogConfig()
        names = [each.name for each in fields(LogConfig)]
        changes = {name: getattr(typed, name) for name in names if getattr(typed, name) != getattr(defaults, name)}
        return self.columns.read_same(source, changes)


def sources_of(folder: Path) -> list[str]:
    """Return where the data of a model came from, oldest first: that of its fit, and of every update before.

    Raises:
        ConfigError: if the folder's config.yaml does not say so.
    """
    found: list[str] = []
    seen: set[Path] = set()
    place: Path | None = folder
    while place is not None:
        words: Any = OmegaConf.load(place / "config.yaml") if (place / "config.yaml").is_file() else {}
        if "data" not in words or place.resolve() in seen:
            raise ConfigError(f"update={folder}: {place / 'config.yaml'} does not name the data of the model")
        seen.add(place.resolve())
        found.insert(0, str(words["data"]))
        place = Path(words["update"]) if words.get("update") else None
    return found


def hold_out(data: Trajectories, share: float, seed: int) -> tuple[Trajectories, Trajectories]:
    """Split data into what is learned from and what the novelty alarm is calibrated on.

    Whole episodes are held out; of fewer than ten, the last part of each.
    """
    count = round(share * data.num_episodes)
    if data.num_episodes >= _FEWEST_EPISODES and count:
        aside, rest = data.split([count, data.num_episodes - count], seed=seed)
        return rest, aside
    parts = [_cut(episode, share) for episode in data]
    is_missing = bool(np.isnan(data.obs).any())
    first, last = (Trajectories.from_episodes(side, allow_missing=is_missing) for side in zip(*parts, strict=True))
    return first, last


def _cut(episode: Episode, share: float) -> tuple[Episode, Episode]:
    """Cut an episode in two; the observation between them belongs to both."""
    length = len(episode.obs) - 1
    place = min(max(round((1.0 - share) * length), 1), length - 1)
    return piece_of(episode, 0, place), piece_of(episode, place, length)


def remarks(model: ContextModel, is_update: bool) -> list[str]:
    """Return what the command says about new contexts and the alarm."""
    lines = []
    if is_update:
        new = model.report.search.get("new_contexts", [])
        words = ", ".join(f"context {number}" for number in new) or "none"
        lines.append(f"new contexts: {words} (the others kept their slots)")
    if model.novelty is not None:
        steps = model.novelty.table.num_steps
        lines.append(
            f"novelty alarm: calibrated on {steps} held-out steps; `mbrl-hdp label` shows it (docs/novelty.md)"
        )
    return lines
