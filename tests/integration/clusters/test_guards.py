"""What a cluster's state and its run allow, on a real database."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from gpuplane.core.lifecycle.runs import RunStatus
from gpuplane.db.database import Database
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.clusters.service import ClusterState
from tests.integration.clusters.worlds import Shelf


@pytest.fixture
async def shelf(sqlite_migrated_url: str) -> AsyncIterator[Shelf]:
    """A database without a cluster."""
    database = Database(sqlite_migrated_url)
    try:
        yield Shelf(database)
    finally:
        database.close()


async def test_a_registration_that_still_runs_does_not_bring_a_drained_cluster_back(
    shelf: Shelf,
) -> None:
    cluster = await shelf.available()
    cluster, _ = await shelf.register_again(cluster)
    await shelf.delete(cluster)
    for state in (ClusterState.DRAINING, ClusterState.DELETING):
        found = await shelf.do(clusters.make_available, cluster.id, shelf.now)
        assert found.state is state
        await shelf.do(clusters.begin_removal, cluster.id, shelf.now)


async def test_a_deletion_cancels_the_run_that_goes_on_whatever_the_state(shelf: Shelf) -> None:
    cluster = await shelf.available()
    cluster, again = await shelf.register_again(cluster)
    assert cluster.state is ClusterState.AVAILABLE
    cluster, first = await shelf.delete(cluster)
    assert (await shelf.run(again.id)).status is RunStatus.CANCELLED
    cluster, second = await shelf.delete(cluster, force=True)
    assert (await shelf.run(first.id)).status is RunStatus.CANCELLED
    assert cluster.run_id == second.id
