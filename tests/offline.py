"""A guard for the folders whose tests decide and compute only: no network while they run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import pytest_socket


@pytest.fixture(autouse=True)
def closed_sockets() -> Iterator[None]:
    """Refuse every socket but Unix ones, which an asyncio loop needs for itself."""
    pytest_socket.disable_socket(allow_unix_socket=True)
    yield
    pytest_socket.enable_socket()
