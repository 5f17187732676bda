"""The server over the loopback: HTTP, WebSocket, refusals, restart with saved streams, and how it ends."""

import asyncio
import json
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager

import numpy as np
import pytest

aiohttp = pytest.importorskip("aiohttp")

from mbrl_hdp.cli import main  # noqa: E402
from mbrl_hdp.errors import CheckpointError, ConfigError  # noqa: E402
from mbrl_hdp.serving.client import Client, ServerError  # noqa: E402
from mbrl_hdp.serving.loading import Served, check_servable  # noqa: E402
from mbrl_hdp.serving.server import ServeOptions, Server  # noqa: E402
from mbrl_hdp.serving.streams import Limits  # noqa: E402


@pytest.fixture
def served(tmp_path, cartpole_model):
    return Served(tmp_path, 4, 1, 0.05, cartpole_model)


@contextmanager
def running(served, **options):
    """Run a server in a thread; return its address."""
    ready, box = threading.Event(), {}

    async def run():
        box["loop"], box["stop"] = asyncio.get_running_loop(), asyncio.Event()
        server = Server(served, ServeOptions(port=0, **options))
        await server.start()
        box["server"] = server
        ready.set()
        await server.run(box["stop"])

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    assert ready.wait(60)
    try:
        yield f"http://127.0.0.1:{box['server'].port}"
    finally:
        box["loop"].call_soon_threadsafe(box["stop"].set)
        thread.join(60)


def test_http_from_opening_to_closing(served):
    online = served.model.online_filter()
    with running(served) as url, Client(url) as client:
        assert client.health()["status"] == "ok"
        info = client.info()
        assert (info["obs_dim"], info["act_dim"], info["num_contexts"], info["has_action"]) == (4, 1, 2, False)
        stream = client.open([0.0, 0.1, 0.2, 0.3], "pump-7")
        np.testing.assert_array_equal(stream.last["belief"], online.reset(np.array([0.0, 0.1, 0.2, 0.3])))
        answer = stream.step([0.1, 0.1, 0.1, 0.1], [0.5])
        np.testing.assert_array_equal(answer["belief"], online.update(np.array([0.5]), np.full(4, 0.1)))
        np.testing.assert_allclose(answer["log_evidence"], online.log_evidence)
        assert answer["action"] is None
        assert client.streams() == ["pump-7"]
        assert client.resume("pump-7").last == answer
        assert stream.reset([np.nan, 0.0, 0.0, 0.0])["step"] == 0
        stream.close()
        with pytest.raises(ServerError, match="there is no stream 'pump-7'") as refused:
            stream.step([0.0] * 4, [0.0])
        assert refused.value.status == 404
        assert client.health()["steps"] == 1


def test_bad_requests_are_refused_and_the_stream_goes_on(served):
    async def talk(url):
        async with aiohttp.ClientSession() as session:

            async def post(path, **kwargs):
                async with session.post(url + path, **kwargs) as response:
                    return response.status, (await response.json())["error"]

            kind = {"Content-Type": "application/json"}
            step = "/streams/a/step"
            found = [
                await post(step, data='{"obs": [0, 0, 0, NaN], "act": [0]}', headers=kind),
                await post(step, data="{", headers=kind),
                await post(step, data="[1]", headers=kind),
                await post(step, data="[" * 30_000, headers=kind),
                await post(step, data="x" * 70_000, headers=kind),
                await post(step, data='{"obs": [0, 0, 0, 0], "act": [0]}', headers={"Content-Type": "text/plain"}),
                await post(
                    step, json={"obs": [0, 0, 0, 0], "act": [0]}, headers={"Origin": "http://elsewhere.example"}
                ),
                await post(step, json={"obs": [0, 0, 0, 0], "act": [0]}, headers={"Host": "elsewhere.example"}),
                await post("/nothing", json={}),
            ]
            return found

    with running(served) as url, Client(url) as client:
        stream = client.open([0.0] * 4, "a")
        found = asyncio.run(talk(url))
        assert [status for status, _ in found] == [400, 400, 400, 400, 413, 415, 403, 403, 404]
        assert found[0][1] == "NaN is no number; send null for a missing sample of obs"
        assert found[4][1] == "a request has at most 65536 bytes"
        assert stream.step([0.1] * 4, [0.0])["step"] == 1


def test_many_streams_over_one_websocket(served):
    async def talk(url):
        answers = []
        async with aiohttp.ClientSession() as session, session.ws_connect(f"{url}/ws") as socket:

            async def ask(words):
                await socket.send_str(words if isinstance(words, str) else json.dumps(words))
                answers.append(json.loads((await socket.receive()).data))

            for name in ("a", "b"):
                await ask({"op": "open", "stream": name, "obs": [0.0] * 4})
            await ask({"op": "step", "stream": "a", "obs": [0.1] * 4, "act": [0.5], "id": 7})
            await ask({"op": "step", "stream": "a", "obs": [0.1] * 3, "act": [0.5], "id": 8})
            await ask("nonsense")
            await ask({"op": "jump", "stream": "a"})
            await ask({"op": "step", "stream": "c", "obs": [0.1] * 4, "act": [0.5]})
            await ask({"op": "step", "stream": "b", "obs": [0.1] * 4, "act": [0.5]})
            await ask('{"op": "look", "stream": "b", "id": 1e999}')
            await ask({"op": "close", "stream": "a"})
        return answers

    with running(served) as url:
        answers = asyncio.run(talk(url))
        with Client(url) as client:
            assert client.streams() == ["b"]  # streams outlive their connection
    assert (answers[2]["step"], answers[2]["id"]) == (1, 7)
    assert answers[3] == {
        "error": "obs: a list of 4 numbers is needed, got 3 values", "status": 400, "stream": "a", "id": 8,
    }  # fmt: skip
    assert [answer.get("status") for answer in answers[4:7]] == [400, 400, 404]
    assert answers[7]["belief"] == answers[2]["belief"]
    assert answers[8] == answers[7]  # an id that JSON cannot hold is left out
    assert answers[9]["closed"]


def test_streams_survive_a_restart(served, tmp_path):
    state = tmp_path / "streams.json"
    with running(served, state=state) as url, Client(url) as client:
        before = client.open([0.0] * 4, "a").step([0.1] * 4, [0.5])
    with running(served, state=state) as url, Client(url) as client:
        assert client.resume("a").last == before
    state.write_text("{")
    with pytest.raises(CheckpointError, match=r"streams\.json is damaged.*remove it to start without"):
        asyncio.run(Server(served, ServeOptions(port=0, state=state)).start())


def test_limits_are_per_server(served):
    with running(served, limits=Limits(max_streams=1)) as url, Client(url) as client:
        client.open([0.0] * 4)
        with pytest.raises(ServerError, match="1 streams are open, the limit") as refused:
            client.open([0.0] * 4)
        assert refused.value.status == 429


def test_the_command_serves_and_ends_in_good_order(tmp_path, cartpole_model):
    cartpole_model.save(tmp_path / "model")
    state = tmp_path / "streams.json"
    words = [sys.executable, "-m", "mbrl_hdp", "serve", str(tmp_path / "model"), "--port", "0", "--state", str(state)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        greeting = process.stdout.readline()
        assert greeting.startswith("http://127.0.0.1:")
        with Client(greeting.split()[0].rstrip("/")) as client:
            client.open([0.0] * 4, "a")
    finally:
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert out.splitlines()[-1] == f"ended after 0 steps; streams saved in {state}: 1"
    assert list(json.loads(state.read_text())["streams"]) == ["a"]


def test_what_cannot_be_served_is_refused_in_one_line(tmp_path, capsys, served):
    for words, message in (
        ([str(tmp_path)], "holds no model and no run"),
        ([str(tmp_path), "--port", "70000"], "--port must lie between 0 and 65535"),
        ([str(tmp_path), "--max-streams", "0"], "--max-streams must be at least 1"),
        ([str(tmp_path), "--state", str(tmp_path / "no" / "x.json")], "there is no folder"),
    ):
        assert main(["serve", *words]) == 2
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 1
        assert message in lines[0]
    with pytest.raises(ConfigError, match=r"agent=fi_sac .* acts on the true context"):
        check_servable(Served(tmp_path, 4, 1, None, agent_name="fi_sac", sees="truth"))
    with running(served) as url:
        port = int(url.rpartition(":")[2])
        with pytest.raises(ConfigError, match=rf"--port {port}: .*--port 0 takes any free one"):
            asyncio.run(Server(served, ServeOptions(port=port)).start())
