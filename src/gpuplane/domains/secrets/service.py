"""Use cases of secrets: made, rotated, revealed to jobs alone, rewrapped after a key rotation.

Values come in and lie sealed; whoever opens one outside `reveal_for_job` is wrong. Sealing takes
the caller's time before the transaction, so a first key being made never holds the writer.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any, Protocol
from uuid import UUID

from gpuplane.core.ids import JobId, ProjectId, SecretId, TenantId
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.domains.events.service import NewEvent, record, record_many
from gpuplane.domains.identity.service import resolve_project
from gpuplane.domains.secrets import repository
from gpuplane.domains.secrets.errors import SecretNotFound, StaleSecret
from gpuplane.domains.secrets.repository import SORT_NAME
from gpuplane.domains.secrets.rules import MAX_VALUE_BYTES, Secret, context_of
from gpuplane.kit.access import Permission, Principal
from gpuplane.kit.pagination import Page, PageRequest
from gpuplane.kit.sealing import SealingKeys

__all__ = ["MAX_VALUE_BYTES", "SORT_NAME", "Reseal", "Revealed", "Rewrap", "Secret", "context_of"]

REWRAP_BATCH = 200


class Rewrap(Protocol):
    """How another domain seals what it keeps anew: a batch at a time, from where one ended.

    The composition root offers those of the domains above as the port `rewraps`.
    """

    def __call__(self, session: WriteSession, sealing: SealingKeys, after: Any) -> tuple[int, Any]:
        """Return how many were sealed anew, and where to go on, or None at the end."""
        ...


Reseal = Callable[[SealingKeys], int]
"""Seals anew what lies in files and returns how much; the port `reseals` has those there are."""


@dataclass(frozen=True, slots=True)
class Revealed:
    """A secret's value on its way into a job; `repr` does not show it."""

    name: str
    value: str

    def __repr__(self) -> str:
        return f"Revealed({self.name!r}, …)"


def create_secret(
    session: WriteSession, principal: Principal, secret: Secret, sealed: bytes, now: int
) -> Secret:
    """Store a secret in a project, sealed for `context_of(secret.id, 1)`.

    Its `tenant_id` is taken from the project.
    """
    project = resolve_project(session, principal, secret.project_id, Permission.SECRET_WRITE)
    secret = replace(secret, tenant_id=project.tenant_id)
    repository.store_secret(session, secret, sealed)
    _announce(session, "secret.created", secret, principal.name, now)
    return secret


def get_secret(
    session: ReadSession, principal: Principal, secret_id: SecretId, permission: Permission
) -> Secret:
    """Return a secret without its value, if the caller holds the permission in its project."""
    secret = repository.find_secret(session, secret_id)
    if secret is None or not principal.sees_tenant(secret.tenant_id):
        raise SecretNotFound("There is no secret of that id.", fix="List the secrets.")
    principal.require(permission, secret.tenant_id, secret.project_id, what="secret")
    return secret


def list_secrets(
    session: ReadSession,
    principal: Principal,
    project_id: ProjectId | None,
    page: PageRequest,
) -> Page[Secret]:
    """Return one page of the secrets the caller may know of, by name."""
    scope = principal.rows(Permission.SECRET_READ)
    return repository.list_secrets(session, scope, project_id, page)


def rotate_secret(
    session: WriteSession,
    principal: Principal,
    secret_id: SecretId,
    sealed: bytes,
    value_version: int,
    now: int,
) -> Secret:
    """Replace a value by one sealed for `context_of(secret_id, value_version)`.

    Raises:
        StaleSecret: If the secret has been rotated since it was read for sealing.
    """
    secret = get_secret(session, principal, secret_id, Permission.SECRET_WRITE)
    stale = secret.value_version + 1 != value_version
    if stale or not repository.store_value(session, secret, sealed, value_version, now):
        raise StaleSecret("The secret was rotated by somebody else.", fix="Try again.")
    rotated = replace(
        secret, value_version=value_version, rotated_at=now, version=secret.version + 1
    )
    _announce(session, "secret.rotated", rotated, principal.name, now)
    return rotated


def delete_secret(
    session: WriteSession, principal: Principal, secret_id: SecretId, now: int
) -> None:
    """Delete a secret; jobs that ask for it from now on do not start."""
    secret = get_secret(session, principal, secret_id, Permission.SECRET_WRITE)
    repository.remove_secret(session, secret.id)
    _announce(session, "secret.deleted", secret, principal.name, now)


def find_use(session: ReadSession, tenant_id: TenantId, project_id: ProjectId | None) -> str | None:
    """Return a sentence about the secrets that lie there, or None when there are none."""
    count = repository.count_secrets(session, tenant_id, project_id)
    if not count:
        return None
    where = "tenant" if project_id is None else "project"
    return f"The {where} still has {count} {'secret' if count == 1 else 'secrets'}."


def missing_secrets(
    session: ReadSession, project_id: ProjectId, names: Collection[str]
) -> list[str]:
    """Return which of the names are no secrets of the project, for the check at submit."""
    return sorted(set(names) - set(repository.secrets_named(session, project_id, names)))


def reveal_for_job(
    session: WriteSession,
    sealing: SealingKeys,
    job_id: JobId,
    project_id: ProjectId,
    names: Collection[str],
    accessor: str,
    now: int,
) -> dict[str, Revealed]:
    """Return the newest values a job refers to; each access is an audited event.

    Args:
        session: The transaction of the start, so that no value leaves without its trace.
        sealing: Opens the values.
        job_id: Who gets them.
        project_id: The job's project; secrets of others do not exist for it.
        names: Names of secrets.
        accessor: Who starts the job: a loop and its process.
        now: The current instant.

    Raises:
        SecretNotFound: If the project has no secret of a name.
    """
    return _reveal(session, sealing, ("job_id", job_id), project_id, names, accessor, now)


def reveal_for_step(
    session: WriteSession,
    sealing: SealingKeys,
    step_id: UUID,
    project_id: ProjectId,
    names: Collection[str],
    accessor: str,
    now: int,
) -> dict[str, Revealed]:
    """Return the newest values a step of a run refers to; each access is an audited event.

    Raises:
        SecretNotFound: If the project has no secret of a name.
    """
    return _reveal(session, sealing, ("step_id", step_id), project_id, names, accessor, now)


def _reveal(
    session: WriteSession,
    sealing: SealingKeys,
    receiver: tuple[str, UUID],
    project_id: ProjectId,
    names: Collection[str],
    accessor: str,
    now: int,
) -> dict[str, Revealed]:
    found = repository.secrets_named(session, project_id, names)
    missing = sorted(set(names) - set(found))
    if missing:
        raise SecretNotFound(
            f"The project has no secret {missing[0]!r}.",
            field="secrets",
            fix="Create it, or remove the reference.",
        )
    record_many(
        session,
        [
            NewEvent(
                kind="secret.accessed",
                at=now,
                subject_kind="secret",
                subject_id=secret.id,
                tenant_id=secret.tenant_id,
                project_id=secret.project_id,
                actor=accessor,
                data={
                    receiver[0]: str(receiver[1]),
                    "secret_name": name,
                    "value_version": secret.value_version,
                },
                audit=True,
            )
            for name, (secret, _) in sorted(found.items())
        ],
    )
    return {
        name: Revealed(
            name, sealing.open(sealed, context_of(secret.id, secret.value_version)).decode()
        )
        for name, (secret, sealed) in found.items()
    }


def rewrap(
    session: WriteSession, sealing: SealingKeys, after: SecretId | None = None
) -> tuple[int, SecretId | None]:
    """Seal a batch of values by the current key.

    Args:
        session: The transaction.
        sealing: The keys.
        after: The last secret of the batch before.

    Returns:
        How many values were sealed anew, and where to go on, or None at the end.
    """
    batch = repository.sealed_after(session, after, REWRAP_BATCH)
    count = 0
    for secret, sealed in batch:
        fresh = sealing.rewrap(sealed, context_of(secret.id, secret.value_version))
        if fresh != sealed and repository.store_rewrapped(session, secret, fresh):
            count += 1
    return count, batch[-1][0].id if len(batch) == REWRAP_BATCH else None


def note_rotation(
    session: WriteSession, principal: Principal, key_id: str, count: int, now: int
) -> tuple[str, int]:
    """Leave the trace of a key rotation and return what it did."""
    principal.require(Permission.TENANT_MANAGE, what="key")
    record(
        session,
        NewEvent(
            kind="sealing_key.rotated",
            at=now,
            subject_kind="sealing_key",
            subject_id=key_id,
            actor=principal.name,
            data={"rewrapped": count},
            audit=True,
        ),
    )
    return key_id, count


def _announce(session: WriteSession, kind: str, secret: Secret, actor: str, now: int) -> None:
    record(
        session,
        NewEvent(
            kind=kind,
            at=now,
            subject_kind="secret",
            subject_id=secret.id,
            tenant_id=secret.tenant_id,
            project_id=secret.project_id,
            actor=actor,
            data={"name": secret.name, "value_version": secret.value_version},
            audit=True,
        ),
    )
