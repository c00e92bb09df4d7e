"""The whole product's API as the composition root builds it, without its loops running."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

from gpuplane.api.authentication import Authenticator
from gpuplane.domains.identity import service as identity
from gpuplane.entry.control import build
from gpuplane.entry.environment import load_settings
from gpuplane.entry.firststart import ensure_first_start
from gpuplane.entry.home import Home
from gpuplane.kit.sealing import SealingKeys
from tests.http_app import Server, SteppingClock


@contextlib.asynccontextmanager
async def whole_server(
    folder: Path, sealing: SealingKeys, database_url: str = ""
) -> AsyncIterator[Server]:
    """Build everything on a home of its own, with what a first start makes; no loop runs."""
    home = Home(folder / "home")
    home.open()
    _share_key(sealing, home.keys)
    clock = SteppingClock()
    settings = load_settings(
        {"GPUPLANE_HTTP_STREAMS": "20"}, home=home.path, port=0, database_url=database_url
    )
    control = build(settings, home, clock)
    digest = hashlib.sha256(control.token.encode()).hexdigest()
    try:
        now = clock.now_ms()
        clusters = await control.database.write(
            "tests.first_start", lambda s: ensure_first_start(s, now, digest, "gp_test")
        )
        for cluster in clusters:
            control.backends.add(cluster)
        await control.loops["inventory"].run_once()
        admin = await control.database.write(
            "tests.admin", lambda s: identity.ensure_defaults(s, now, digest)
        )
        server = Server(
            app=control.app,
            database=control.database,
            clock=clock,
            admin=admin,
            admin_token=control.token,
            authenticator=Authenticator(control.database, clock),
            ports={},
        )
        try:
            yield server
        finally:
            for client in server.clients:
                await client.aclose()
    finally:
        await control.stop()
        home.close()


def _share_key(sealing: SealingKeys, folder: Path) -> None:
    """Give a home the sealing key of the run, because making one takes seconds."""
    assert sealing.current_id
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for path in sealing.folder.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
