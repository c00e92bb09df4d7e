"""Runs the control plane: one process, one event loop, stopped cleanly by SIGINT or SIGTERM."""

import asyncio
import contextlib
import gc
import logging
import signal
import socket
import sys
from collections.abc import Callable

import uvicorn

from gpuplane.db.first_schema import make_first_schema
from gpuplane.entry.assembling import issuers_of
from gpuplane.entry.certificates import BadCertificate, Certificate, find_certificate
from gpuplane.entry.control import build
from gpuplane.entry.home import Home, HomeInUse
from gpuplane.entry.refusals import CannotStart, home_refusals
from gpuplane.entry.settings import Settings
from gpuplane.kit.failpoints import arm_from_environment
from gpuplane.kit.logs import setup_logging

STOP_TIMEOUT_S = 10
BACKLOG = 2048
"""How many connections wait to be accepted, as many as uvicorn lets wait."""
KEEP_ALIVE_S = 75
"""How long an idle connection is kept: longer than clients and proxies keep theirs, so that it is
never closed from here in the moment in which a request is sent on it."""
SWITCH_S = 0.0005
"""How long a thread may compute while others wait for their turn. Every call into SQLite gives the
turn away, and at Python's default of 5 ms the writer would wait that long after each of them."""
COLLECT_AFTER = 20_000
"""How many objects may come beyond those that go before rings of garbage among them are looked for.
A decision makes an answer for each of 10,000 waiting jobs and lets go of those of the one before;
at Python's default of 700 it would be stopped 14 times to look at the same ones."""


_log = logging.getLogger(__name__)


class _Server(uvicorn.Server):
    """Uvicorn without its own signal handlers, which ends streams before it waits for requests."""

    def __init__(self, config: uvicorn.Config, end_streams: Callable[[], None]) -> None:
        super().__init__(config)
        self._end_streams = end_streams

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer what is asked, and take no more: whoever follows would be waited for in vain."""
        self._end_streams()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self):  # type: ignore[no-untyped-def]  # signature of the parent
        yield


def serve(settings: Settings) -> int:
    """Run until a signal, and return the exit code.

    Raises:
        SettingsError: If a setting cannot hold that only the server's parts can read.
    """
    arm_from_environment()
    sys.setswitchinterval(SWITCH_S)
    gc.set_threshold(COLLECT_AFTER)
    issuers_of(settings)
    try:
        certificate = find_certificate(settings.http.tls_certificate, settings.http.tls_key)
    except BadCertificate as error:
        print(f"gpuplane: the certificate cannot be used: {error}.", file=sys.stderr)
        return 1
    home = Home(settings.home)
    sockets: list[socket.socket] = []
    if not home.path.exists():  # a home that is there may tell better why the port is taken
        try:
            sockets = [_bind(settings)]
        except OSError as error:
            return _cannot_listen(settings, error)
    try:
        with home_refusals(settings.home):
            home.open()
            log = (home.path / "log.jsonl").open("a", buffering=1, encoding="utf-8")
    except (HomeInUse, CannotStart) as error:
        print(f"gpuplane: {error}", file=sys.stderr)
        return 1
    setup_logging(settings.log_level, log)
    try:
        sockets = sockets or [_bind(settings)]
    except OSError as error:
        home.close()
        return _cannot_listen(settings, error)
    try:
        import uvloop

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run(settings, home, sockets, certificate))
    except CannotStart as error:
        _log.error("the control plane cannot start", exc_info=error.__cause__)
        print(f"gpuplane: {error}", file=sys.stderr)
        return 1
    finally:
        home.close()
    return 0


def _cannot_listen(settings: Settings, error: OSError) -> int:
    """Say that the port cannot be had; return the exit code."""
    print(
        f"gpuplane: cannot listen on {settings.host}:{settings.port}: {error.strerror}. "
        "Set GPUPLANE_PORT to a free port, or 0 for any.",
        file=sys.stderr,
    )
    return 1


def _bind(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind((settings.host, settings.port))
    return bound


async def _run(
    settings: Settings, home: Home, sockets: list[socket.socket], certificate: Certificate | None
) -> None:
    make_first_schema(settings.sql_url)
    with home_refusals(settings.home):
        control = build(settings, home)
    port = sockets[0].getsockname()[1]
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    control.address = f"{'https' if certificate else 'http'}://{host}:{port}"
    config = uvicorn.Config(
        control.app,
        log_config=None,
        access_log=False,
        lifespan="off",
        proxy_headers=False,  # nothing here asks for a caller's address or scheme
        timeout_graceful_shutdown=STOP_TIMEOUT_S,
        timeout_keep_alive=KEEP_ALIVE_S,
        backlog=BACKLOG,
        h11_max_incomplete_event_size=64 * 1024,
    )
    config.load()
    if certificate is not None:
        config.ssl = certificate.context
    server = _Server(config, control.end_streams)
    loop = asyncio.get_running_loop()

    def stop() -> None:
        server.should_exit = True

    for each in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(each, stop)
    await control.start()
    open_doors(home, sockets, control.address)
    _greet(control.address, home)
    following = None if certificate is None else asyncio.create_task(certificate.follow())
    try:
        await server.serve(sockets=sockets)
    finally:
        if following is not None:
            following.cancel()
        await control.stop()
        print("gpuplane: stopped; running jobs go on and are taken up at the next start.")


def open_doors(home: Home, sockets: list[socket.socket], address: str) -> None:
    """Listen, then write the address: whoever reads it is never refused.

    Uvicorn listens only after it has loaded its protocols, a blink in which nobody would answer.
    """
    for each in sockets:
        each.listen(BACKLOG)
    home.write_address(address)


def _greet(address: str, home: Home) -> None:
    print(f"gpuplane is up at {address}")
    print(f"  admin token: {home.token_file}")
    print("  try:         gpuplane run -- python3 -c \"print('hello')\"", flush=True)
