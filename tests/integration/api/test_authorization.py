"""The committed table of rights is what the app answers, for every endpoint there is."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuplane.api.routers import load_routers
from gpuplane.kit.sealing import SealingKeys
from tests.integration.api.authorization import (
    BROKEN,
    committed_sections,
    make_world,
    routes_by_tag,
    section_of,
)
from tests.whole_app import whole_server

TAGS = sorted(
    {
        str((route.tags or router.tags or ["other"])[0])
        for router in load_routers()
        for route in router.routes
        if hasattr(route, "tags")
    }
    | {"operations"}
)


@pytest.mark.timeout(400)  # thousands of requests, one after the other
@pytest.mark.parametrize("tag", TAGS)
async def test_every_endpoint_answers_each_role_as_the_table_says(
    tag: str, tmp_path: Path, sealing_keys: SealingKeys
) -> None:
    async with whole_server(tmp_path, sealing_keys) as server:
        world = await make_world(server)
        section = await section_of(server, world, tag)
    assert BROKEN not in section
    expected = committed_sections().get(tag, "")
    assert section == expected, (
        "look at the difference; if it is meant: python -m tests.integration.api.authorization "
        "> tests/integration/api/authorization.txt"
    )


async def test_the_table_has_a_section_for_every_tag_and_no_other(
    tmp_path: Path, sealing_keys: SealingKeys
) -> None:
    async with whole_server(tmp_path, sealing_keys) as server:
        assert set(committed_sections()) == set(routes_by_tag(server)) == set(TAGS)
