"""HTTP of secrets: values go in and never come out."""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any, cast

from fastapi import APIRouter
from pydantic import SecretStr

from gpuplane.core.ids import ProjectId, SecretId
from gpuplane.db.calls import CallDep
from gpuplane.domains.events.service import rewrap_webhooks
from gpuplane.domains.secrets import service
from gpuplane.domains.secrets.schemas import RotationOut, SecretIn, SecretOut, SecretValueIn
from gpuplane.kit.access import Permission, requires
from gpuplane.kit.bodies import Cursor, Done, Limit, PageOut, page_request
from gpuplane.kit.errors import Unprocessable
from gpuplane.kit.ids import new_id
from gpuplane.kit.pagination import DEFAULT_LIMIT

router = APIRouter(tags=["secrets"])


@router.post("/secrets", status_code=201)
@requires(Permission.SECRET_WRITE)
async def create_secret(call: CallDep, body: SecretIn) -> SecretOut:
    """Create a secret in a project; its value is never shown again."""
    project_id = ProjectId(body.project_id or call.principal.project_id)
    secret = service.Secret(
        id=SecretId(new_id()),
        tenant_id=call.principal.tenant_id,
        project_id=project_id,
        name=body.name,
        value_version=1,
        created_by=call.principal.name,
        created_at=call.now,
        rotated_at=call.now,
        version=1,
    )
    sealed = await call.seal(_plain(body.value), service.context_of(secret.id, 1))
    return await call.write(
        "secrets.create_secret",
        lambda s: service.create_secret(s, call.principal, secret, sealed, call.now),
        _secret_out,
        201,
    )


@router.get("/secrets")
@requires(Permission.SECRET_READ)
async def list_secrets(
    call: CallDep,
    project_id: ProjectId | None = None,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> PageOut[SecretOut]:
    """List secrets by name, without their values."""
    page = page_request(limit, cursor, sort=service.SORT_NAME)
    found = await call.read(lambda s: service.list_secrets(s, call.principal, project_id, page))
    return PageOut.of(found, _secret_out)


@router.get("/secrets/{secret_id}")
@requires(Permission.SECRET_READ)
async def get_secret(call: CallDep, secret_id: SecretId) -> SecretOut:
    """Return one secret without its value."""
    permission = Permission.SECRET_READ
    return _secret_out(
        await call.read(lambda s: service.get_secret(s, call.principal, secret_id, permission))
    )


@router.put("/secrets/{secret_id}")
@requires(Permission.SECRET_WRITE)
async def rotate_secret(call: CallDep, secret_id: SecretId, body: SecretValueIn) -> SecretOut:
    """Replace the value; attempts that start from now on get the new one."""
    permission = Permission.SECRET_WRITE
    known = await call.read(lambda s: service.get_secret(s, call.principal, secret_id, permission))
    value_version = known.value_version + 1
    context = service.context_of(secret_id, value_version)
    sealed = await call.seal(_plain(body.value), context)
    return await call.write(
        "secrets.rotate_secret",
        lambda s: service.rotate_secret(
            s, call.principal, secret_id, sealed, value_version, call.now
        ),
        _secret_out,
    )


@router.delete("/secrets/{secret_id}")
@requires(Permission.SECRET_WRITE)
async def delete_secret(call: CallDep, secret_id: SecretId) -> Done:
    """Delete a secret; jobs that ask for it do not start any more."""
    return await call.write(
        "secrets.delete_secret",
        lambda s: service.delete_secret(s, call.principal, secret_id, call.now),
        lambda _: Done(),
    )


@router.post("/sealing-keys/rotations", status_code=201)
@requires(Permission.TENANT_MANAGE)
async def rotate_sealing_key(call: CallDep) -> RotationOut:
    """Make a new sealing key and seal by it whatever lies sealed, while everything goes on."""
    key_id = await asyncio.to_thread(call.sealing.rotate)
    count = await call.database.write(
        "events.rewrap_webhooks", lambda s: rewrap_webhooks(s, call.sealing)
    )
    elsewhere = cast("Sequence[service.Rewrap]", call.ports.get("rewraps", ()))
    for rewrap in (service.rewrap, *elsewhere):
        after: Any = None
        while True:
            batch = partial(rewrap, sealing=call.sealing, after=after)
            changed, after = await call.database.write("secrets.rewrap", batch)
            count += changed
            if after is None:
                break
    for reseal in cast("Sequence[service.Reseal]", call.ports.get("reseals", ())):
        count += await asyncio.to_thread(reseal, call.sealing)
    return await call.write(
        "secrets.rotate_sealing_key",
        lambda s: service.note_rotation(s, call.principal, key_id, count, call.now),
        lambda made: RotationOut(key_id=made[0], rewrapped=made[1]),
        201,
    )


def _plain(value: SecretStr) -> bytes:
    plain = value.get_secret_value().encode()
    if len(plain) > service.MAX_VALUE_BYTES:
        raise Unprocessable(
            f"A secret is at most {service.MAX_VALUE_BYTES} bytes long.",
            field="value",
            fix="Put a file of that size into an artifact.",
        )
    return plain


def _secret_out(secret: service.Secret) -> SecretOut:
    return SecretOut(
        id=secret.id,
        tenant_id=secret.tenant_id,
        project_id=secret.project_id,
        name=secret.name,
        value_version=secret.value_version,
        created_by=secret.created_by,
        created_at=secret.created_at,
        rotated_at=secret.rotated_at,
    )
