"""Whoever leaves a registration or a deletion by Ctrl-C is told that it goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.integration.cli.conftest import COMMAND, TIMEOUT_S

CLUSTER = {"id": "c1", "name": "lab", "kubernetes_version": "v1.34.0", "server_url": "https://s"}
MADE = {"workflow_id": "r1", "warnings": [], "cluster": CLUSTER, "metrics_key": "gpc_x"}


class Server(ThreadingHTTPServer):
    """Answers as the API does, until the command looks at its run: then Ctrl-C is pressed."""

    daemon_threads = True
    command: subprocess.Popen[str]

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.started = threading.Event()

    def interrupt(self) -> None:
        self.started.wait(TIMEOUT_S)
        self.command.send_signal(signal.SIGINT)
        self.command.wait(TIMEOUT_S)


class Answers(BaseHTTPRequestHandler):
    """One request."""

    server: Server

    def do_GET(self) -> None:
        if "/runs/" in self.path:
            self.server.interrupt()
            return
        is_plan = self.path.endswith("/deletion-plan")
        self._answer({"jobs": [], "lost_s": 0, "cancelled": 0} if is_plan else CLUSTER)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self._answer(MADE)

    def do_DELETE(self) -> None:
        self._answer(MADE)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing among the output of tests."""

    def _answer(self, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["register", "lab", "--kubeconfig", __file__], "gpuplane clusters keys lab --issue"),
        (["rm", "lab", "--yes"], "gpuplane clusters show lab"),
    ],
    ids=["register", "rm"],
)
def test_an_interrupted_command_says_that_its_run_goes_on_and_how_to_follow_it(
    words: list[str], said: str
) -> None:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        with subprocess.Popen(
            [*COMMAND, "clusters", *words],
            env={**os.environ, "GPUPLANE_URL": url, "GPUPLANE_TOKEN": "token"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as command:
            server.command = command
            server.started.set()
            _, told = command.communicate(timeout=TIMEOUT_S)
        server.shutdown()
        thread.join()
    assert command.returncode == 130
    assert "run r1 goes on; look at it with: gpuplane pipelines show r1" in told
    assert said in told
