"""What a cluster's state and its run allow, on a real database."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from gpuplane.core.ids import ClusterId
from gpuplane.core.lifecycle.runs import RunStatus
from gpuplane.db.database import Database
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.clusters.errors import ClusterBusy, ClusterNotFound
from gpuplane.domains.clusters.service import ClusterState
from gpuplane.domains.runs import service as runs
from gpuplane.entry.backends import is_served
from gpuplane.kit.ids import new_id
from tests.integration.clusters.worlds import Shelf, a_credential, a_key


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


async def test_work_is_served_on_after_a_deletion_failed_and_while_it_is_registered_again(
    shelf: Shelf,
) -> None:
    cluster, first = await shelf.register()
    assert not is_served(cluster)
    await shelf.do(runs.cancel_run, first.id, shelf.now)
    failed = await shelf.do(clusters.fail_run, cluster.id, "Rights are missing.", shelf.now)
    assert not is_served(failed)
    cluster, _ = await shelf.register_again(failed)
    assert not is_served(cluster)
    cluster = await shelf.do(clusters.make_available, cluster.id, shelf.now)
    assert is_served(cluster)
    draining, _ = await shelf.delete(cluster)
    assert is_served(draining)
    failed = await shelf.do(clusters.fail_run, cluster.id, "It was cancelled.", shelf.now)
    assert (failed.state, failed.not_available_since) == (ClusterState.ERROR, None)
    assert is_served(failed)
    again, _ = await shelf.register_again(failed)
    assert again.state is ClusterState.REGISTERING
    assert is_served(again)


async def test_a_deleted_cluster_is_found_by_rows_that_tell_of_it_and_changed_by_nobody(
    shelf: Shelf,
) -> None:
    cluster, _ = await shelf.delete(await shelf.available())
    await shelf.do(clusters.remove, cluster.id, shelf.now)
    assert (await shelf.cluster(cluster.id)).deleted_at == shelf.now
    for verb, arguments in (
        (clusters.freeze, (str(cluster.id), "why", "ada", shelf.now)),
        (clusters.change, (cluster.id, {"role": "manager"}, "ada", shelf.now)),
        (clusters.issue_key, (cluster.id, a_key(cluster.id))),
        (
            clusters.replace_credential,
            (cluster.id, a_credential(cluster.id, 2), {"host": "h"}, shelf.now),
        ),
    ):
        with pytest.raises(ClusterNotFound):
            await shelf.do(verb, *arguments)
    kept = await shelf.database.read(lambda s: clusters.find_credential(s, cluster.id))
    assert kept is None


async def test_a_cluster_that_is_not_reached_by_a_kubeconfig_is_given_none(shelf: Shelf) -> None:
    cluster_id = ClusterId(new_id())
    await shelf.do(
        clusters.ensure_cluster, cluster_id, name="sim", kind="simulated", simulated=True,
        config={}, now=shelf.now,
    )  # fmt: skip
    with pytest.raises(ClusterBusy):
        await shelf.do(
            clusters.replace_credential, cluster_id, a_credential(cluster_id, 1), {}, shelf.now
        )
    kept = await shelf.database.read(lambda s: clusters.find_credential(s, cluster_id))
    assert kept is None
