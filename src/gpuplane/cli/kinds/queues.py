"""Kinds ClusterQueue, LocalQueue, Cohort and Topology, in Kueue's field names.

`metadata.cluster` says where.
"""

from typing import Any

from gpuplane.cli.client import Client, segment
from gpuplane.cli.declarations import settle
from gpuplane.cli.kinds.changes import Action, Change, Difference, differences_of, is_same
from gpuplane.cli.manifests import Document
from gpuplane.core.quantities import SUFFIXES


def plan_cluster_queue(client: Client, document: Document, others: object) -> Change:
    """Return what a manifest of a ClusterQueue would change."""
    document.check_metadata("cluster")
    # What others made reads the same and is none of ours: declaring it says so, or takes it back.
    rows = [
        row
        for row in _rows(client, document, "quotas")
        if row["isDeclared"] and not row["isDefault"]
    ]
    return _plan(client, document, "quotas", rows, document.spec)


def plan_cohort(client: Client, document: Document, others: object) -> Change:
    """Return what a manifest of a Cohort would change."""
    document.check_metadata("cluster")
    rows = [row for row in _rows(client, document, "cohorts") if row["isDeclared"]]
    return _plan(client, document, "cohorts", rows, document.spec)


def plan_topology(client: Client, document: Document, others: object) -> Change:
    """Return what a manifest of a Topology would change."""
    document.check_metadata("cluster")
    rows = [row for row in _rows(client, document, "topologies") if row["isDeclared"]]
    wanted = {**document.spec, "flavors": sorted(document.spec.get("flavors") or ())}
    return _plan(client, document, "topologies", rows, wanted)


def plan_local_queue(client: Client, document: Document, others: object) -> Change:
    """Return what a manifest of a LocalQueue would change; `metadata.tenant` says whose it is."""
    document.check_metadata("cluster", "tenant")
    tenant = document.metadata.get("tenant")
    if not isinstance(tenant, str):
        raise document.error("Whose queue is it?", field="metadata.tenant", fix="Name a tenant.")
    rows = [
        row
        for row in _rows(client, document, "queues")
        if row["isDeclared"] and tenant in (row["tenant"], row["tenantId"])
    ]
    return _plan(client, document, "queues", rows, {**document.spec, "tenant": tenant})


def _rows(client: Client, document: Document, list_name: str) -> list[dict[str, Any]]:
    return list(client.rows(_path(document, list_name)))


def _path(document: Document, list_name: str) -> str:
    cluster = document.metadata.get("cluster")
    if not isinstance(cluster, str):
        raise document.error("On which cluster?", field="metadata.cluster", fix="Name a cluster.")
    return f"/clusters/{segment(cluster)}/{list_name}"


def _plan(
    client: Client,
    document: Document,
    list_name: str,
    rows: list[dict[str, Any]],
    wanted: dict[str, Any],
) -> Change:
    path = _path(document, list_name)
    found = next((row for row in rows if row["name"] == document.name), None)
    if found is None:
        return Change(document, Action.CREATE, (),
                      lambda: _create(client, document, path, wanted))  # fmt: skip
    differ = [each for each in differences_of(wanted, found) if not _same_quantities(each)]
    if not differ:
        return Change(document, Action.UNCHANGED)
    return Change(document, Action.CHANGE, differ,
                  lambda: _change(client, document, path, wanted))  # fmt: skip


def _same_quantities(difference: Difference) -> bool:
    return is_same(_plain(difference.old), _plain(difference.new))


def _plain(value: Any) -> Any:
    """Return a value with every Kubernetes quantity in it as a number of its base unit."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items() if each is not None}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, str):
        for suffix in (value[-2:], value[-1:]):
            number = value.removesuffix(suffix)
            if suffix in SUFFIXES and number.replace(".", "", 1).isdigit():
                return float(number) * float(SUFFIXES[suffix])
    return value


def _create(client: Client, document: Document, path: str, wanted: dict[str, Any]) -> str:
    _settle(client, path, client.post(path, {"name": document.name, **wanted}))
    return "declared"


def _change(client: Client, document: Document, path: str, wanted: dict[str, Any]) -> str:
    _settle(client, path, client.put(f"{path}/{segment(document.name)}", wanted))
    return "changed"


def _settle(client: Client, path: str, found: dict[str, Any]) -> None:
    """Wait until the cluster has a queue or a cohort; the others of these kinds need no word."""
    if path.endswith(("/quotas", "/cohorts")):
        settle(client, path, found)
