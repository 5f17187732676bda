"""A page that follows a running training: served on this machine only, made anew when the run has written something."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from mbrl_hdp.errors import ConfigError, DataError, MbrlHdpError
from mbrl_hdp.report.html import render
from mbrl_hdp.report.page_data import ReportPage, gather

_HERE = "127.0.0.1"
_WATCHED = ("config.yaml", "metrics.csv", "summary.json", "rollout.gif")


class LivePage:
    """The page of runs, made anew when one of their files has changed.

    Args:
        paths: runs, or a folder with runs below; they may begin later.
    """

    def __init__(self, paths: Sequence[str | Path]) -> None:
        self.paths = [Path(path) for path in paths]
        self._lock = threading.Lock()
        self._made: tuple[str, str] | None = None
        missing = [str(path) for path in self.paths if not path.is_dir()]
        if missing:
            raise DataError(f"{missing[0]}: there is no such folder; name the directory of a run or a sweep")

    def version(self) -> str:
        """Return what changes when a run writes something: names, times and sizes of its files."""
        found = []
        for path in self.paths:
            for name in _WATCHED:
                for file in sorted(path.rglob(name)):
                    with contextlib.suppress(FileNotFoundError):  # removed since it was listed
                        seen = file.stat()
                        found.append(f"{file}:{seen.st_mtime_ns}:{seen.st_size}")
        return f"{hash(tuple(found)):x}"

    def html(self) -> str:
        """Return the page as the files are now; while they cannot be read, a page that says why."""
        with self._lock:
            version = self.version()
            if self._made is None or self._made[0] != version:
                self._made = version, self._render()
            return self._made[1]

    def _render(self) -> str:
        try:
            return render(gather(self.paths), live=True)
        except (MbrlHdpError, OSError) as error:
            where, why = ", ".join(map(str, self.paths)), str(error).replace(" and is left out", "")
            return render(ReportPage("waiting", "Waiting for the first epoch", where, notes=[why]), live=True)


def make_server(paths: Sequence[str | Path], port: int = 0) -> ThreadingHTTPServer:
    """Return a server of the page of runs at 127.0.0.1, which other machines cannot reach; 0 is any free port.

    Raises:
        ConfigError: if the port cannot be had.
    """
    page = LivePage(paths)

    class Handler(BaseHTTPRequestHandler):
        """Answers `/` with the page and `/version` with its version; to nobody who calls us by another name."""

        def do_GET(self) -> None:
            """Answer a request."""
            name, _, number = self.headers.get("Host", "").partition(":")
            if name not in {_HERE, "localhost"} or number != str(self.server.server_port):  # type: ignore[attr-defined]
                self._answer(HTTPStatus.FORBIDDEN, "text/plain", "this page is for this machine only")
            elif self.path == "/":
                self._answer(HTTPStatus.OK, "text/html", page.html())
            elif self.path == "/version":
                self._answer(HTTPStatus.OK, "text/plain", page.version())
            else:
                self._answer(HTTPStatus.NOT_FOUND, "text/plain", "there is only /")

        def _answer(self, status: HTTPStatus, kind: str, text: str) -> None:
            content = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            """Print nothing for every request."""

    if not 0 <= port <= 65535:
        raise ConfigError(f"--port must lie between 0 and 65535, got {port}")
    try:
        return ThreadingHTTPServer((_HERE, port), Handler)
    except OSError as error:
        raise ConfigError(f"--port {port}: {error.strerror}; leave it out to take any free one") from error


def follow(paths: Sequence[str | Path], port: int = 0) -> int:
    """Serve the page of running trainings until Ctrl-C; return the exit code."""
    with make_server(paths, port) as server:
        print(f"http://{_HERE}:{server.server_port}/ follows {', '.join(map(str, paths))}; Ctrl-C ends it", flush=True)
        server.serve_forever()
    return 0
