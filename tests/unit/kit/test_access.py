"""A grant reaches its own place alone, and scopes only ever take away."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.core.ids import ProjectId, TenantId, UserId
from gpuplane.kit.access import (
    ALWAYS,
    PLATFORM_PERMISSIONS,
    Grant,
    Permission,
    Principal,
    Role,
)
from gpuplane.kit.errors import Forbidden, NotFound

TENANTS = [TenantId(UUID(int=number)) for number in (1, 2)]
PROJECTS = [ProjectId(UUID(int=number)) for number in (11, 12)]


def a_principal(*grants: Grant, scopes: frozenset[Permission] | None = None) -> Principal:
    return Principal(UserId(UUID(int=9)), "ada", TENANTS[0], PROJECTS[0], grants, scopes=scopes)


grants = st.builds(
    Grant,
    role=st.sampled_from(Role),
    tenant_id=st.sampled_from([None, *TENANTS]),
    project_id=st.sampled_from([None, *PROJECTS]),
    extra=st.frozensets(st.sampled_from(Permission), max_size=3),
).filter(lambda grant: grant.project_id is None or grant.tenant_id is not None)
scopes = st.none() | st.frozensets(st.sampled_from(Permission), max_size=6)


@given(st.lists(grants, max_size=4), scopes, st.sampled_from(Permission))
def test_scopes_only_take_away(
    held: list[Grant], narrowed: frozenset[Permission] | None, permission: Permission
) -> None:
    wide, narrow = a_principal(*held), a_principal(*held, scopes=narrowed)
    for tenant_id in (None, *TENANTS):
        for project_id in (None, *PROJECTS):
            if narrow.may(permission, tenant_id, project_id):
                assert wide.may(permission, tenant_id, project_id)
                assert permission in ALWAYS or narrowed is None or permission in narrowed


@given(st.lists(grants, max_size=4), st.sampled_from(Permission))
def test_what_is_held_somewhere_is_held_anywhere(held: list[Grant], permission: Permission) -> None:
    principal = a_principal(*held)
    places = [(t, p) for t in (None, *TENANTS) for p in (None, *PROJECTS)]
    somewhere = any(principal.may(permission, *place) for place in places)
    assert principal.may_anywhere(permission) == somewhere


@given(st.lists(grants, max_size=4), st.sampled_from(Permission))
def test_rows_that_are_listed_are_rows_that_may_be_read(
    held: list[Grant], permission: Permission
) -> None:
    principal = a_principal(*held)
    rows = principal.rows(permission)
    for tenant_id in TENANTS:
        for project_id in PROJECTS:
            listed = (
                rows.everything or tenant_id in rows.tenant_ids or project_id in rows.project_ids
            )
            alone = [g for g in held if g.project_id == project_id and g.tenant_id != tenant_id]
            if permission not in ALWAYS and not alone:  # a project lies in one tenant
                assert listed == principal.may(permission, tenant_id, project_id)


@pytest.mark.parametrize("role", Role)
def test_no_role_on_a_tenant_reaches_what_belongs_to_the_platform(role: Role) -> None:
    principal = a_principal(Grant(role, TENANTS[0], None, PLATFORM_PERMISSIONS))
    assert not any(principal.may(one, TENANTS[0]) for one in PLATFORM_PERMISSIONS)


def test_a_foreign_thing_is_not_found_and_a_near_one_is_forbidden() -> None:
    principal = a_principal(Grant(Role.VIEWER, TENANTS[0]))
    with pytest.raises(NotFound):
        principal.require(Permission.JOB_READ, TENANTS[1], what="job")
    with pytest.raises(Forbidden, match="job:write is missing"):
        principal.require(Permission.JOB_WRITE, TENANTS[0], what="job")
    principal.require(Permission.JOB_READ, TENANTS[0], what="job")
