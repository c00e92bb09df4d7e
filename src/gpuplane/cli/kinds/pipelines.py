"""Kind Pipeline: saved as it stands; the server checks it and tells what would change."""

from typing import Any

from gpuplane.cli.client import Client
from gpuplane.cli.kinds.changes import Action, Change, Difference
from gpuplane.cli.manifests import API_VERSION, Document
from gpuplane.cli.ownership import Owner, owner_of


def plan_pipeline(client: Client, document: Document, others: object) -> Change:
    """Return what a manifest of a pipeline would change."""
    document.check_metadata("project", "tenant", "labels")
    named = (document.metadata.get(name) for name in ("tenant", "project"))
    tenant, project = (None if each is None else str(each) for each in named)
    owner = owner_of(client, tenant=tenant, project=project or client.target.project)
    if owner.project_id is None and project is not None:
        raise document.error(f"There is no project {owner.project!r} in the tenant.",
                             field="metadata.project")  # fmt: skip
    body = _body(document)
    told = client.post(_path("/pipelines/check", owner), body)
    differ = [Difference(each["path"], each["old"], each["new"]) for each in told["changes"]]
    if told["would_create"]:
        action = Action.CREATE
    else:
        action = Action.CHANGE if differ else Action.UNCHANGED
    return Change(
        document, action, differ, lambda: _save(client, body, owner), elsewhere=owner.elsewhere
    )


def _body(document: Document) -> dict[str, Any]:
    labels = document.metadata.get("labels")
    metadata = {"name": document.name} | ({} if labels is None else {"labels": labels})
    return {
        "apiVersion": API_VERSION,
        "kind": document.kind,
        "metadata": metadata,
        "spec": document.spec,
    }


def _save(client: Client, body: dict[str, Any], owner: Owner) -> str:
    return f"version {client.put(_path('/pipelines', owner), body)['version']}"


def _path(path: str, owner: Owner) -> str:
    return path if owner.project_id is None else f"{path}?project={owner.project_id}"
