"""An API server that keeps what is written to it, a client of it, and a world with a database."""

from __future__ import annotations

import pytest

from tests.integration.jobs.conftest import any_world, sealing_keys, world
from tests.integration.kube.conftest import client, clock, server
from tests.integration.kube.scripted import ScriptedServer
from tests.integration.kueue.stored import Stored

__all__ = ["any_world", "client", "clock", "sealing_keys", "server", "world"]


@pytest.fixture
def stored(server: ScriptedServer) -> Stored:
    """What the scripted server keeps."""
    made = Stored()
    server.handler = made
    return made
