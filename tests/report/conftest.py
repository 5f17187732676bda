"""A real browser for the pages: headless Chromium, driven through chromedriver's own HTTP interface."""

import base64
import contextlib
import json
import re
import shutil
import subprocess
import urllib.request

import pytest

FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
]


class Browser:
    """One window."""

    def __init__(self, address, capabilities):
        self.address = f"{address}/session"
        self.address += f"/{self._send('POST', '', {'capabilities': {'alwaysMatch': capabilities}})['sessionId']}"

    def _send(self, method, path, words=None):
        body = None if words is None else json.dumps(words).encode()
        request = urllib.request.Request(self.address + path, body, {"Content-Type": "application/json"}, method=method)
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
            return json.loads(answer.read())["value"]

    def open(self, url, width=1200, height=900):
        self._send("POST", "/window/rect", {"width": width, "height": height})
        self._send("POST", "/url", {"url": url})

    def run(self, script):
        return self._send("POST", "/execute/sync", {"script": script, "args": []})

    def act(self, kind, *actions):
        source = {"type": kind, "id": kind, "actions": list(actions)}
        if kind == "pointer":
            source["parameters"] = {"pointerType": "mouse"}
        self._send("POST", "/actions", {"actions": [source]})
        self.run("return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def element(self, selector):
        return self._send("POST", "/element", {"using": "css selector", "value": selector})

    def click(self, selector):
        self._send("POST", f"/element/{next(iter(self.element(selector).values()))}/click", {})
        self.run("return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def screenshot(self, path):
        path.write_bytes(base64.b64decode(self._send("GET", "/screenshot")))

    def complaints(self):
        """What the console says above information."""
        return [
            line["message"] for line in self._send("POST", "/se/log", {"type": "browser"}) if line["level"] != "INFO"
        ]

    def requests(self):
        """Addresses of everything that pages asked for (not the browser for itself), and which of them failed."""
        lines = [
            json.loads(line["message"])["message"] for line in self._send("POST", "/se/log", {"type": "performance"})
        ]
        events = [(line["method"].removeprefix("Network."), line["params"]) for line in lines]
        asked = {
            words["requestId"]: words["request"]["url"]
            for name, words in events
            if name == "requestWillBeSent" and not words["documentURL"].startswith("chrome")
        }
        failed = [words["requestId"] for name, words in events if name == "loadingFailed"]
        failed += [
            words["requestId"]
            for name, words in events
            if name == "responseReceived" and words["response"]["status"] >= 400
        ]
        return list(asked.values()), [asked[number] for number in failed if number in asked]

    def close(self):
        self._send("DELETE", "")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("chromium and chromedriver are not installed (Debian: apt-get install chromium chromium-driver)")
    process = subprocess.Popen([driver, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    window = None
    try:
        for line in process.stdout:
            started = re.search(r"started successfully on port (\d+)", line)
            if started:
                break
        flags = [*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"]
        options = {"binary": chromium, "args": flags}
        logs = {"browser": "ALL", "performance": "ALL"}
        window = Browser(f"http://127.0.0.1:{started[1]}", {"goog:chromeOptions": options, "goog:loggingPrefs": logs})
        yield window
    finally:
        if window is not None:
            with contextlib.suppress(OSError):
                window.close()
        process.terminate()
        process.wait(20)
        process.stdout.close()
