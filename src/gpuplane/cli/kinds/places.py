"""Kinds Tenant and Project: made if absent, changed in place."""

from typing import Any

from gpuplane.cli.client import Client
from gpuplane.cli.kinds.changes import Action, Change, differences_of
from gpuplane.cli.lookups import find_exactly, pick_exactly
from gpuplane.cli.manifests import Document, nearest

AFFINITIES = ("required", "preferred", "excluded")


def plan_tenant(client: Client, document: Document, others: object) -> Change:
    """Return what a manifest of a tenant would change."""
    document.check_metadata()
    wanted = _wanted(document, "display_name")
    found = _find(client, "/tenants", document.name)
    if found is None:
        return Change(document, Action.CREATE, (), lambda: _create_tenant(client, document, wanted))
    differ = differences_of(wanted, found)
    if not differ:
        return Change(document, Action.UNCHANGED)
    return Change(document, Action.CHANGE, differ,
                  lambda: _patch(client, f"/tenants/{found['id']}", wanted))  # fmt: skip


def plan_project(client: Client, document: Document, others: object) -> Change:
    """Return what a manifest of a project would change."""
    document.check_metadata("tenant")
    wanted = _wanted(document, "display_name", "clusters")
    clusters = wanted.pop("clusters", None)
    _check_clusters(document, clusters)
    found = _find_project(client, document)
    if found is None:
        return Change(document, Action.CREATE, (),
                      lambda: _create_project(client, document, wanted, clusters))  # fmt: skip
    differ = differences_of(wanted, found)
    if clusters is not None:
        named = _affinities(client, clusters)
        now = client.get(f"/projects/{found['id']}/clusters")
        differ += differences_of({"clusters": named}, {"clusters": now})
    if not differ:
        return Change(document, Action.UNCHANGED)
    return Change(document, Action.CHANGE, differ,
                  lambda: _change_project(client, found["id"], wanted, clusters))  # fmt: skip


def _wanted(document: Document, *fields: str) -> dict[str, Any]:
    for name in document.spec:
        if name not in fields:
            raise document.error(f"There is no field {name!r} here.", field=f"spec.{name}",
                                 fix=nearest(name, fields))  # fmt: skip
    return dict(document.spec)


def _check_clusters(document: Document, clusters: Any) -> None:
    if clusters is None:
        return
    if not isinstance(clusters, dict) or set(clusters) - set(AFFINITIES):
        raise document.error("clusters has the lists required, preferred and excluded.",
                             field="spec.clusters")  # fmt: skip


def _find(client: Client, path: str, name: str, **query: Any) -> dict[str, Any] | None:
    return next((row for row in client.items(path, **query) if row["name"] == name), None)


def _find_project(client: Client, document: Document) -> dict[str, Any] | None:
    tenant = document.metadata.get("tenant")
    if tenant is None:
        own = client.get("/whoami")["tenant_id"]
        return _find(client, "/projects", document.name, tenant_id=own)
    owner = _find(client, "/tenants", tenant)
    if owner is None:
        return None  # it is made first, from a manifest before this one
    return _find(client, "/projects", document.name, tenant_id=owner["id"])


def _affinities(client: Client, clusters: dict[str, Any]) -> dict[str, list[str]]:
    rows = client.rows("/clusters")
    return {
        word: [pick_exactly(rows, str(key), "cluster")["id"] for key in clusters.get(word) or []]
        for word in AFFINITIES
    }


def _create_tenant(client: Client, document: Document, wanted: dict[str, Any]) -> str:
    client.post("/tenants", {"name": document.name, **wanted})
    return "made, with a project default"


def _create_project(
    client: Client, document: Document, wanted: dict[str, Any], clusters: dict[str, Any] | None
) -> str:
    tenant = document.metadata.get("tenant")
    body = {"name": document.name, **wanted}
    if tenant is not None:
        body["tenant_id"] = find_exactly(client, "/tenants", tenant, "tenant")["id"]
    found = client.post("/projects", body)
    if clusters is not None:
        client.put(f"/projects/{found['id']}/clusters", _affinities(client, clusters))
    return "made"


def _change_project(
    client: Client, identity: str, wanted: dict[str, Any], clusters: dict[str, Any] | None
) -> str:
    if wanted:
        client.patch(f"/projects/{identity}", wanted)
    if clusters is not None:
        client.put(f"/projects/{identity}/clusters", _affinities(client, clusters))
    return "changed"


def _patch(client: Client, path: str, wanted: dict[str, Any]) -> str:
    client.patch(path, wanted)
    return "changed"
