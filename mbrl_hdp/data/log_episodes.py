"""From rows in order to episodes: what is checked, resampled and left out on the way."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from mbrl_hdp.data.clock import resampled
from mbrl_hdp.data.log_order import Ordered, Place, count_of, in_order, was
from mbrl_hdp.data.names import Names
from mbrl_hdp.data.roles import LogConfig, Roles
from mbrl_hdp.data.trajectories import Episode, Trajectories
from mbrl_hdp.errors import DataError

_MANY = 12
_MARKS = (-99.0, -99.9, -999.0, -999.9, -9999.0, -99999.0, 999.0, 9999.0, 99999.0, 999999.0, -1e30, 1e30)
"""Numbers that loggers write for a missing sample."""
_FAR = 10.0


@dataclass(frozen=True)
class Log:
    """A table as trajectories, with what the arrays cannot say.

    Attributes:
        data: the episodes.
        obs_names: observation columns, in the order of the vector.
        act_names: action columns, in the order of the vector.
        dt: seconds per step; None without a time column.
        notes: what was decided on the way, a sentence each.
        context_names: words of the true contexts 0, 1, ...; empty where the file has numbers or none.
        episode_names: what the episodes are called in the file; empty without such a column.
        stamps: time stamp of every step as it stands in the file, one array an episode; empty without a time column.
        units: unit of every column that has one.
    """

    data: Trajectories
    obs_names: tuple[str, ...]
    act_names: tuple[str, ...]
    dt: float | None = None
    notes: tuple[str, ...] = ()
    context_names: tuple[str, ...] = ()
    episode_names: tuple[str, ...] = ()
    stamps: tuple[np.ndarray, ...] = ()
    units: dict[str, str] = field(default_factory=dict)

    @property
    def named(self) -> Trajectories:
        """The episodes, which know their names."""
        return self.data.with_names(Names.of(self))


def build_log(frame: pd.DataFrame, roles: Roles, config: LogConfig, place: Place) -> Log:
    """Lay the rows of a table out as episodes.

    Args:
        frame: columns of `roles`; time, episode and context may be words, all others are floats.
        roles: which column is what.
        config: gaps, resampling and missing cells.
        place: where a row (and column) stands, for messages.
    """
    if not len(frame):
        raise DataError(f"{place(0)}: has no rows")
    if config.missing is not None and not config.allow_missing:
        config = replace(config, allow_missing=True)
    ordered = in_order(frame, roles, config, place)
    _check_cells(ordered, roles, config, place)
    starts = np.append(np.flatnonzero(ordered.is_first), len(ordered.frame))
    pieces = [slice(begin, end) for begin, end in itertools.pairwise(starts.tolist())]
    notes = [*ordered.notes, *_odd_values(ordered.frame, roles)]
    if ordered.found is not None and config.resample is not None:
        tables = [_resampled(ordered, piece, roles, config.resample) for piece in pieces]
        notes.append(f"resampled from about {ordered.found.dt:.4g} to {config.resample:.4g} s a step")
    else:
        tables = [(ordered.frame.iloc[piece], ordered.stamps[piece], ordered.names[piece.start]) for piece in pieces]
    long = [each for each in tables if len(each[0]) > 1]
    if not long:
        raise DataError(
            f"{place(0)}: no episode has two rows in a row, and a transition takes two; "
            + (
                "say what a gap is (max_gap=SECONDS), or resample=SECONDS"
                if "time" in roles.single
                else "check episode="
            )
        )
    if len(long) < len(tables):
        notes.append(
            f"{count_of(len(tables) - len(long), 'episode')} of a single row {was(len(tables) - len(long))} left out"
        )
    codes, context_names = _contexts([table for table, _, _ in long], roles, place)
    episodes = [_episode(table, roles, code) for (table, _, _), code in zip(long, codes, strict=True)]
    data = Trajectories.from_episodes(episodes, config.allow_missing or any(map(_has_holes, episodes)))
    has_time, has_names = "time" in roles.single, config.episode is not None
    dt = None if ordered.found is None or not has_time else (config.resample or ordered.found.dt)
    return Log(
        data,
        roles.obs,
        roles.act,
        dt,
        tuple(notes),
        context_names,
        tuple(str(name) for _, _, name in long) if has_names else (),
        tuple(stamps for _, stamps, _ in long) if has_time else (),
    )


def _odd_values(frame: pd.DataFrame, roles: Roles) -> list[str]:
    """Return a note on every column with numbers that programs write for a missing sample, far from all its others."""
    notes = []
    for name in (*roles.obs, *roles.act):
        values = frame[name].to_numpy(float)
        for mark in _MARKS:
            is_mark = values == mark
            rest = values[~is_mark & np.isfinite(values)]
            if not is_mark.any() or rest.size < is_mark.sum():
                continue
            low, high = np.quantile(rest, [0.05, 0.95])
            if not low - _FAR * (high - low) <= mark <= high + _FAR * (high - low):
                where = count_of(int(is_mark.sum()), "row")
                words = f"{name} is {mark:g} in {where}, far from its other values"
                notes.append(f"{words}: if that marks missing samples, add missing=[{mark:g}]")
    return notes


def _check_cells(ordered: Ordered, roles: Roles, config: LogConfig, place: Place) -> None:
    """Refuse values that are not finite and, unless samples may be missing, the first hole of the file."""
    is_last = np.append(ordered.is_first[1:], True)
    names = [*roles.obs, *roles.act, *(roles.single[key] for key in ("reward", "context") if key in roles.single)]
    is_due = np.ones((len(is_last), len(names)), bool)
    is_due[:, len(roles.obs) :] = ~is_last[:, None]  # what belongs to a transition is not read in an episode's last row
    is_due &= (ordered.rows >= 0)[:, None]
    values = ordered.frame[names]
    infinite = np.column_stack(
        [np.isinf(values[n].to_numpy(float)) if values[n].dtype.kind == "f" else ~is_last & False for n in names]
    )
    for marked, problem in ((infinite, "is not finite"), (values.isna().to_numpy() & is_due, "is empty")):
        if marked.any() and not (config.allow_missing and problem == "is empty"):
            where = np.argwhere(marked)
            row, column = min((int(ordered.rows[r]), int(c)) for r, c in where)
            hint = (
                f" ({count_of(len(where), 'such cell')} in all); allow_missing=true lets samples be missing"
                if problem == "is empty"
                else ""
            )
            raise DataError(f"{place(row, names[column])}: {problem}{hint}")


def _resampled(ordered: Ordered, piece: slice, roles: Roles, step: float) -> tuple[pd.DataFrame, np.ndarray, Any]:
    if "reward" in roles.single:
        raise DataError("rewards belong to the steps as recorded and cannot be resampled; leave them out by ignore=")
    seconds = ordered.seconds[piece]
    table, held = resampled(ordered.frame.iloc[piece].reset_index(drop=True), seconds, step, list(roles.obs))
    return table, ordered.stamps[piece][held], ordered.names[piece.start]


def _contexts(
    tables: list[pd.DataFrame], roles: Roles, place: Place
) -> tuple[list[np.ndarray | None], tuple[str, ...]]:
    """Return the labels of every episode, -1 where empty, and the words that they stand for."""
    if "context" not in roles.single:
        return [None] * len(tables), ()
    column = pd.concat([table[roles.single["context"]] for table in tables])
    numbers = pd.to_numeric(column, errors="coerce")
    is_number = (
        not pd.api.types.is_bool_dtype(column)
        and bool((numbers.notna() == column.notna()).all())
        and bool(((numbers.dropna() % 1 == 0) & (numbers.dropna() >= -1)).all())
    )
    words: tuple[str, ...] = ()
    if is_number:
        labels = numbers.fillna(-1).to_numpy().astype(np.int64)
    else:
        labels, found = pd.factorize(column)
        words = tuple(str(word) for word in found)
        if len(words) > _MANY:
            raise DataError(
                f"{place(0, roles.single['context'])}: has {len(words)} different values, which are no contexts; "
                f"ignore=[{roles.single['context']}] leaves it out"
            )
    return list(np.split(labels, np.cumsum([len(table) for table in tables])[:-1])), words


def _episode(table: pd.DataFrame, roles: Roles, codes: np.ndarray | None) -> Episode:
    """Take the rows of one episode; what belongs to a transition is read in the row it starts from."""
    act = table[list(roles.act)].to_numpy(float)[:-1] if roles.act else None
    reward = table[roles.single["reward"]].to_numpy(float)[:-1] if "reward" in roles.single else None
    ends = table[roles.single["terminated"]].to_numpy(float)[-2:] if "terminated" in roles.single else None
    return Episode(
        obs=table[list(roles.obs)].to_numpy(float),
        act=act,
        context=None if codes is None else codes[:-1],
        reward=reward,
        terminated=None if ends is None else bool((ends == 1).any()),
    )


def _has_holes(episode: Episode) -> bool:
    arrays = (episode.obs, episode.act, episode.reward)
    is_unknown = episode.context is not None and bool((episode.context < 0).any())
    return is_unknown or any(array is not None and bool(np.isnan(array).any()) for array in arrays)
