"""Which columns of a table are observations, actions, time, ...: by name or pattern, nothing is renamed."""

from __future__ import annotations

import fnmatch
import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

from mbrl_hdp.errors import ConfigError, DataError, did_you_mean, short
from mbrl_hdp.settings import check_settings, setting

GAPS = ("episode", "missing")
_LISTS = ("obs", "act", "ignore")
_MANY = (*_LISTS, "time", "missing")
_SINGLE = ("episode", "time", "context", "reward", "terminated")
_MOST_LISTED, _LONGEST_NAME = 60, 40
_TIME_WORDS = re.compile(r"time|date|stamp|clock|^t$|^ts$|^sec", re.IGNORECASE)
_DATE, _CLOCK = re.compile(r"^date$|^datum$|^day$", re.IGNORECASE), re.compile(r"^time$|^clock$|^zeit$", re.IGNORECASE)
_TAG_WORDS = re.compile(r"^(tag|variable|sensor|signal|point|channel|name|metric)", re.IGNORECASE)
_VALUE_WORDS = re.compile(r"^(value|reading|measurement)", re.IGNORECASE)
_EPISODE_WORDS = re.compile(
    r"episode|shift|batch|^run|trial|session|segment|^lap|trip|experiment|^unit|machine", re.IGNORECASE
)
_ACT_WORDS = re.compile(
    r"^act|cmd|command|set.?point|_sp$|valve|pwm|duty|throttle|steer|heater|elevator|rudder|aileron|\.op$|^u\d*$",
    re.IGNORECASE,
)


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
class Guesses:
    """What the contents of columns say about their roles, to suggest what to type.

    Attributes:
        words: columns that hold words.
        empty: columns without a single value.
        is_python: whether the table is an object in Python, so that Python is typed.
    """

    words: Collection[str] = ()
    empty: Collection[str] = ()
    is_python: bool = False


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
        raise DataError(f"{place}: {_listed(doubled)} appears twice; rename one of them")
    taken: dict[str, str] = {}
    missing: list[str] = []
    for is_exact in (True, False):
        for key, pattern in _asked(config):
            if (pattern in names) != is_exact:
                continue
            found = [pattern] if is_exact else [n for n in names if fnmatch.fnmatchcase(n, pattern) and n not in taken]
            if key == "ignore" and rest:
                continue
            if not found and pattern != "*" and not any(fnmatch.fnmatchcase(n, pattern) for n in names):
                missing.append(f"{key}={pattern}")
            for name in found:
                if taken.setdefault(name, key) != key:
                    raise DataError(f"{place}: column {name!r} is asked for as {taken[name]} and as {key}; choose one")
    if missing:
        wanted = [line.partition("=")[2] for line in missing]
        hint = did_you_mean(wanted[0], names) if len(names) <= _MOST_LISTED else f"it has {len(names)} columns"
        raise DataError(f"{place}: there is no column for {', '.join(missing)}; {hint}")
    _take_defaults(names, config, taken)
    _refuse_unknown(names, taken, place, guesses or Guesses(), rest)
    single = {key: name for key in (*_SINGLE, "step") for name, role in taken.items() if role == key}
    clock = _ordered(config, taken, "time") if config.time is not None else ()
    if len(clock) > 1:
        single["time"] = " ".join(clock)
    obs, act = (_ordered(config, taken, key) for key in ("obs", "act"))
    return Roles(obs, act, single, clock if len(clock) > 1 else ())


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
            f"{place}: {_listed(unknown)} {'has' if len(unknown) == 1 else 'have'} no role; leave out by "
            f"{_typed('ignore', unknown)}, or add to obs=, act=, episode=, time=, context= or reward="
        )
    typed = _suggested(unknown, taken, guesses)
    words = _in_python(typed) if guesses.is_python else " ".join(_typed(key, names) for key, names in typed)
    example = f"{place}: which columns are observations? For example: {words}"
    tag = next((name for name in unknown if _TAG_WORDS.search(name) and name in guesses.words), None)
    value = next((name for name in unknown if _VALUE_WORDS.search(name) and name not in guesses.words), None)
    if tag is not None and value is not None:
        example += (
            f" (if {tag!r} names the sensor of each row, turn the table first, one column a sensor: in pandas, "
            f"df.pivot(index=..., columns={tag!r}, values={value!r}))"
        )
    raise DataError(example)


def _suggested(unknown: Sequence[str], taken: dict[str, str], guesses: Guesses) -> list[tuple[str, str | list[str]]]:
    """Return settings to type for columns without a role, guessed from their names and contents."""
    left = [name for name in unknown if name not in guesses.empty]
    typed: list[tuple[str, str | list[str]]] = []
    date, clock = (next((name for name in left if pattern.search(name)), None) for pattern in (_DATE, _CLOCK))
    if "time" not in taken.values() and date and clock and date != clock and {date, clock} <= {*guesses.words}:
        left = [name for name in left if name not in (date, clock)]
        typed.append(("time", [date, clock]))
    for key, pattern in (("time", _TIME_WORDS), ("episode", _EPISODE_WORDS)):
        found = next((name for name in left if pattern.search(name)), None)
        if key not in taken.values() and found is not None and not (key == "time" and typed):
            left.remove(found)
            typed.append((key, found))
    ignored = [name for name in unknown if name in guesses.empty or (name in left and name in guesses.words)]
    acts = [name for name in left if name not in guesses.words and _ACT_WORDS.search(name)]
    obs = [name for name in left if name not in guesses.words and name not in acts]
    return typed + [(key, names) for key, names in (("obs", obs), ("act", acts), ("ignore", ignored)) if names]


def _in_python(typed: Sequence[tuple[str, str | list[str]]]) -> str:
    """Return a call as a person types it in Python."""
    words = (f"{key}={['*'] if len(names) > _MOST_LISTED else names!r}" for key, names in typed)
    return f"Trajectories.from_frame(df, {', '.join(words)})"


def _typed(key: str, names: str | Sequence[str]) -> str:
    """Return a setting as a person types it in a shell."""
    if isinstance(names, str):
        return shlex.quote(f"{key}={_hydra_word(names)}")
    if len(names) > _MOST_LISTED:
        return shlex.quote(f"{key}=[*]")
    text = f"{key}=[{','.join(map(_hydra_word, names))}]"
    return text if re.fullmatch(r"[\w=\[\],.-]+", text, re.ASCII) else shlex.quote(text)


def _hydra_word(name: str) -> str:
    """Return a name as it is typed; one that cannot be typed, as a pattern."""
    if len(name) > _LONGEST_NAME or not name.isprintable():
        return "".join(sign if sign.isalnum() else "?" for sign in name[:_LONGEST_NAME]) + "*"
    if re.fullmatch(r"[A-Za-z_][\w.-]*", name, re.ASCII) or re.fullmatch(r"\d+", name):
        return name
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'


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


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(repr(short(name, 40)) for name in names[:_MOST_LISTED])
    more = f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
    return f"column{'s' if len(names) > 1 else ''} {shown}{more}"
