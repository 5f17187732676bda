"""What columns, episodes and contexts are called: words for people that no computation looks at."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mbrl_hdp.errors import DataError

if TYPE_CHECKING:
    from mbrl_hdp.data.logs import Log


@dataclass(frozen=True)
class Names:
    """What columns and episodes are called in words.

    Attributes:
        obs: observation columns.
        act: action columns.
        units: unit of every column that has one.
        episodes: what the episodes are called in the file; empty: they are numbered.
        dt: seconds per step; None where there is no clock.
        contexts: what the true contexts are called in the file; empty: they are numbered, or unknown.
    """

    obs: Sequence[str]
    act: Sequence[str]
    units: Mapping[str, str] = field(default_factory=dict)
    episodes: Sequence[str] = ()
    dt: float | None = None
    contexts: Sequence[str] = ()

    @staticmethod
    def of(log: Log) -> Names:
        """Take the names from a table that was read."""
        return Names(log.obs_names, log.act_names, log.units, log.episode_names, log.dt, log.context_names)

    @staticmethod
    def numbered(obs_dim: int, act_dim: int) -> Names:
        """Return names for columns that have none: `obs_0`, `obs_1`, ..., `act_0`, ..."""
        return Names(numbered("obs_", obs_dim), numbered("act_", act_dim))

    @staticmethod
    def from_words(words: Mapping[str, Any]) -> Names:
        """Return the names that `words` wrote.

        Raises:
            TypeError: if these are no such words.
            ValueError: likewise.
        """
        lists = {key: tuple(map(str, words.get(key, ()))) for key in ("obs", "act", "episodes", "contexts")}
        dt = words.get("dt")
        return Names(**lists, units=dict(words.get("units", {})), dt=None if dt is None else float(dt))

    def words(self) -> dict[str, Any]:
        """Return what JSON can hold."""
        return dict(json.loads(json.dumps(dataclasses.asdict(self))))

    def check(self, num_episodes: int, obs_dim: int, act_dim: int) -> None:
        """Raise if the data has another number of columns or episodes.

        Raises:
            DataError: saying how many names there should be.
        """
        for kind, given, count in (("observation", self.obs, obs_dim), ("action", self.act, act_dim)):
            if len(given) != count or len(set(given)) != count:
                raise DataError(f"names: {count} different names of {kind} columns are needed, got {listed(given)}")
        if self.episodes and len(self.episodes) != num_episodes:
            raise DataError(f"names: {len(self.episodes)} names of episodes, but there are {num_episodes} episodes")

    def of_episodes(self, chosen: Sequence[int] = ()) -> Names:
        """Return the names of some episodes, in the order given; without any, those of a model, which has none."""
        return dataclasses.replace(self, episodes=tuple(self.episodes[n] for n in chosen) if self.episodes else ())

    def of_columns(self, obs: Sequence[int], act: Sequence[int]) -> Names:
        """Return the names of some columns, in the order given."""
        return dataclasses.replace(self, obs=tuple(self.obs[n] for n in obs), act=tuple(self.act[n] for n in act))

    def with_inputs(self, columns: Sequence[int]) -> Names:
        """Return the names where some observation columns are further actions."""
        moved = tuple(self.obs[n] for n in columns)
        obs = tuple(name for name in self.obs if name not in moved)
        return dataclasses.replace(self, obs=obs, act=(*self.act, *moved))

    def orders(self, theirs: Names) -> tuple[list[int], list[int]]:
        """Return where the columns with these names stand among others, of observations and of actions.

        Numbered columns carry no meaning of their own and fit any names of the same count.

        Raises:
            DataError: naming the columns that are missing.
        """
        kinds = (("obs_", self.obs, theirs.obs), ("act_", self.act, theirs.act))
        obs, act = (_order(kind, list(mine), list(known)) for kind, mine, known in kinds)
        return obs, act


def numbered(prefix: str, count: int) -> tuple[str, ...]:
    """Return names for columns that have none."""
    return tuple(f"{prefix}{number}" for number in range(count))


def listed(names: Sequence[str]) -> str:
    """Return names as words of a sentence."""
    return ", ".join(names) or "(none)"


def joined(parts: Sequence[Names | None], counts: Sequence[int]) -> Names | None:
    """Return the names of several sets together; None where the columns of one have none, or others.

    Args:
        parts: names of every set.
        counts: number of episodes of every set.
    """
    first = parts[0] if parts else None
    if first is None or any(each is None or _columns(each) != _columns(first) for each in parts):
        return None
    known = [each for each in parts if each is not None]
    is_named = all(len(each.episodes) == count for each, count in zip(known, counts, strict=True))
    episodes = tuple(name for each in known for name in each.episodes) if is_named else ()
    is_same_time = all(each.dt == first.dt for each in known)
    contexts = first.contexts if all(tuple(each.contexts) == tuple(first.contexts) for each in known) else ()
    return dataclasses.replace(first, episodes=episodes, dt=first.dt if is_same_time else None, contexts=contexts)


def _columns(names: Names) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return tuple(names.obs), tuple(names.act)


def _order(kind: str, mine: list[str], theirs: list[str]) -> list[int]:
    if set(mine) <= set(theirs):
        return [theirs.index(name) for name in mine]
    if len(mine) == len(theirs) and list(numbered(kind, len(mine))) in (mine, theirs):
        return list(range(len(mine)))
    raise DataError(
        f"the model was learned on columns {listed(mine)}, this data has {listed(theirs)}; missing are "
        f"{listed([name for name in mine if name not in theirs])}"
    )
