"""In which project a manifest's thing lies: what it names, else the caller's own, as ids.

Owns the reading of `metadata.project` and `metadata.tenant`, by the rules by which the server
places what is submitted. Nothing is found by part of a name: what is found is changed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuplane.cli.client import Client, segment
from gpuplane.cli.errors import ApiError
from gpuplane.cli.lookups import find_exactly, is_uuid

DEFAULT_PROJECT = "default"
"""Meant where a manifest names another tenant and no project of it."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The project that a manifest's thing lies in.

    Args:
        tenant_id: Its tenant; None if only a project's id is known.
        project_id: The project; None if it is not there, or its id may not be read.
        project: The project's name, where its id is not known.
        elsewhere: Where it lies, for people; empty if that is the caller's own project.
    """

    tenant_id: str | None
    project_id: str | None
    project: str
    elsewhere: str

    def query(self) -> dict[str, Any]:
        """Return the filters of a list that leave only what lies there."""
        found = {"tenant_id": self.tenant_id, "project_id": self.project_id}
        return {name: each for name, each in found.items() if each is not None}

    def fields(self) -> dict[str, Any]:
        """Return what the body of a submit says about its project."""
        return self.query() if self.project_id is not None else (
            {**self.query(), "project": self.project})  # fmt: skip

    def has(self, row: Mapping[str, Any]) -> bool:
        """Return whether a row with its tenant's and project's ids lies there."""
        if self.tenant_id not in (None, row["tenant_id"]):
            return False
        if self.project_id is not None:
            return bool(row["project_id"] == self.project_id)
        return bool(row.get("project") == self.project)


def owner_of(client: Client, *, tenant: str | None, project: str | None) -> Owner:
    """Return where a thing lies whose manifest names a tenant and a project, or neither.

    Args:
        client: Whom to ask.
        tenant: The tenant's name or id; the caller's own unless given.
        project: The project's name in that tenant, or its id; unless given the caller's own, or
            the project `default` of another tenant.

    Raises:
        CliError: If there is no such tenant.
    """
    own = client.get("/whoami")
    owner = None if tenant is None else find_exactly(client, "/tenants", tenant, "tenant")
    tenant_id = None if owner is None else str(owner["id"])
    if project is None and tenant_id in (None, own["tenant_id"]):
        return Owner(own["tenant_id"], own["project_id"], "", "")
    name = DEFAULT_PROJECT if project is None else project
    project_id: str | None
    found = _project(client, tenant_id or own["tenant_id"], name)
    if found is not None:
        tenant_id = str(found["tenant_id"]) if tenant_id is None else tenant_id
        project_id, name = str(found["id"]), str(found["name"])
    else:
        project_id = name if is_uuid(name) else None
        tenant_id = tenant_id or (None if project_id else own["tenant_id"])
    elsewhere = ""
    if project_id != own["project_id"]:
        elsewhere = f"project {name}{_tenant_of(client, tenant_id, own['tenant_id'])}"
    return Owner(tenant_id, project_id, name, elsewhere)


def _project(client: Client, tenant_id: str, key: str) -> dict[str, Any] | None:
    """Return a project by its id or its whole name; None if the server has to be the judge.

    A token may submit jobs without the right to read projects.
    """
    try:
        if is_uuid(key):
            return dict(client.get(f"/projects/{segment(key)}"))
        rows = client.items("/projects", tenant_id=tenant_id)
        return next((row for row in rows if row["name"] == key), None)
    except ApiError as error:
        if error.status in (403, 404):
            return None
        raise


def _tenant_of(client: Client, tenant_id: str | None, own: str) -> str:
    if tenant_id in (None, own):
        return ""
    try:
        name = client.get(f"/tenants/{segment(tenant_id)}")["name"]
    except ApiError as error:
        if error.status not in (403, 404):
            raise
        name = tenant_id
    return f" of tenant {name}"
