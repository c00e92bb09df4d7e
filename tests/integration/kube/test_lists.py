"""Lists that a server never ends."""

from __future__ import annotations

import pytest

from gpuplane.kube import kinds
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.errors import Unreadable
from gpuplane.kube.readers import LIST_PAGES, turn_page
from gpuplane.kube.sessions import ClientLimits
from tests.integration.kube.scripted import Reply, Request, ScriptedServer


@pytest.mark.parametrize("count", [0, 1])
async def test_a_list_that_tells_a_token_twice_ends(
    server: ScriptedServer, client: KubeClient, count: int
) -> None:
    items = [{"metadata": {"name": "a"}}] * count
    server.handler = lambda _: Reply(body={"metadata": {"continue": "x"}, "items": items})
    with pytest.raises(Unreadable, match="no end"):
        await client.list(kinds.POD)
    assert len(server.requests) == 2


def test_a_list_of_ever_new_tokens_ends() -> None:
    turned: set[str] = set()
    for number in range(LIST_PAGES):
        turn_page(str(number), turned)
    with pytest.raises(Unreadable, match="no end"):
        turn_page("one more", turned)


@pytest.mark.parametrize("limits", [ClientLimits(list_objects=20), ClientLimits(list_bytes=2_000)])
async def test_a_list_that_always_goes_on_is_not_kept(
    server: ScriptedServer, limits: ClientLimits
) -> None:
    def handler(request: Request) -> Reply:
        number = int(request.param("continue") or 0) + 1
        items = [{"metadata": {"name": f"{number}-{count}"}} for count in range(5)]
        return Reply(body={"metadata": {"continue": str(number)}, "items": items})

    server.handler = handler
    async with KubeClient(server.connection(), limits=limits) as client:
        with pytest.raises(Unreadable, match="longer than"):
            await client.list(kinds.POD)
    assert len(server.requests) < 20
