"""Which columns of a table are observations, actions, time, ...: by name or pattern, nothing is renamed."""

from __future__ import annotations

import difflib
import fnmatch
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

from mbrl_hdp.data.suggestions import MOST_LISTED, Guesses, as_typed, columns_in_words, example
from mbrl_hdp.errors import ConfigError, DataError, short
from mbrl_hdp.settings import check_settings, setting

GAPS = ("episode", "missing")
SPIKES = ("keep", "drop")
_LISTS = ("obs", "act", "ignore")
_MANY = (*_LISTS, "time", "missing")
_SINGLE = ("episode", "time", "context", "reward", "terminated")


@dataclass
class LogConfig:
    """How a table of readings is read; columns by name or pattern (`temp_*`)."""

    obs: Any = setting(None, "columns of the observations, as in obs=[temp_C,pressure] or obs=[temp_*]; null: obs_*")
    act: Any = setting(None, "columns of the actions; null: act_*")
    ignore: Any = setting(None, "columns to leave out; ignore=[*] leaves out all that have no other role")
    episode: str | None = setting(None, "column whose value starts a new episode when it changes; may hold words")
    time: Any = setting(
        None,
        "column of time stamps (dates, seconds, epoch): gives the order, the seconds per step and the gaps; "
        "time=[date,clock] joins two columns",
    )
    context: str | None = setting(None, "column of true contexts, for scoring only; may hold words")
    reward: str | None = setting(None, "column of rewards")
    terminated: str | None = setting(None, "column that is 1 at the transition into a terminal state")
    gaps: str = setting("episode", "what a gap in time does: start a new episode, or mark missing rows", choices=GAPS)
    max_gap: float | None = setting(
        None, "seconds between rows from which on they count as a gap; null: 1.5 steps, with resample 10", above=0.0
    )
    resample: float | None = setting(
        None, "seconds per step to resample to: observations linearly, the rest held; null: as recorded", above=0.0
    )
    allow_missing: bool = setting(False, "let NaN or empty cells in the data mark missing samples")
    missing: Any = setting(
        None, 'words or numbers that mark a missing sample, as in missing=[-9999,"Bad Input"]; implies allow_missing'
    )
    spikes: str = setting(
        "keep", "drop: readings that jump away and come back at once are missing samples", choices=SPIKES
    )
    max_rows: int | None = setting(
        2_000_000,
        "of a larger parquet log, learn from episodes drawn at random with this many rows, read in pieces; null: all",
        at_least=1000,
    )

    def check(self) -> None:
        """Raise on a value out of range or of the wrong kind.

        Raises:
            ConfigError: naming the key.
        """
        check_settings(self)
        for key in _MANY:
            value = getattr(self, key)
            if value is not None and not _is_names(value):
                what = "words or numbers" if key == "missing" else "column names"
                raise ConfigError(f"{key}={short(str(value))!r} must be a list of {what}, as in {key}=[a,b]")

    def patterns(self, key: str) -> list[str]:
        """Return the names or patterns of a role; also the marks of `missing`."""
        value = getattr(self, key)
        if value is None:
            return []
        return (
            [str(item) for item in value]
            if isinstance(value, Sequence) and not isinstance(value, str)
            else [str(value)]
        )

    @property
    def is_plain(self) -> bool:
        """Whether nothing was said about the columns, so that the library's own names apply."""
        return all(getattr(self, key) is None for key in (*_LISTS, *_SINGLE, "resample"))

    def kept(self) -> dict[str, Any]:
        """Return what was said, for columns.json."""
        return {field.name: getattr(self, field.name) for field in fields(LogConfig)}


@dataclass(frozen=True)
class Roles:
    """Columns of one table by role.

    Attributes:
        obs: observation columns, in the order of the vector.
        act: action columns, in the order of the vector.
        single: the other roles with their column: episode, time, step, context, reward, terminated.
        clock: columns that together are the time, where it stands in several (a date and a time of day); else empty.
    """

    obs: tuple[str, ...]
    act: tuple[str, ...]
    single: dict[str, str]
    clock: tuple[str, ...] = ()

    @property
    def all(self) -> list[str]:
        """All columns that are read."""
        single = [name for role, name in self.single.items() if not (role == "time" and self.clock)]
        return [*self.obs, *self.act, *single, *self.clock]

    @property
    def texts(self) -> list[str]:
        """Columns that are read as they stand and may hold words: time, episode, context."""
        return [*self.clock, *(name for role, name in self.single.items() if role in {"time", "episode", "context"})]


def assign(
    names: Sequence[str], config: LogConfig, place: str, guesses: Guesses | None = None, rest: bool = False
) -> Roles:
    """Sort the columns of a table by role.

    Exact names go before patterns. `obs_*`, `act_*`, `episode`, `step`, `context`, `reward` and `terminated` need no
    words where the file has them.

    Args:
        names: all columns.
        config: what was said about them.
        place: file or object, for messages.
        guesses: what the columns hold; only used to suggest what to type.
        rest: leave out columns without a role (a model knows its own).

    Raises:
        DataError: naming all columns that are missing, doubled or without a role, and what to type.
    """
    doubled = sorted(name for name, count in Counter(names).items() if count > 1)
    if doubled:
        raise DataError(f"{place}: {columns_in_words(doubled)} appears twice; rename one of them")
    taken: dict[str, str] = {}
    missing: list[tuple[str, str]] = []
    for is_exact in (True, False):
        for key, pattern in _asked(config):
            if (pattern in names) != is_exact:
                continue
            found = [pattern] if is_exact else [n for n in names if fnmatch.fnmatchcase(n, pattern) and n not in taken]
            if key == "ignore" and rest:
                continue
            if not found and pattern != "*" and not any(fnmatch.fnmatchcase(n, pattern) for n in names):
                missing.append((key, pattern))
            for name in found:
                if taken.setdefault(name, key) != key:
                    raise DataError(f"{place}: column {name!r} is asked for as {taken[name]} and as {key}; choose one")
    if missing:
        raise DataError(f"{place}: there is no column for {', '.join(_nearest(missing, names))}; {_known(names)}")
    _take_defaults(names, config, taken)
    _refuse_unknown(names, taken, place, guesses or Guesses(), rest)
    single = {key: name for key in (*_SINGLE, "step") for name, role in taken.items() if role == key}
    clock = _ordered(config, taken, "time") if config.time is not None else ()
    if len(clock) > 1:
        single["time"] = " ".join(clock)
    obs, act = (_ordered(config, taken, key) for key in ("obs", "act"))
    return Roles(obs, act, single, clock if len(clock) > 1 else ())


def _nearest(missing: Sequence[tuple[str, str]], names: Sequence[str]) -> Iterator[str]:
    """Yield every setting whose column is not there, with the columns whose names are near."""
    plain = {name.lower(): name for name in names}
    for key, pattern in missing:
        near = [plain[word] for word in difflib.get_close_matches(pattern[:200].lower(), plain, n=2, cutoff=0.5)]
        yield f"{key}={pattern}" + (f" (did you mean {' or '.join(map(repr, near))}?)" if near else "")


def _known(names: Sequence[str]) -> str:
    return f"the file has {', '.join(names)}" if len(names) <= MOST_LISTED else f"it has {len(names)} columns"


def _is_names(value: Any) -> bool:
    items = [value] if isinstance(value, str) or not isinstance(value, Sequence) else value
    return all(isinstance(item, str | int | float) and not isinstance(item, bool) for item in items)


def _asked(config: LogConfig) -> Iterator[tuple[str, str]]:
    """Yield role and pattern, `ignore` last: the other roles go first where patterns overlap."""
    for key in (*_SINGLE, "obs", "act", "ignore"):
        for pattern in config.patterns(key):
            yield key, pattern


def _take_defaults(names: Sequence[str], config: LogConfig, taken: dict[str, str]) -> None:
    for name in names:
        if name in taken:
            continue
        for key in ("obs", "act"):
            if getattr(config, key) is None and name.startswith(f"{key}_"):
                taken[name] = key
        if name in _SINGLE and getattr(config, name) is None and name != "time":
            taken[name] = name
        if name == "step":
            taken[name] = "step" if config.time is None else "ignore"


def _refuse_unknown(names: Sequence[str], taken: dict[str, str], place: str, guesses: Guesses, rest: bool) -> None:
    unknown = [] if rest else [name for name in names if name not in taken]
    has_obs = "obs" in taken.values()
    if has_obs and not unknown:
        return
    if not unknown:
        raise DataError(
            f"{place}: no column is an observation; name them, as in obs=[{names[0] if names else 'a'},...]"
        )
    if has_obs:
        raise DataError(
            f"{place}: {columns_in_words(unknown)} {'has' if len(unknown) == 1 else 'have'} no role; leave out by "
            f"{as_typed('ignore', unknown)}, or add to obs=, act=, episode=, time=, context= or reward="
        )
    raise DataError(
        f"{place}: which columns are observations? For example: {example(unknown, taken.values(), guesses)}"
    )


def _ordered(config: LogConfig, taken: dict[str, str], key: str) -> tuple[str, ...]:
    """Return a role's columns: as listed, those of a pattern as they stand, numbered ones by their numbers."""
    mine = [name for name, role in taken.items() if role == key]
    patterns = config.patterns(key)
    if not patterns:
        tails = [name.removeprefix(f"{key}_") for name in mine]
        return tuple(
            sorted(mine, key=lambda n: int(n.removeprefix(f"{key}_"))) if all(map(str.isdecimal, tails)) else mine
        )
    found: list[str] = []
    for pattern in patterns:
        matched = [pattern] if pattern in mine else [name for name in mine if fnmatch.fnmatchcase(name, pattern)]
        found += [name for name in matched if name not in found and (name == pattern or name not in patterns)]
    return tuple(found)
