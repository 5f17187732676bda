"""Load test of `mbrl-hdp serve` on the loopback: `python -m benchmarks.serve [--minutes 60]`.

One process serves, this one sends. Three parts, each bounded in requests and seconds:

- one stream over HTTP and one over a WebSocket, paced at 1 kHz: latency as the client sees it;
- 100 streams over ten WebSockets, as fast as answers come: steps per second, latency, memory of the server;
- a soak (`--minutes`): 100 streams, each stepped at a low rate, some opened and closed, some requests bad; the memory
  of the server is read every few seconds.

Latency depends on what else the machine does; its load is printed beside the numbers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.online import Percentiles, demo_model, percentiles
from mbrl_hdp.serving.client import Client

PAGE = Path(__file__).resolve().parents[1] / "docs" / "results" / "serving.md"
LOADS = PAGE.with_name("serving_loads.json")
SOAK = PAGE.with_name("serving_soak.json")
_OBS_DIM, _ACT_DIM = 4, 1
_NUM_ROWS = 100  # of a stream, over and over: making many would keep the others waiting


@dataclass(frozen=True)
class Load:
    """What one part measured."""

    name: str
    num_steps: int
    seconds: float
    latency: Percentiles
    server_cpu_us: float
    memory_kb: Sequence[int]

    def row(self) -> str:
        """Return a row of the table."""
        p, memory = self.latency, " to ".join(f"{kb / 1024:.1f}" for kb in self.memory_kb)
        rate = self.num_steps / self.seconds
        return (
            f"| {self.name} | {self.num_steps:,} | {rate:,.0f} | {p.median:.2f} | {p.p99:.2f} | {p.p999:.2f} | "
            f"{p.worst:.1f} | {self.server_cpu_us:.0f} | {memory} |"
        )


class ServerProcess:
    """`mbrl-hdp serve` on a free port of the loopback."""

    def __init__(self, folder: Path) -> None:
        words = [sys.executable, "-m", "mbrl_hdp", "serve", str(folder), "--port", "0"]
        self._process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().split()[0].rstrip("/")

    def memory_kb(self) -> int:
        """Return the resident memory."""
        status = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))

    def cpu_seconds(self) -> float:
        """Return the processor time so far."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def end(self) -> None:
        """Ask it to end, and wait."""
        self._process.terminate()
        self._process.wait(30)


def _rows(count: int, seed: int) -> tuple[list[list[float]], list[list[float]]]:
    rng = np.random.default_rng(seed)
    return (0.1 * rng.normal(size=(count, _OBS_DIM))).tolist(), rng.uniform(-1, 1, (count, _ACT_DIM)).tolist()


def one_http_stream(server: ServerProcess, num_steps: int, hertz: float, seconds: float) -> Load:
    obs, act = _rows(num_steps + 1, 0)
    latency: list[float] = []
    with Client(server.url) as client:
        stream = client.open(obs[0])
        memory, cpu, begin = server.memory_kb(), server.cpu_seconds(), time.perf_counter()
        for t in range(num_steps):
            time.sleep(max(0.0, begin + t / hertz - time.perf_counter()))
            sent = time.perf_counter()
            if sent > begin + seconds:
                break
            stream.step(obs[t + 1], act[t])
            latency.append(time.perf_counter() - sent)
        took, count = time.perf_counter() - begin, len(latency)
        stream.close()
    used = 1e6 * (server.cpu_seconds() - cpu) / count
    name = f"1 stream, HTTP, paced at {hertz:g} Hz"
    return Load(name, count, took, percentiles(np.array(latency)), used, (memory, server.memory_kb()))


@dataclass(frozen=True)
class Pace:
    """How many steps a stream takes at most, for how long, and how often a second (None: as fast as answered)."""

    num_steps: int
    seconds: float
    hertz: float | None = None


async def _socket_stream(socket: Any, names: list[str], pace: Pace, latency: list[float], seed: int) -> None:
    """Step several streams over one socket, one message after the other."""
    obs, act = _rows(_NUM_ROWS, seed)
    begin, hertz = time.perf_counter(), pace.hertz
    for t in range(pace.num_steps):
        if time.perf_counter() > begin + pace.seconds:
            break
        if hertz is not None:
            await asyncio.sleep(max(0.0, begin + t / hertz - time.perf_counter()))
        for name in names:
            text = json.dumps(
                {"op": "step", "stream": name, "obs": obs[(t + 1) % _NUM_ROWS], "act": act[t % _NUM_ROWS]}
            )
            sent = time.perf_counter()
            await socket.send_str(text)
            answer = json.loads((await socket.receive()).data)
            latency.append(time.perf_counter() - sent)
            if answer.get("step") != t + 1:
                raise RuntimeError(f"stream {name}: {answer}")


async def sockets(server: ServerProcess, num_sockets: int, streams_each: int, pace: Pace) -> Load:
    """Step many streams over several WebSockets."""
    import aiohttp

    latency: list[float] = []
    async with aiohttp.ClientSession() as session:
        opened = []
        for number in range(num_sockets):
            socket = await session.ws_connect(f"{server.url}/ws")
            names = []
            for _ in range(streams_each):
                await socket.send_str(json.dumps({"op": "open", "obs": [0.0] * _OBS_DIM}))
                names.append(json.loads((await socket.receive()).data)["stream"])
            opened.append((socket, names, number))
        memory, cpu, begin = server.memory_kb(), server.cpu_seconds(), time.perf_counter()
        await asyncio.gather(*(_socket_stream(s, n, pace, latency, seed) for s, n, seed in opened))
        seconds, used = time.perf_counter() - begin, server.cpu_seconds() - cpu
        after = server.memory_kb()
        for socket, names, _ in opened:
            for name in names:
                await socket.send_str(json.dumps({"op": "close", "stream": name}))
                await socket.receive()
            await socket.close()
    count = num_sockets * streams_each
    how = "as fast as answered" if pace.hertz is None else f"paced at {pace.hertz:g} Hz"
    name = f"{count} stream{'s' * (count > 1)}, {num_sockets} WebSocket{'s' * (num_sockets > 1)}, {how}"
    return Load(name, len(latency), seconds, percentiles(np.array(latency)), 1e6 * used / len(latency), (memory, after))


def soak(
    server: ServerProcess, minutes: float, num_streams: int = 100, sweeps_per_minute: float = 30.0
) -> dict[str, Any]:
    """Step all streams at a low rate; open and close one and send one bad request a sweep; read the memory."""
    rng = np.random.default_rng(1)
    memory: list[tuple[float, int]] = []
    num_steps = num_refused = 0
    latency: list[float] = []
    with Client(server.url) as client:
        streams = [client.open([0.0] * _OBS_DIM, f"soak-{number}") for number in range(num_streams)]
        begin = time.perf_counter()
        sweep = 0
        while time.perf_counter() - begin < 60 * minutes:
            while time.perf_counter() < begin + sweep * 60 / sweeps_per_minute:
                time.sleep(0.02)
            for stream in streams:
                row = (0.1 * rng.normal(size=_OBS_DIM)).tolist()
                sent = time.perf_counter()
                stream.step(row, rng.uniform(-1, 1, _ACT_DIM).tolist())
                latency.append(time.perf_counter() - sent)
                num_steps += 1
            place = sweep % num_streams
            streams[place].close()
            streams[place] = client.open([0.0] * _OBS_DIM, f"soak-{place}")
            try:
                streams[place].step([0.0] * (_OBS_DIM + 1), [0.0])
            except Exception as error:  # noqa: BLE001 - the refusal is what is wanted
                num_refused += "list of" in str(error)
            memory.append((time.perf_counter() - begin, server.memory_kb()))
            sweep += 1
    return _soak_words(minutes, num_streams, num_steps, num_refused, memory, latency)


def _soak_words(
    minutes: float,
    num_streams: int,
    num_steps: int,
    num_refused: int,
    memory: list[tuple[float, int]],
    latency: list[float],
) -> dict[str, Any]:
    tenth = max(1, len(memory) // 10)
    early, late = ([kb for _, kb in part] for part in (memory[:tenth], memory[-tenth:]))
    found = percentiles(np.array(latency))
    return {
        "minutes": minutes,
        "num_streams": num_streams,
        "num_steps": num_steps,
        "num_refused": num_refused,
        "first_kb": memory[0][1],
        "first_tenth_kb": float(np.mean(early)),
        "last_tenth_kb": float(np.mean(late)),
        "highest_kb": max(kb for _, kb in memory),
        "growth": float(np.mean(late) / np.mean(early) - 1.0),
        "latency_ms": [found.median, found.p99, found.p999, found.worst],
        "load": os.getloadavg(),
    }


def page(loads: list[Load], soaked: dict[str, Any] | None, load_average: Sequence[float]) -> str:
    seconds = min((load.seconds for load in loads), default=0.0)
    busy = "that other programs kept busy " if load_average[0] > (os.cpu_count() or 1) else ""
    lines = [
        "# Serving: load on the loopback",
        "",
        f"Written by `python -m benchmarks.serve --seconds {seconds:.0f}`. Model: cart-pole, two contexts, compiled "
        "filter, and a SAC",
        "policy; every answer holds belief, filtered distribution, evidence and action. Server and client share",
        f"{os.cpu_count()} cores {busy}(load average {load_average[0]:.1f}): upper percentiles",
        "include waiting for a core, twice a request. The server's processor time per step is what a step costs.",
        "Latency in milliseconds, as the client sees it; the in-process filter alone: [online](online.md).",
        "",
        "| part | steps | steps/s | median | 99 % | 99.9 % | largest | server CPU, us/step | server memory, MB |",
        "|---|---|---|---|---|---|---|---|---|",
        *(load.row() for load in loads),
        "",
    ]
    return "\n".join(lines + ([] if soaked is None else _soak_lines(soaked)))


def _soak_lines(found: dict[str, Any]) -> list[str]:
    median, p99, p999, worst = found["latency_ms"]
    return [
        f"## Soak of {found['minutes']:g} minutes",
        "",
        f"Written by `python -m benchmarks.serve --minutes {found['minutes']:g} --only-soak`: "
        f"{found['num_streams']} streams over HTTP, {found['num_steps']:,} steps; in every sweep one stream is closed",
        f"and opened anew and one request is bad ({found['num_refused']:,} were refused, no stream was lost).",
        "",
        f"Memory of the server: {found['first_tenth_kb'] / 1024:.1f} MB in the first tenth, "
        f"{found['last_tenth_kb'] / 1024:.1f} MB in the last: {100 * found['growth']:+.2f} %; highest "
        f"{found['highest_kb'] / 1024:.1f} MB.",
        f"Latency: median {median:.2f} ms, 99 % {p99:.2f} ms, 99.9 % {p999:.2f} ms, largest {worst:.1f} ms (load "
        f"average {found['load'][0]:.1f}).",
        "",
    ]


def run_loads(server: ServerProcess, seconds: float) -> list[Load]:
    """Run the three bounded parts."""
    count = int(1000 * seconds)
    return [
        one_http_stream(server, count, 1000.0, seconds),
        asyncio.run(sockets(server, 1, 1, Pace(count, seconds, 1000.0))),
        asyncio.run(sockets(server, 10, 10, Pace(count, seconds))),
    ]


def run(options: argparse.Namespace) -> None:
    """Serve a model, run the parts that were asked for and keep what they measured."""
    with tempfile.TemporaryDirectory() as name:
        demo_model(Path(name), with_policy=True)
        server = ServerProcess(Path(name))
        try:
            if not options.only_soak:
                loads = [asdict(load) for load in run_loads(server, options.seconds)]
                LOADS.write_text(json.dumps({"loads": loads, "load_average": os.getloadavg()}, indent=2) + "\n")
            if options.minutes:
                SOAK.write_text(json.dumps(soak(server, options.minutes), indent=2) + "\n")
        finally:
            server.end()


def stored_page() -> str:
    """Return the page of what was measured last."""
    found = json.loads(LOADS.read_text()) if LOADS.is_file() else {"loads": [], "load_average": [float("nan")]}
    loads = [Load(**{**words, "latency": Percentiles(**words["latency"])}) for words in found["loads"]]
    return page(loads, json.loads(SOAK.read_text()) if SOAK.is_file() else None, found["load_average"])


def main() -> int:
    """Run and write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serve", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="seconds of each part (default 60)")
    parser.add_argument("--minutes", type=float, default=0.0, help="minutes of the soak (default: none)")
    parser.add_argument("--only-soak", action="store_true", help="leave out the other parts")
    parser.add_argument("--page", action="store_true", help="only write the page from what was measured last")
    options = parser.parse_args()
    if not options.page:
        run(options)
    PAGE.write_text(stored_page())
    print(PAGE.read_text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
