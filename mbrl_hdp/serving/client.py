"""A small client of `mbrl-hdp serve`, made of the standard library alone: it can be copied to another machine."""

from __future__ import annotations

import http.client
import json
import math
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any
from urllib.parse import quote, urlsplit


class ServerError(Exception):
    """The server refused a request.

    Attributes:
        status: status code of HTTP.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Client:
    """One connection to a server, kept open; use one for each thread.

    Example:
        >>> with Client("http://127.0.0.1:8000") as client:
        ...     stream = client.open(obs=[0.1, 2.0])
        ...     answer = stream.step(act=[0.5], obs=[0.2, 2.1])
        ...     answer["context"], answer["action"]
    """

    def __init__(self, url: str = "http://127.0.0.1:8000", timeout: float = 30.0) -> None:
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(f"a server is named like http://127.0.0.1:8000, got {url!r}")
        self._connection = http.client.HTTPConnection(parts.hostname, parts.port or 80, timeout=timeout)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; the streams stay open."""
        self._connection.close()

    def health(self) -> dict[str, Any]:
        """Return how the server is."""
        return self.request("GET", "/health")

    def info(self) -> dict[str, Any]:
        """Return what it serves."""
        return self.request("GET", "/info")

    def streams(self) -> list[str]:
        """Return the names of the open streams."""
        return list(self.request("GET", "/streams")["streams"])

    def open(self, obs: Sequence[float | None], stream: str | None = None) -> ClientStream:
        """Open a stream at its first observation.

        Raises:
            ServerError: if it is refused.
        """
        answer = self.request("POST", "/streams", {"obs": _numbers(obs), "stream": stream})
        return ClientStream(self, answer["stream"], answer)

    def resume(self, stream: str) -> ClientStream:
        """Return a stream that is open already.

        Raises:
            ServerError: if there is none.
        """
        return ClientStream(self, stream, self.request("GET", f"/streams/{quote(stream)}"))

    def request(self, method: str, path: str, words: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send a request and return the answer.

        Raises:
            ServerError: if it is refused.
        """
        body = None if words is None else json.dumps(words, allow_nan=False)
        self._connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
        response = self._connection.getresponse()
        answer: dict[str, Any] = json.loads(response.read())
        if response.status >= http.client.BAD_REQUEST:
            raise ServerError(response.status, answer["error"])
        return answer


class ClientStream:
    """One stream of a server.

    Attributes:
        name: its name.
        last: the last answer: belief, filtered, context, log_evidence, alarm, action, step.
    """

    def __init__(self, client: Client, name: str, answer: dict[str, Any]) -> None:
        self._client, self.name, self.last = client, name, answer

    def step(self, obs: Sequence[float | None], act: Sequence[float] | None = None) -> dict[str, Any]:
        """Send what was observed after an action (by default the one that was answered last); return the answer.

        Raises:
            ServerError: if it is refused; the stream is as it was.
        """
        return self._post("step", {"obs": _numbers(obs), "act": None if act is None else _numbers(act)})

    def reset(self, obs: Sequence[float | None]) -> dict[str, Any]:
        """Begin an episode.

        Raises:
            ServerError: if it is refused.
        """
        return self._post("reset", {"obs": _numbers(obs)})

    def close(self) -> None:
        """Close the stream."""
        self._client.request("DELETE", f"/streams/{quote(self.name)}")

    def _post(self, verb: str, words: dict[str, Any]) -> dict[str, Any]:
        self.last = self._client.request("POST", f"/streams/{quote(self.name)}/{verb}", words)
        return self.last


def _numbers(values: Sequence[float | None]) -> list[float | None]:
    """Return plain numbers; a missing one (None or NaN) is null."""
    return [None if value is None or math.isnan(value) else float(value) for value in values]
