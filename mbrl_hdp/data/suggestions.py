"""What to type for columns that nothing was said about, guessed from their names and contents."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from mbrl_hdp.errors import short

MOST_LISTED = 60
_LONGEST_NAME = 40
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

Typed = tuple[str, str | list[str]]
"""A setting and its value: the name of a column, or a list of them."""


@dataclass(frozen=True)
class Guesses:
    """What the contents of columns say about their roles.

    Attributes:
        words: columns that hold words.
        empty: columns without a single value.
        times: columns that hold time stamps, whatever they are called.
        is_python: whether the table is an object in Python, so that Python is typed.
    """

    words: Collection[str] = ()
    empty: Collection[str] = ()
    times: Collection[str] = ()
    is_python: bool = False


def example(unknown: Sequence[str], taken: Collection[str], guesses: Guesses) -> str:
    """Return settings, as a person types them, for columns without a role.

    Args:
        unknown: these columns.
        taken: roles that other columns have.
        guesses: what the columns hold.
    """
    typed = _suggested(unknown, taken, guesses)
    words = _in_python(typed) if guesses.is_python else " ".join(as_typed(key, names) for key, names in typed)
    tag = next((name for name in unknown if _TAG_WORDS.search(name) and name in guesses.words), None)
    value = next((name for name in unknown if _VALUE_WORDS.search(name) and name not in guesses.words), None)
    if tag is None or value is None:
        return words
    return (
        f"{words} (if {tag!r} names the sensor of each row, turn the table first, one column a sensor: in pandas, "
        f"df.pivot(index=..., columns={tag!r}, values={value!r}))"
    )


def as_typed(key: str, names: str | Sequence[str]) -> str:
    """Return a setting as a person types it in a shell."""
    if isinstance(names, str):
        return shlex.quote(f"{key}={_hydra_word(names)}")
    if len(names) > MOST_LISTED:
        return shlex.quote(f"{key}=[*]")
    text = f"{key}=[{','.join(map(_hydra_word, names))}]"
    return text if re.fullmatch(r"[\w=\[\],.-]+", text, re.ASCII) else shlex.quote(text)


def columns_in_words(names: Sequence[str]) -> str:
    """Return columns in words, as in "columns 'a', 'b'"."""
    shown = ", ".join(repr(short(name, 40)) for name in names[:MOST_LISTED])
    more = f" and {len(names) - MOST_LISTED} more" if len(names) > MOST_LISTED else ""
    return f"column{'s' if len(names) > 1 else ''} {shown}{more}"


def _suggested(unknown: Sequence[str], taken: Collection[str], guesses: Guesses) -> list[Typed]:
    left = [name for name in unknown if name not in guesses.empty]
    typed: list[Typed] = []
    clock = [] if "time" in taken else _clock(left, guesses)
    if clock:
        left = [name for name in left if name not in clock]
        typed.append(("time", clock[0] if len(clock) == 1 else clock))
    episode = None if "episode" in taken else next(filter(_EPISODE_WORDS.search, left), None)
    if episode is not None:
        left.remove(episode)
        typed.append(("episode", episode))
    ignored = [name for name in unknown if name in guesses.empty or (name in left and name in guesses.words)]
    numbers = [name for name in left if name not in guesses.words]
    acts = [name for name in numbers if _ACT_WORDS.search(name)]
    obs = [name for name in numbers if name not in acts]
    return typed + [(key, names) for key, names in (("obs", obs), ("act", acts), ("ignore", ignored)) if names]


def _clock(names: Sequence[str], guesses: Guesses) -> list[str]:
    """Return the columns of time stamps: a date with a time of day, or one column by contents, by name or by both."""
    date, clock = (next(filter(pattern.search, names), None) for pattern in (_DATE, _CLOCK))
    if date and clock and date != clock and {date, clock} <= {*guesses.words}:
        return [date, clock]
    held = [name for name in names if name in guesses.times]
    called = [name for name in names if _TIME_WORDS.search(name)]
    return [*(name for name in called if name in held), *held, *called][:1]


def _in_python(typed: Sequence[Typed]) -> str:
    """Return a call as a person types it in Python."""
    words = (f"{key}={['*'] if len(names) > MOST_LISTED else names!r}" for key, names in typed)
    return f"Trajectories.from_frame(df, {', '.join(words)})"


def _hydra_word(name: str) -> str:
    """Return a name as it is typed; one that cannot be typed, as a pattern."""
    if len(name) > _LONGEST_NAME or not name.isprintable():
        return "".join(sign if sign.isalnum() else "?" for sign in name[:_LONGEST_NAME]) + "*"
    if re.fullmatch(r"[A-Za-z_][\w.-]*", name, re.ASCII) or re.fullmatch(r"\d+", name):
        return name
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'
