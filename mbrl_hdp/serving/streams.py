"""Many streams of observations, each with its own belief, alarm and actions; no network in here."""

from __future__ import annotations

import math
import re
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float

from mbrl_hdp.belief.codec import BeliefCodec, PackedObs
from mbrl_hdp.errors import CheckpointError, DataError, MbrlHdpError, short
from mbrl_hdp.inference.alarm import NoveltyAlarm
from mbrl_hdp.inference.online import OnlineFilter
from mbrl_hdp.serving.alarm import alarm_of, alarm_words
from mbrl_hdp.serving.client import ServerError
from mbrl_hdp.serving.loading import Actor, Served

Vector = Float[np.ndarray, " n"]
Answer = dict[str, Any]
SCHEMA_VERSION = 1
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
BAD, UNKNOWN, TAKEN, FULL = 400, 404, 409, 429


class RefusedError(DataError, ServerError):
    """A request that cannot be served; the stream that it names is as it was before."""


@dataclass(frozen=True)
class Limits:
    """What a server puts up with.

    Attributes:
        max_streams: streams that may be open at once.
        idle_seconds: a stream without a request for this long is closed.
    """

    max_streams: int = 1000
    idle_seconds: float = 3600.0


@dataclass
class _Stream:
    """One stream; `obs` and `action` are the last ones, None before there was one."""

    name: str
    filter: OnlineFilter | None
    actor: Actor | None
    alarm: NoveltyAlarm | None
    obs: Vector
    seen_at: float
    num_steps: int = 0
    action: Vector | None = None
    is_raised: bool = False
    notes: list[str] = field(default_factory=list)


class Streams:
    """The streams of a served model.

    Args:
        served: what is served.
        limits: what is put up with.
        clock: seconds that only go forward.

    Example:
        >>> streams = Streams(open_served("model"))
        >>> streams.open({"stream": "pump", "obs": [0.1, 2.0]})
        >>> streams.step("pump", {"act": [0.5], "obs": [0.2, 2.1]})["context"]
    """

    def __init__(
        self, served: Served, limits: Limits | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.served, self.limits, self._clock = served, limits or Limits(), clock
        self._streams: dict[str, _Stream] = {}
        self._codec = BeliefCodec(served.obs_dim, served.appended_dim)
        self._slots = None if served.model is None else served.model.slots.numpy()
        self._filter = None if served.model is None else served.model.online_filter()
        names = None if served.model is None else served.model.names
        self._columns = {} if names is None else {"obs": names.obs, "act": names.act}
        self.num_steps = 0

    def __len__(self) -> int:
        return len(self._streams)

    def names(self) -> list[str]:
        """Return the open streams."""
        return list(self._streams)

    def open(self, words: Mapping[str, Any]) -> Answer:
        """Open a stream at its first observation; without a name it gets one.

        Raises:
            RefusedError: if the name is taken or no name, the observation is none, or too many streams are open.
        """
        name = words.get("stream")
        name = secrets.token_hex(8) if name is None else name
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise RefusedError(BAD, "stream: a name has up to 64 letters, digits, dots, dashes and underscores")
        obs = self._row(words, "obs", self.served.obs_dim, may_miss=True)
        if name in self._streams:
            raise RefusedError(TAKEN, f"stream {name!r} is open already; reset it, or close it first")
        if len(self._streams) >= self.limits.max_streams:
            raise RefusedError(
                FULL, f"{self.limits.max_streams} streams are open, the limit of this server; close one first"
            )
        stream = self._new(name, obs)
        self._begin(stream, obs)
        self._streams[name] = stream
        return self._answer(stream)

    def reset(self, name: str, words: Mapping[str, Any]) -> Answer:
        """Begin an episode at its first observation.

        Raises:
            RefusedError: if there is no such stream, or the observation is none.
        """
        stream = self._find(name)
        self._begin(stream, self._row(words, "obs", self.served.obs_dim, may_miss=True))
        return self._answer(stream)

    def step(self, name: str, words: Mapping[str, Any]) -> Answer:
        """Take an action and the observation after it; without an action, the one that was answered last.

        Raises:
            RefusedError: if there is no such stream, or action or observation are none; the stream is as it was.
        """
        stream = self._find(name)
        act = self._act(stream, words)
        obs = self._row(words, "obs", self.served.obs_dim, may_miss=True)
        packed, before = self._packed(stream), stream.obs
        if stream.filter is not None:
            stream.filter.update(act, obs)
        stream.obs = obs
        stream.num_steps += 1
        self.num_steps += 1
        if stream.alarm is not None and stream.filter is not None:
            stream.is_raised = stream.alarm.update(before, act, stream.filter.log_lik)
        stream.notes = []
        self._choose(stream, packed, act)
        return self._answer(stream)

    def look(self, name: str) -> Answer:
        """Return the last answer of a stream again.

        Raises:
            RefusedError: if there is no such stream.
        """
        return self._answer(self._find(name))

    def close(self, name: str) -> Answer:
        """Close a stream.

        Raises:
            RefusedError: if there is no such stream.
        """
        stream = self._find(name)
        del self._streams[name]
        return {"stream": name, "step": stream.num_steps, "closed": True}

    def expire(self) -> list[str]:
        """Close the streams that were idle for too long; return their names."""
        before = self._clock() - self.limits.idle_seconds
        names = [name for name, stream in self._streams.items() if stream.seen_at < before]
        for name in names:
            del self._streams[name]
        return names

    # State -------------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return beliefs and last observations of all streams as JSON; plans and alarms start anew when restored."""
        return {
            "schema_version": SCHEMA_VERSION,
            "streams": {name: _stream_words(stream) for name, stream in self._streams.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> int:
        """Open the streams of a saved state; return how many.

        Raises:
            CheckpointError: if it is none, or belongs to another model; no stream is open then.
        """
        if state.get("schema_version") != SCHEMA_VERSION or not isinstance(state.get("streams"), Mapping):
            raise CheckpointError("the saved streams are damaged or of another version; start without them")
        made = {}
        for name, words in state["streams"].items():
            try:
                made[name] = self._restored(name, words)
            except (DataError, KeyError, TypeError) as error:
                raise CheckpointError(f"the saved stream {short(str(name))!r} cannot be restored: {error}") from error
        self._streams = made
        return len(made)

    def _restored(self, name: str, words: Mapping[str, Any]) -> _Stream:
        obs = self._row(words, "obs", self.served.obs_dim, may_miss=True)
        stream = self._new(name, obs)
        if stream.filter is not None:
            saved = {**words["filter"], "obs": obs}
            stream.filter.restore(saved | {"log_evidence": _or_nan(saved["log_evidence"])})
        stream.num_steps = int(words["step"])
        if stream.actor is not None:
            stream.actor.begin()
        if words["action"] is not None:
            stream.action = self._row(words, "action", self.served.act_dim)
        return stream

    # One stream --------------------------------------------------------------------------------------------------

    def _new(self, name: str, obs: Vector) -> _Stream:
        model = self.served.model
        online = None if self._filter is None else self._filter.fresh()
        alarm = None if model is None else alarm_of(model)
        return _Stream(name, online, self.served.actor(), alarm, obs, self._clock())

    def _begin(self, stream: _Stream, obs: Vector) -> None:
        if stream.filter is not None:
            stream.filter.reset(obs)
        if stream.alarm is not None:
            stream.alarm.begin_episode()
        if stream.actor is not None:
            stream.actor.begin()
        stream.obs, stream.num_steps, stream.is_raised, stream.notes = obs, 0, False, []
        self._choose(stream, None, None)

    def _choose(self, stream: _Stream, before: Vector | None, act: Vector | None) -> None:
        """Choose the next action; an agent that fails leaves none, and a note."""
        stream.action = None
        if stream.actor is None:
            return
        packed = self._packed(stream)
        if not np.isfinite(packed).all():
            stream.notes.append("no action: the observation has missing values")
            return
        try:
            if before is not None and act is not None and np.isfinite(before).all():
                stream.actor.watch(before, act, packed)
            stream.action = np.asarray(stream.actor.act(packed), dtype=np.float64)
        except MbrlHdpError as error:
            stream.notes.append(f"no action: {error}")

    def _packed(self, stream: _Stream) -> Vector:
        wide = np.zeros(self._codec.max_contexts)
        if stream.filter is not None and self._codec.max_contexts:
            wide[self._slots] = stream.filter.belief
        packed = self._codec.pack(stream.obs, wide)
        return packed if stream.filter is None else PackedObs.of(packed, stream.filter.states)

    def _find(self, name: str) -> _Stream:
        stream = self._streams.get(name)
        if stream is None:
            raise RefusedError(
                UNKNOWN,
                f"there is no stream {short(str(name), 64)!r}: it was never opened, was closed, or was idle for "
                f"{self.limits.idle_seconds:g} seconds",
            )
        stream.seen_at = self._clock()
        return stream

    def _act(self, stream: _Stream, words: Mapping[str, Any]) -> Vector:
        if words.get("act") is None:
            if not self.served.act_dim:
                return np.zeros(0)
            if stream.action is not None:
                return stream.action
            raise RefusedError(BAD, f"act: the {self.served.act_dim} numbers of the action that was taken are needed")
        return self._row(words, "act", self.served.act_dim)

    def _row(self, words: Mapping[str, Any], key: str, width: int, may_miss: bool = False) -> Vector:
        values = words.get(key)
        if not isinstance(values, list) or len(values) != width:
            found = f"{len(values)} values" if isinstance(values, list) else "no list"
            columns = f" ({', '.join(self._columns[key])})" if self._columns.get(key) else ""
            raise RefusedError(BAD, f"{key}: a list of {width} numbers is needed{columns}, got {found}")
        for place, value in enumerate(values):
            if value is None and may_miss:
                continue
            if type(value) not in (int, float) or not _is_finite(value):
                hint = "; send null for a missing sample" if may_miss else ""
                raise RefusedError(BAD, f"{key}[{place}] is no finite number: {short(repr(value), 40)}{hint}")
        return np.array(values, dtype=np.float64)

    def _answer(self, stream: _Stream) -> Answer:
        found = stream.filter
        answer = {
            "stream": stream.name,
            "step": stream.num_steps,
            "belief": None if found is None else found.belief.tolist(),
            "filtered": None if found is None else found.filtered.tolist(),
            "context": None if found is None else int(found.filtered.argmax()),
            "log_evidence": None if found is None else _or_none(found.log_evidence),
            "alarm": alarm_words(stream.alarm, stream.is_raised),
            "action": None if stream.action is None else stream.action.tolist(),
        }
        return answer | ({"note": "; ".join(stream.notes)} if stream.notes else {})


def _stream_words(stream: _Stream) -> dict[str, Any]:
    words: dict[str, Any] = {
        "obs": [_or_none(value) for value in stream.obs.tolist()],
        "step": stream.num_steps,
        "action": None if stream.action is None else stream.action.tolist(),
    }
    if stream.filter is not None:
        saved = {name: value.tolist() for name, value in stream.filter.state().items() if name != "obs"}
        words["filter"] = saved | {"log_evidence": _or_none(saved["log_evidence"])}
        if "past" in saved:  # NaN where a stream has none yet
            words["filter"]["past"] = [_or_none(value) for value in saved["past"]]
    return words


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond the float range
        return False


def _or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None else value
