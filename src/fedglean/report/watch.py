"""Serves the report of runs while they train, to this machine only.

Two addresses are answered, the page and its data; no other file can be had. A request must name
this machine as its host, so that no site in the reader's browser can ask in its own name.
"""

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import product
from pathlib import Path
from threading import Lock
from typing import Any

from fedglean.errors import ConfigError, FedgleanError
from fedglean.report.examine import ModelReport
from fedglean.report.gather import gather
from fedglean.report.page import page, page_data
from fedglean.sealed import digest

HERE = "127.0.0.1"
CHANGING = ("seeds.json", "compare.json", "metrics.jsonl", "model.safetensors")


class Watcher(ThreadingHTTPServer):
    """Serves what the folders hold now; they are read again when something in them changed."""

    daemon_threads = True

    def __init__(self, folders: Sequence[Path], port: int = 0) -> None:
        self.folders, self.report, self.lock = folders, ModelReport(), Lock()
        self.mark, self.data = self._mark(), self._read()
        try:
            super().__init__((HERE, port), PageHandler)
        except (OSError, OverflowError) as error:
            how = "choose another, or 0 for any free one"
            raise ConfigError(f"port {port} cannot be used ({error}); {how}") from error

    @property
    def address(self) -> str:
        return f"http://{HERE}:{self.server_port}/"

    def now(self) -> tuple[str, dict[str, Any]]:
        """The data and a mark that changes with it."""
        with self.lock:
            mark = self._mark()
            if mark != self.mark:
                self.data, self.mark = self._read(), mark
            return self.mark, self.data

    def _read(self) -> dict[str, Any]:
        return page_data(gather(self.folders), self.report, live=True)

    def _mark(self) -> str:
        states = []
        for folder, below, name in product(self.folders, ("", "*/", "*/*/"), CHANGING):
            for place in sorted(folder.glob(below + name)):
                state = place.stat()
                states.append((str(place), state.st_size, state.st_mtime_ns))
        return digest(repr(states).encode())[:32]


class PageHandler(BaseHTTPRequestHandler):
    """Answers GET, and nothing else."""

    server: Watcher
    server_version = "fedglean"
    sys_version = ""

    def do_GET(self) -> None:
        hosts = [f"{name}:{self.server.server_port}" for name in (HERE, "localhost")]
        if self.headers.get("Host") not in hosts:
            self._send(403, b"this page is for this machine alone\n")
            return
        with suppress(ConnectionError):  # whoever asked may have gone
            self._answer(self.path.partition("?")[0])

    def _answer(self, path: str) -> None:
        if path not in ("/", "/data.json"):
            self._send(404, b"there is nothing here but the page\n")
            return
        try:
            mark, data = self.server.now()
        except (FedgleanError, OSError) as error:
            self._send(503, f"{error}\n".encode(errors="replace"))
            return
        if path == "/":
            self._send(200, page(data).encode(errors="replace"), "text/html")
        elif self.headers.get("If-None-Match") == f'"{mark}"':
            self._send(304, b"")
        else:
            self._send(200, json.dumps(data).encode(), "application/json", mark)

    def _send(
        self, status: int, body: bytes, kind: str = "text/plain", mark: str | None = None
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Frame-Options", "DENY")
        if mark:
            self.send_header("ETag", f'"{mark}"')
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Every second a line would tell nobody anything."""


def watch(folders: Sequence[Path], port: int = 0, say: Callable[[str], None] = print) -> None:
    """Serve until the user has seen enough."""
    try:
        with Watcher(folders, port) as watcher:
            say(f"watching at {watcher.address} (Ctrl-C ends it)")
            watcher.serve_forever(poll_interval=0.2)
    except KeyboardInterrupt:
        say("stopped watching")
