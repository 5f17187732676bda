"""Several text files as one log: a folder of recordings or a pattern, each file with episodes of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mbrl_hdp.data.logs import Log, count_of
from mbrl_hdp.data.parquet_files import check_same_clock, own_episode
from mbrl_hdp.data.trajectories import Episode, Trajectories
from mbrl_hdp.errors import DataError, short


def joined_logs(parts: Sequence[Path], logs: Sequence[Log]) -> Log:
    """Put the episodes of several files behind each other.

    Raises:
        DataError: naming a file whose columns or sampling are not those of the first.
    """
    first = logs[0]
    episodes: list[Episode] = []
    words: list[str] = []
    names: list[str] = []
    for part, log in zip(parts, logs, strict=True):
        if (log.obs_names, log.act_names) != (first.obs_names, first.act_names):
            raise DataError(
                f"{part} has the columns {short(', '.join((*log.obs_names, *log.act_names)))}, {parts[0]} has "
                f"{short(', '.join((*first.obs_names, *first.act_names)))}; files of one log have the same ones"
            )
        check_same_clock(first, log, str(part))
        episodes += [own_episode(episode, log.context_names, words) for episode in log.data]
        own = log.episode_names or [""] * log.data.num_episodes
        names += [f"{part.name} {name}".strip() for name in own]
    notes = dict.fromkeys(note for log in logs for note in log.notes)
    return replace(
        first,
        data=Trajectories.from_episodes(episodes, any(log.data.allow_missing for log in logs)),
        notes=(f"{count_of(len(parts), 'file')}, {count_of(len(episodes), 'episode')}", *notes),
        context_names=tuple(words),
        episode_names=tuple(names),
        stamps=tuple(stamps for log in logs for stamps in log.stamps),
    )
