"""HTTP of tenants, projects, users, tokens, memberships and affinities."""

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from fastapi import APIRouter

from gpuplane.core.ids import ClusterId, ProjectId, TenantId, TokenId, UserId
from gpuplane.db.calls import Call, CallDep
from gpuplane.db.sessions import WriteSession
from gpuplane.domains.identity import service
from gpuplane.domains.identity.schemas import (
    AffinitiesIn,
    AffinitiesOut,
    DisplayNameIn,
    MembershipIn,
    MembershipOut,
    ProjectIn,
    ProjectOut,
    TenantIn,
    TenantOut,
    TokenCreatedOut,
    TokenIn,
    TokenOut,
    UserChangeIn,
    UserIn,
    UserOut,
)
from gpuplane.kit.access import Permission, Role, requires
from gpuplane.kit.bodies import Cursor, Done, Limit, PageOut, page_request
from gpuplane.kit.errors import Unprocessable
from gpuplane.kit.ids import new_id
from gpuplane.kit.pagination import DEFAULT_LIMIT

router = APIRouter(tags=["identity"])

TOKEN_BYTES = 32
HINT_CHARS = 8


# -- tenants ----------------------------------------------------------------------------------


@router.post("/tenants", status_code=201)
@requires(Permission.TENANT_MANAGE)
async def create_tenant(call: CallDep, body: TenantIn) -> TenantOut:
    """Create a tenant with a project `default`."""
    return await call.write(
        "identity.create_tenant",
        lambda s: service.create_tenant(
            s, call.principal, TenantId(new_id()), body.name, body.display_name, call.now
        ),
        _tenant_out,
        201,
    )


@router.get("/tenants")
@requires(Permission.MEMBER_READ)
async def list_tenants(
    call: CallDep, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None
) -> PageOut[TenantOut]:
    """List the tenants the caller sees, by name."""
    page = page_request(limit, cursor, sort=service.SORT_NAME)
    found = await call.read(lambda s: service.list_tenants(s, call.principal, page))
    return PageOut.of(found, _tenant_out)


@router.get("/tenants/{tenant_id}")
@requires(Permission.MEMBER_READ)
async def get_tenant(call: CallDep, tenant_id: TenantId) -> TenantOut:
    """Return one tenant."""
    return _tenant_out(await call.read(lambda s: service.get_tenant(s, call.principal, tenant_id)))


@router.patch("/tenants/{tenant_id}")
@requires(Permission.TENANT_MANAGE)
async def change_tenant(call: CallDep, tenant_id: TenantId, body: DisplayNameIn) -> TenantOut:
    """Change what people call a tenant."""
    return await call.write(
        "identity.change_tenant",
        lambda s: service.change_tenant(s, call.principal, tenant_id, body.display_name, call.now),
        _tenant_out,
    )


@router.delete("/tenants/{tenant_id}")
@requires(Permission.TENANT_MANAGE)
async def delete_tenant(call: CallDep, tenant_id: TenantId) -> Done:
    """Delete a tenant in which nothing lies any more."""
    return await call.write(
        "identity.delete_tenant",
        lambda s: service.delete_tenant(s, call.principal, tenant_id, _in_use(call), call.now),
        lambda _: Done(),
    )


# -- projects ---------------------------------------------------------------------------------


@router.post("/projects", status_code=201)
@requires(Permission.MEMBER_MANAGE)
async def create_project(call: CallDep, body: ProjectIn) -> ProjectOut:
    """Create a project in a tenant."""
    project = service.Project(
        id=ProjectId(new_id()),
        tenant_id=TenantId(body.tenant_id or call.principal.tenant_id),
        name=body.name,
        display_name=body.display_name,
        created_at=call.now,
        version=1,
    )
    return await call.write(
        "identity.create_project",
        lambda s: service.create_project(s, call.principal, project, call.now),
        _project_out,
        201,
    )


@router.get("/projects")
@requires(Permission.MEMBER_READ)
async def list_projects(
    call: CallDep,
    tenant_id: TenantId | None = None,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> PageOut[ProjectOut]:
    """List the projects the caller sees, by name."""
    page = page_request(limit, cursor, sort=service.SORT_NAME)
    found = await call.read(lambda s: service.list_projects(s, call.principal, tenant_id, page))
    return PageOut.of(found, _project_out)


@router.get("/projects/{project_id}")
@requires(Permission.MEMBER_READ)
async def get_project(call: CallDep, project_id: ProjectId) -> ProjectOut:
    """Return one project."""
    return _project_out(
        await call.read(lambda s: service.get_project(s, call.principal, project_id))
    )


@router.patch("/projects/{project_id}")
@requires(Permission.MEMBER_MANAGE)
async def change_project(call: CallDep, project_id: ProjectId, body: DisplayNameIn) -> ProjectOut:
    """Change what people call a project."""
    return await call.write(
        "identity.change_project",
        lambda s: service.change_project(
            s, call.principal, project_id, body.display_name, call.now
        ),
        _project_out,
    )


@router.delete("/projects/{project_id}")
@requires(Permission.MEMBER_MANAGE)
async def delete_project(call: CallDep, project_id: ProjectId) -> Done:
    """Delete a project in which nothing lies any more."""
    return await call.write(
        "identity.delete_project",
        lambda s: service.delete_project(s, call.principal, project_id, _in_use(call), call.now),
        lambda _: Done(),
    )


@router.get("/projects/{project_id}/clusters")
@requires(Permission.MEMBER_READ)
async def list_affinities(call: CallDep, project_id: ProjectId) -> AffinitiesOut:
    """Return which clusters a project must, would rather, or must not use."""
    found = await call.read(lambda s: service.list_affinities(s, call.principal, project_id))
    return _affinities_out(project_id, found)


@router.put("/projects/{project_id}/clusters")
@requires(Permission.CLUSTER_MANAGE)
async def set_affinities(call: CallDep, project_id: ProjectId, body: AffinitiesIn) -> AffinitiesOut:
    """Replace how a project stands to clusters."""
    wanted = _affinities(project_id, body)
    return await call.write(
        "identity.set_affinities",
        lambda s: service.set_affinities(s, call.principal, project_id, wanted, call.now),
        lambda found: _affinities_out(project_id, found),
    )


# -- users and memberships --------------------------------------------------------------------


@router.post("/users", status_code=201)
@requires(Permission.MEMBER_MANAGE)
async def create_user(call: CallDep, body: UserIn) -> UserOut:
    """Create a user; it holds no role until it is given one."""
    named_tenant = None if body.tenant_id is None else TenantId(body.tenant_id)
    named_project = None if body.project_id is None else ProjectId(body.project_id)

    def create(session: WriteSession) -> service.User:
        home = service.find_home(session, call.principal, named_tenant, named_project)
        user = service.User(
            id=UserId(new_id()),
            name=body.name,
            email=body.email,
            display_name=body.display_name,
            tenant_id=home[0],
            project_id=home[1],
            disabled=False,
            created_at=call.now,
            version=1,
        )
        return service.create_user(session, call.principal, user, call.now)

    return await call.write("identity.create_user", create, _user_out, 201)


@router.get("/users")
@requires(Permission.MEMBER_READ)
async def list_users(
    call: CallDep, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None
) -> PageOut[UserOut]:
    """List the users of the caller's tenants, by name."""
    page = page_request(limit, cursor, sort=service.SORT_NAME)
    found = await call.read(lambda s: service.list_users(s, call.principal, page))
    return PageOut.of(found, _user_out)


@router.get("/users/{user_id}")
@requires(Permission.MEMBER_READ)
async def get_user(call: CallDep, user_id: UserId) -> UserOut:
    """Return one user."""
    return _user_out(await call.read(lambda s: service.get_user(s, call.principal, user_id)))


@router.patch("/users/{user_id}")
@requires(Permission.MEMBER_MANAGE)
async def change_user(call: CallDep, user_id: UserId, body: UserChangeIn) -> UserOut:
    """Change a user; a disabled one is nobody to this server."""
    wanted = body.model_dump(exclude_none=True)
    return await call.write(
        "identity.change_user",
        lambda s: service.change_user(
            s,
            call.principal,
            replace(service.get_user(s, call.principal, user_id), **wanted),
            call.now,
        ),
        _user_out,
    )


@router.delete("/users/{user_id}")
@requires(Permission.MEMBER_MANAGE)
async def delete_user(call: CallDep, user_id: UserId) -> Done:
    """Delete a user with its tokens and roles."""
    return await call.write(
        "identity.delete_user",
        lambda s: service.delete_user(s, call.principal, user_id, call.now),
        lambda _: Done(),
    )


@router.get("/tenants/{tenant_id}/memberships")
@requires(Permission.MEMBER_READ)
async def list_memberships(
    call: CallDep,
    tenant_id: TenantId,
    project_id: ProjectId | None = None,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> PageOut[MembershipOut]:
    """List the roles held in a tenant and its projects, or in one project."""
    page = page_request(limit, cursor, sort=service.SORT_ID)
    found = await call.read(
        lambda s: service.list_memberships(s, call.principal, tenant_id, project_id, page)
    )
    return PageOut.of(found, _membership_out)


@router.put("/memberships")
@requires(Permission.MEMBER_MANAGE)
async def set_membership(call: CallDep, body: MembershipIn) -> MembershipOut:
    """Give a user a role in one place, replacing the one it holds there."""
    membership = service.Membership(
        user_id=UserId(body.user_id),
        tenant_id=None if body.tenant_id is None else TenantId(body.tenant_id),
        project_id=None if body.project_id is None else ProjectId(body.project_id),
        role=body.role.value,
        extra=tuple(sorted({one.value for one in body.extra})),
        created_at=call.now,
    )
    return await call.write(
        "identity.set_membership",
        lambda s: service.set_membership(s, call.principal, membership, call.now),
        _membership_out,
    )


@router.delete("/users/{user_id}/memberships")
@requires(Permission.MEMBER_MANAGE)
async def delete_membership(
    call: CallDep,
    user_id: UserId,
    tenant_id: TenantId | None = None,
    project_id: ProjectId | None = None,
) -> Done:
    """Take a role away: on a project, a tenant, or (with neither) on the platform."""
    return await call.write(
        "identity.delete_membership",
        lambda s: service.delete_membership(
            s, call.principal, user_id, tenant_id, project_id, call.now
        ),
        lambda _: Done(),
    )


# -- tokens -----------------------------------------------------------------------------------


@router.post("/tokens", status_code=201)
@requires(Permission.TOKEN_MANAGE)
async def create_token(call: CallDep, body: TokenIn) -> TokenCreatedOut:
    """Create a token and show it this once."""
    if body.expires_at is not None and body.expires_at <= call.now:
        raise Unprocessable(
            "The token would have expired already.",
            field="expires_at",
            fix="Name an instant in the future.",
        )
    plain = "gp_" + secrets.token_urlsafe(TOKEN_BYTES)
    scopes = None if body.scopes is None else tuple(sorted({one.value for one in body.scopes}))
    token = service.Token(
        id=TokenId(new_id()),
        user_id=UserId(body.user_id or call.principal.user_id),
        name=body.name,
        hint=plain[:HINT_CHARS],
        scopes=scopes,
        created_at=call.now,
        expires_at=body.expires_at,
        revoked_at=None,
        last_used_at=None,
    )
    digest = hashlib.sha256(plain.encode()).hexdigest()
    return await call.write(
        "identity.create_token",
        lambda s: service.create_token(s, call.principal, token, digest, call.now),
        lambda made: TokenCreatedOut(
            id=made.id,
            token=plain,
            name=made.name,
            scopes=None if made.scopes is None else list(made.scopes),
            expires_at=made.expires_at,
        ),
        201,
    )


@router.get("/tokens")
@requires(Permission.TOKEN_MANAGE)
async def list_tokens(
    call: CallDep,
    user_id: UserId | None = None,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> PageOut[TokenOut]:
    """List a user's tokens, the caller's own unless another user is named."""
    whose = user_id or call.principal.user_id
    page = page_request(limit, cursor, sort=service.SORT_ID)
    found = await call.read(lambda s: service.list_tokens(s, call.principal, whose, page))
    return PageOut.of(found, _token_out)


@router.delete("/tokens/{token_id}")
@requires(Permission.TOKEN_MANAGE)
async def revoke_token(call: CallDep, token_id: TokenId) -> TokenOut:
    """Shut a token out, at once on this server and within five seconds on others."""
    return await call.write(
        "identity.revoke_token",
        lambda s: service.revoke_token(s, call.principal, token_id, call.now),
        _token_out,
    )


# -- shapes -----------------------------------------------------------------------------------


def _in_use(call: Call) -> Sequence[service.InUse]:
    return cast("Sequence[service.InUse]", call.ports.get("in_use", ()))


def _tenant_out(tenant: service.Tenant) -> TenantOut:
    return TenantOut(
        id=tenant.id,
        name=tenant.name,
        display_name=tenant.display_name,
        created_at=tenant.created_at,
    )


def _project_out(project: service.Project) -> ProjectOut:
    return ProjectOut(
        id=project.id,
        tenant_id=project.tenant_id,
        name=project.name,
        display_name=project.display_name,
        created_at=project.created_at,
    )


def _user_out(user: service.User) -> UserOut:
    return UserOut(
        id=user.id,
        name=user.name,
        email=user.email,
        display_name=user.display_name,
        tenant_id=user.tenant_id,
        project_id=user.project_id,
        disabled=user.disabled,
        created_at=user.created_at,
    )


def _membership_out(one: service.Membership) -> MembershipOut:
    return MembershipOut(
        user_id=one.user_id,
        role=Role(one.role),
        tenant_id=one.tenant_id,
        project_id=one.project_id,
        extra=list(one.extra),
        created_at=one.created_at,
    )


def _token_out(token: service.Token) -> TokenOut:
    return TokenOut(
        id=token.id,
        user_id=token.user_id,
        name=token.name,
        hint=token.hint,
        scopes=None if token.scopes is None else list(token.scopes),
        created_at=token.created_at,
        expires_at=token.expires_at,
        revoked_at=token.revoked_at,
        last_used_at=token.last_used_at,
    )


def _affinities(project_id: ProjectId, body: AffinitiesIn) -> list[service.Affinity]:
    found: dict[ClusterId, service.Affinity] = {}
    for kind in service.AffinityKind:
        for cluster_id in map(ClusterId, getattr(body, kind.value)):
            if cluster_id in found and found[cluster_id].kind is not kind:
                raise Unprocessable(
                    f"Cluster {cluster_id} is named as {found[cluster_id].kind} and as {kind}.",
                    field=kind.value,
                    fix="Name each cluster once.",
                )
            found[cluster_id] = service.Affinity(project_id, cluster_id, kind)
    return list(found.values())


def _affinities_out(project_id: ProjectId, found: Sequence[service.Affinity]) -> AffinitiesOut:
    def of(kind: service.AffinityKind) -> list[ClusterId]:
        return [one.cluster_id for one in found if one.kind is kind]

    return AffinitiesOut(
        project_id=project_id,
        required=list(of(service.AffinityKind.REQUIRED)),
        preferred=list(of(service.AffinityKind.PREFERRED)),
        excluded=list(of(service.AffinityKind.EXCLUDED)),
    )
