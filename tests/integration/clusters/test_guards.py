"""What a cluster's state and its run allow, on a real database."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from gpuplane.core.ids import ClusterId
from gpuplane.core.lifecycle.runs import RunStatus
from gpuplane.db.database import Database
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.clusters.errors import (
    ClusterBusy,
    ClusterChanged,
    ClusterExists,
    ClusterNotFound,
)
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


@pytest.fixture
async def any_shelf(migrated_url: str) -> AsyncIterator[Shelf]:
    """The same on each kind of database."""
    database = Database(migrated_url)
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
    failed = await shelf.do(
        clusters.fail_run, cluster.id, first.id, "Rights are missing.", shelf.now
    )
    assert not is_served(failed)
    cluster, _ = await shelf.register_again(failed)
    assert not is_served(cluster)
    cluster = await shelf.do(clusters.make_available, cluster.id, shelf.now)
    assert is_served(cluster)
    draining, last = await shelf.delete(cluster)
    assert is_served(draining)
    failed = await shelf.do(clusters.fail_run, cluster.id, last.id, "It was cancelled.", shelf.now)
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
    names = await shelf.database.read(clusters.names_of_all)
    assert names[cluster.id] == f"{cluster.name} (deleted)"
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


async def test_a_run_that_failed_says_nothing_of_a_cluster_that_another_has_taken(
    shelf: Shelf,
) -> None:
    cluster, first = await shelf.register()
    await shelf.delete(cluster)
    found = await shelf.do(clusters.fail_run, cluster.id, first.id, "It was cancelled.", shelf.now)
    assert found.state is ClusterState.DRAINING


async def test_other_credentials_are_tried_at_once(shelf: Shelf) -> None:
    cluster = await shelf.available()
    for _ in range(3):
        await shelf.do(
            clusters.note_contact, cluster.id, "refused", clusters.DEFAULT_CONTACT_POLICY, shelf.now
        )
    fresh = a_credential(cluster.id, 2)
    found = await shelf.do(clusters.replace_credential, cluster.id, fresh, {}, shelf.now)
    assert (found.failures, found.failed_at, found.next_try_at) == (0, (), None)


@pytest.mark.parametrize("number", [1, 3])
async def test_credentials_that_were_looked_at_before_others_came_are_refused(
    shelf: Shelf, number: int
) -> None:
    cluster = await shelf.available()
    late = a_credential(cluster.id, number)
    with pytest.raises(ClusterChanged):
        await shelf.do(clusters.replace_credential, cluster.id, late, {"host": "h"}, shelf.now)
    assert (await shelf.cluster(cluster.id)).host == ""


async def test_a_cluster_is_not_registered_under_two_names(shelf: Shelf) -> None:
    await shelf.register("east", uid="u1")
    with pytest.raises(ClusterExists, match="as 'east'"):
        await shelf.register("west", uid="u1")
    made, _ = await shelf.register("south", uid="u2")
    assert made.state is ClusterState.REGISTERING


async def test_of_a_version_that_is_too_long_as_much_is_kept_as_its_column_holds(
    any_shelf: Shelf,
) -> None:
    shelf, long = any_shelf, "v1.34.0-" + "x" * 100
    cluster = await shelf.available()
    for verb, arguments in (
        (clusters.note_looked_at, (cluster.id, {"kubernetes_version": long}, shelf.now)),
        (
            clusters.replace_credential,
            (cluster.id, a_credential(cluster.id, 2), {"kubernetes_version": long}, shelf.now),
        ),
    ):
        found = await shelf.do(verb, *arguments)
        assert found.kubernetes_version == long[:40]
    status = clusters.AddonStatus(
        cluster.id, "nfd", "present", "nfd", "nfd", "nfd", long, "", shelf.now
    )
    await shelf.do(clusters.note_addon, status)
    kept = await shelf.database.read(lambda s: clusters.list_addons(s, cluster.id))
    assert [each.chart_version for each in kept] == [long[:40]]
