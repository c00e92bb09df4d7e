"""Every query on sealed secrets."""

from collections.abc import Collection
from typing import Any

from sqlalchemy import Select, delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from gpuplane.core.ids import ProjectId, SecretId, TenantId
from gpuplane.db.pages import load_page
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.db.types import table_of
from gpuplane.domains.secrets.errors import SecretExists
from gpuplane.domains.secrets.rules import Secret
from gpuplane.domains.secrets.tables import SecretRow
from gpuplane.kit.access import RowScope
from gpuplane.kit.pagination import Page, PageRequest

rows = table_of(SecretRow)

SORT_NAME = "name"


def store_secret(session: WriteSession, secret: Secret, sealed: bytes) -> None:
    """Insert a secret; SecretExists if the project has one of that name."""
    try:
        session.execute(
            insert(rows).values(
                id=secret.id,
                tenant_id=secret.tenant_id,
                project_id=secret.project_id,
                name=secret.name,
                sealed=sealed,
                value_version=secret.value_version,
                created_by=secret.created_by,
                created_at=secret.created_at,
                rotated_at=secret.rotated_at,
                version=secret.version,
            )
        )
    except IntegrityError as error:
        raise SecretExists(
            "The project has a secret of that name.",
            field="name",
            fix="Rotate it with PUT, or choose another name.",
        ) from error


def store_value(
    session: WriteSession, secret: Secret, sealed: bytes, value_version: int, now: int
) -> bool:
    """Replace a value if the secret is still of the version read; return whether it was."""
    changed = session.execute(
        update(rows)
        .where(rows.c.id == secret.id, rows.c.version == secret.version)
        .values(
            sealed=sealed,
            value_version=value_version,
            rotated_at=now,
            version=secret.version + 1,
        )
    )
    return changed == 1


def store_rewrapped(session: WriteSession, secret: Secret, sealed: bytes) -> bool:
    """Replace the seal of an unchanged value; False when it was rotated meanwhile."""
    changed = session.execute(
        update(rows)
        .where(rows.c.id == secret.id, rows.c.version == secret.version)
        .values(sealed=sealed, version=secret.version + 1)
    )
    return changed == 1


def find_secret(session: ReadSession, secret_id: SecretId) -> Secret | None:
    """Return a secret, or None."""
    row = session.row(select(rows).where(rows.c.id == secret_id))
    return None if row is None else _secret(row)


def secrets_named(
    session: ReadSession, project_id: ProjectId, names: Collection[str]
) -> dict[str, tuple[Secret, bytes]]:
    """Return the secrets of a project by name, with their sealed values."""
    found = session.rows(
        select(rows).where(rows.c.project_id == project_id, rows.c.name.in_(sorted(names)))
    )
    return {row["name"]: (_secret(row), row["sealed"]) for row in found}


def list_secrets(
    session: ReadSession, scope: RowScope, project_id: ProjectId | None, page: PageRequest
) -> Page[Secret]:
    """Return one page of the secrets in scope, by name."""
    query: Select[Any] = select(rows)
    if not scope.everything:
        query = query.where(
            rows.c.tenant_id.in_(sorted(scope.tenant_ids))
            | rows.c.project_id.in_(sorted(scope.project_ids))
        )
    if project_id is not None:
        query = query.where(rows.c.project_id == project_id)
    return load_page(session, query, (rows.c.name, rows.c.id), page, _secret, sort=SORT_NAME)


def sealed_after(
    session: ReadSession, after: SecretId | None, limit: int
) -> tuple[tuple[Secret, bytes], ...]:
    """Return the next secrets by id with their sealed values, for rewrapping."""
    query = select(rows).order_by(rows.c.id).limit(limit)
    if after is not None:
        query = query.where(rows.c.id > after)
    return tuple((_secret(row), row["sealed"]) for row in session.rows(query))


def count_secrets(session: ReadSession, tenant_id: TenantId, project_id: ProjectId | None) -> int:
    """Return how many secrets a tenant, or one of its projects, has."""
    query = select(func.count()).select_from(rows).where(rows.c.tenant_id == tenant_id)
    if project_id is not None:
        query = query.where(rows.c.project_id == project_id)
    return int(session.scalar(query) or 0)


def remove_secret(session: WriteSession, secret_id: SecretId) -> None:
    """Delete a secret."""
    session.execute(delete(rows).where(rows.c.id == secret_id))


def _secret(row: Any) -> Secret:
    return Secret(
        id=SecretId(row["id"]),
        tenant_id=TenantId(row["tenant_id"]),
        project_id=ProjectId(row["project_id"]),
        name=row["name"],
        value_version=row["value_version"],
        created_by=row["created_by"],
        created_at=row["created_at"],
        rotated_at=row["rotated_at"],
        version=row["version"],
    )
