"""`mbrl-hdp serve`: streams over HTTP and WebSocket, one process, on this machine only by default.

aiohttp serves both; requests are answered one after the other, so that a stream needs no lock. An agent that plans
takes long: its streams are worked on in one thread beside, and `/health` answers meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from aiohttp import WSMsgType, web

from mbrl_hdp.data.atomic import atomic_path
from mbrl_hdp.data.plain_files import read_json
from mbrl_hdp.errors import CheckpointError, ConfigError, MbrlHdpError
from mbrl_hdp.serving.loading import Served
from mbrl_hdp.serving.streams import BAD, Answer, Limits, RefusedError, Streams

LOOPBACK = ("127.0.0.1", "localhost", "::1")
_HOUSEKEEPING_SECONDS = 5.0
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True)
class ServeOptions:
    """How to serve.

    Attributes:
        host: address to listen on.
        port: port; 0 is any free one.
        limits: limits of the streams.
        max_bytes: largest request body or message.
        state: file that streams are restored from and saved to at the end; None saves none.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    limits: Limits = Limits()
    max_bytes: int = 65_536
    state: Path | None = None


class Server:
    """Answers requests about streams.

    Args:
        served: what is served.
        options: how.

    Attributes:
        streams: the open streams.
        port: the port that is listened on, once started.
    """

    def __init__(self, served: Served, options: ServeOptions) -> None:
        self.served, self.options = served, options
        self.streams = Streams(served, options.limits)
        self.port = options.port
        self._began = time.monotonic()
        self._pool = ThreadPoolExecutor(1) if served.agent is not None else None
        self._runner: web.AppRunner | None = None
        self._sockets: set[web.WebSocketResponse] = set()

    # Life --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Listen.

        Raises:
            ConfigError: if the address cannot be had.
            CheckpointError: if the saved streams cannot be restored.
        """
        self._restore()
        app = web.Application(client_max_size=self.options.max_bytes, middlewares=[self._guard])
        app.add_routes(
            [
                web.get("/health", self._health),
                web.get("/info", self._info),
                web.get("/streams", self._list),
                web.post("/streams", self._open),
                web.get("/streams/{stream}", self._one("look")),
                web.post("/streams/{stream}/step", self._one("step")),
                web.post("/streams/{stream}/reset", self._one("reset")),
                web.delete("/streams/{stream}", self._one("close")),
                web.get("/ws", self._socket),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=10.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self.options.host, self.options.port)
        try:
            await site.start()
        except OSError as error:
            await self._runner.cleanup()
            where = f"--host {self.options.host} --port {self.options.port}"
            why = os.strerror(error.errno) if error.errno else str(error)
            raise ConfigError(f"{where}: {why}; choose another, --port 0 takes any free one") from error
        self.port = self._runner.addresses[0][1]

    async def run(self, stop: asyncio.Event) -> None:
        """Close idle streams until `stop` is set, then end in good order and save the streams."""
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), _HOUSEKEEPING_SECONDS)
            await self._call(self.streams.expire)
        await self.close()

    async def close(self) -> None:
        """Answer what is under way, close the connections and save the streams."""
        for socket in list(self._sockets):
            await socket.close(code=1001, message=b"the server ends")
        if self._runner is not None:
            await self._runner.cleanup()
        if self._pool is not None:
            self._pool.shutdown()
        if self.options.state is not None:
            with atomic_path(self.options.state) as path:
                path.write_text(json.dumps(self.streams.state(), allow_nan=False))

    def _restore(self) -> None:
        path = self.options.state
        if path is None or not path.is_file():
            return
        try:
            self.streams.restore(read_json(path))
        except CheckpointError as error:
            raise CheckpointError(f"{path}: {error}; remove it to start without") from error

    # Requests ----------------------------------------------------------------------------------------------------

    @web.middleware
    async def _guard(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Answer errors as JSON; refuse pages of other sites that a browser on this machine shows."""
        try:
            self._check_caller(request)
            return await handler(request)
        except RefusedError as error:
            return _reply({"error": str(error)}, error.status)
        except web.HTTPRequestEntityTooLarge:
            return _reply({"error": f"a request has at most {self.options.max_bytes} bytes"}, 413)
        except web.HTTPException as error:
            return _reply({"error": f"{error.reason}: {request.method} {request.path}"}, error.status)
        except MbrlHdpError as error:
            return _reply({"error": str(error)}, 500)
        except Exception:  # noqa: BLE001 - a bug of ours must not end the other streams
            traceback.print_exc()
            return _reply({"error": "this request failed in the server; its log has the details"}, 500)

    def _check_caller(self, request: web.Request) -> None:
        origin = request.headers.get("Origin")
        if origin is not None and urlsplit(origin).netloc != request.host:
            raise RefusedError(403, "pages of other sites may not call this server")
        name = urlsplit(f"//{request.host}").hostname
        if self.options.host in LOOPBACK and name not in LOOPBACK:
            raise RefusedError(403, "this server is for this machine only: call it by 127.0.0.1 or localhost")

    async def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a function of the streams: at once, or in the thread of the agent that plans."""
        if self._pool is None:
            return function(*arguments)
        return await asyncio.get_running_loop().run_in_executor(self._pool, function, *arguments)

    async def _health(self, _: web.Request) -> web.Response:
        uptime = round(time.monotonic() - self._began, 3)
        return _reply(
            {"status": "ok", "streams": len(self.streams), "steps": self.streams.num_steps, "uptime_s": uptime}
        )

    async def _info(self, _: web.Request) -> web.Response:
        return _reply(info(self.served, self.options))

    async def _list(self, _: web.Request) -> web.Response:
        return _reply({"streams": await self._call(self.streams.names)})

    async def _open(self, request: web.Request) -> web.Response:
        return _reply(await self._call(self.streams.open, await _body(request)), 201)

    def _one(self, verb: str) -> _Handler:
        async def handle(request: web.Request) -> web.Response:
            words = await _body(request) if request.method == "POST" else None
            return _reply(await self._do(verb, request.match_info["stream"], words))

        return handle

    async def _do(self, verb: str, name: str, words: Mapping[str, Any] | None) -> Answer:
        function = getattr(self.streams, verb)
        answer: Answer = await self._call(function, *((name,) if verb in {"look", "close"} else (name, words)))
        return answer

    async def _socket(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(max_msg_size=self.options.max_bytes, heartbeat=30.0)
        await socket.prepare(request)
        self._sockets.add(socket)
        try:
            async for message in socket:
                if message.type is WSMsgType.TEXT:
                    await socket.send_str(json.dumps(await self._answer_message(message.data), allow_nan=False))
                elif message.type is WSMsgType.BINARY:
                    await socket.send_str(json.dumps({"error": "messages are JSON texts", "status": BAD}))
        finally:
            self._sockets.discard(socket)
        return socket

    async def _answer_message(self, text: str) -> Answer:
        """Answer a message {op, stream, obs, act, id}; whatever is wrong concerns this message alone.

        `id`, a number or a word, comes back in the answer.
        """
        words: Mapping[str, Any] = {}
        try:
            words = _parse(text)
            answer = await self._operate(words)
        except RefusedError as error:
            answer = {"error": str(error), "status": error.status}
            if isinstance(words.get("stream"), str):
                answer["stream"] = words["stream"]
        except Exception:  # noqa: BLE001 - a bug of ours must not end the other streams
            traceback.print_exc()
            answer = {"error": "this message failed in the server; its log has the details", "status": 500}
        return answer | ({"id": words["id"]} if isinstance(words.get("id"), str | int) else {})

    async def _operate(self, words: Mapping[str, Any]) -> Answer:
        verb, name = words.get("op"), words.get("stream")
        if verb == "open":
            answer: Answer = await self._call(self.streams.open, words)
            return answer
        if verb not in {"step", "reset", "look", "close"}:
            raise RefusedError(BAD, "op: one of open, step, reset, look, close is needed")
        return await self._do(str(verb), str(name), words)


def info(served: Served, options: ServeOptions) -> Answer:
    """Return what is served: sizes, contexts and limits."""
    model = served.model
    agent = served.agent_name or ("policy" if served.policy is not None else None)
    return {
        **served.description(),
        "agent": agent,
        "has_action": served.policy is not None or served.agent is not None,
        "has_alarm": model is not None and model.novelty is not None,
        "max_streams": options.limits.max_streams,
        "idle_seconds": options.limits.idle_seconds,
        "max_bytes": options.max_bytes,
        "version": importlib.metadata.version("mbrl-hdp"),
    }


def serve(served: Served, options: ServeOptions) -> int:
    """Serve until SIGINT or SIGTERM; return the exit code 0.

    Raises:
        ConfigError: if the address cannot be had.
    """

    async def main() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        server = Server(served, options)
        await server.start()
        print(_greeting(server), flush=True)
        await server.run(stop)
        saved = f"; streams saved in {options.state}: {len(server.streams)}" if options.state else ""
        print(f"ended after {server.streams.num_steps} steps{saved}", flush=True)

    asyncio.run(main())
    return 0


def _greeting(server: Server) -> str:
    options, served = server.options, server.served
    if options.host not in LOOPBACK:
        print(
            f"warning: --host {options.host} lets other machines in, without a password and unencrypted; put a proxy "
            "that checks who calls in front of it",
            file=sys.stderr,
        )
    host = f"[{options.host}]" if ":" in options.host else options.host
    what = "filter" if served.model is not None else "no model"
    what += f" and {served.agent_name or 'policy'}" if served.policy or served.agent else ""
    restored = f", {len(server.streams)} streams restored" if len(server.streams) else ""
    return f"http://{host}:{server.port}/ serves {served.source} ({what}{restored}); Ctrl-C ends it"


async def _body(request: web.Request) -> Mapping[str, Any]:
    # Pages of other sites cannot send this type without asking first.
    if request.content_type != "application/json":
        raise RefusedError(415, "the body must be JSON, with Content-Type: application/json")
    return _parse(await request.text())


def _parse(text: str) -> Mapping[str, Any]:
    try:
        words = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise RefusedError(BAD, f"this is no JSON: {error}") from error
    if not isinstance(words, dict):
        raise RefusedError(BAD, "a JSON object is needed, as in {'obs': [...], 'act': [...]}")
    return words


def _no_constant(name: str) -> float:
    raise RefusedError(BAD, f"{name} is no number; send null for a missing sample of obs")


def _reply(words: Mapping[str, Any], status: int = 200) -> web.Response:
    return web.Response(text=json.dumps(words, allow_nan=False), status=status, content_type="application/json")
