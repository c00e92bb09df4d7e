"""The life of tenants, projects, users and rights, on both databases."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest

from gpuplane.core.ids import ClusterId, ProjectId, TenantId
from gpuplane.db.sessions import ReadSession
from gpuplane.domains.events.service import EventFilter, list_events
from gpuplane.domains.identity import service as identity
from gpuplane.kit.access import Permission, Role
from gpuplane.kit.errors import NotFound
from gpuplane.kit.pagination import PageRequest
from gpuplane.kit.sealing import SealingKeys
from tests.http_app import Server, running_server


async def test_the_first_start_may_happen_twice(any_server: Server) -> None:
    again = await any_server.database.write(
        "tests.again", lambda s: identity.ensure_defaults(s, 1, "0" * 64)
    )
    assert again.user_id == any_server.admin.user_id
    assert again.tenant_id == any_server.admin.tenant_id
    users = (await any_server.http.get("/api/v1/users")).json()["items"]
    assert [user["name"] for user in users] == ["admin"]


async def test_a_tenant_comes_with_a_project_and_a_name_of_its_own(any_server: Server) -> None:
    made = await any_server.http.post("/api/v1/tenants", json={"name": "acme"})
    assert made.status_code == 201
    tenant_id = made.json()["id"]
    projects = await any_server.http.get(f"/api/v1/projects?tenant_id={tenant_id}")
    assert [project["name"] for project in projects.json()["items"]] == ["default"]
    taken = await any_server.http.post("/api/v1/tenants", json={"name": "acme"})
    assert (taken.status_code, taken.json()["code"]) == (409, "name_taken")


async def test_lists_are_paged_by_name_without_gap_or_repetition(any_server: Server) -> None:
    for name in ("cc", "aa", "bb", "dd"):
        await any_server.make_tenant(name)
    seen, cursor = [], ""
    while True:
        page = (await any_server.http.get(f"/api/v1/tenants?limit=2{cursor}")).json()
        seen += [tenant["name"] for tenant in page["items"]]
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert seen == ["aa", "bb", "cc", "dd", "default"]


async def test_a_tenant_in_which_something_runs_is_not_deleted(
    sqlite_url: str, sealing_keys: SealingKeys
) -> None:
    running = ["3 jobs are running."]

    def in_use(_: ReadSession, tenant: TenantId, project: ProjectId | None) -> str | None:
        return running[0] if running else None

    async with running_server(sqlite_url, sealing_keys, ports={"in_use": (in_use,)}) as server:
        tenant_id, _ = await server.make_tenant("acme")
        refused = await server.http.delete(f"/api/v1/tenants/{tenant_id}")
        assert (refused.status_code, refused.json()["detail"]) == (409, "3 jobs are running.")
        running.clear()
        assert (await server.http.delete(f"/api/v1/tenants/{tenant_id}")).status_code == 200


async def test_a_user_is_at_home_where_the_tenant_or_the_project_says(any_server: Server) -> None:
    tenant_id, project_id = await any_server.make_tenant("acme")
    of_tenant = {"name": "ada", "tenant_id": str(tenant_id)}
    answer = await any_server.http.post("/api/v1/users", json=of_tenant)
    assert answer.json()["project_id"] == str(project_id)
    of_project = {"name": "ben", "project_id": str(project_id)}
    answer = await any_server.http.post("/api/v1/users", json=of_project)
    assert answer.json()["tenant_id"] == str(tenant_id)
    of_neither = {"name": "cay", "tenant_id": str(any_server.admin.tenant_id)} | {
        "project_id": str(project_id)
    }
    refused = await any_server.http.post("/api/v1/users", json=of_neither)
    assert (refused.status_code, refused.json()["code"]) == (422, "wrong_project")


async def test_a_tenant_with_users_or_projects_is_not_deleted(any_server: Server) -> None:
    tenant_id, project_id = await any_server.make_tenant("acme")
    user_id, _ = await any_server.make_user("ada", Role.MEMBER, tenant_id, project_id)
    refused = await any_server.http.delete(f"/api/v1/tenants/{tenant_id}")
    assert (refused.status_code, refused.json()["code"]) == (409, "still_used")
    await any_server.http.delete(f"/api/v1/users/{user_id}")
    extra = await any_server.make_project(tenant_id, "extra")
    refused = await any_server.http.delete(f"/api/v1/tenants/{tenant_id}")
    assert refused.json()["detail"] == "The tenant still has projects."
    await any_server.http.delete(f"/api/v1/projects/{extra}")
    assert (await any_server.http.delete(f"/api/v1/tenants/{tenant_id}")).status_code == 200
    assert (await any_server.http.get(f"/api/v1/tenants/{tenant_id}")).status_code == 404


async def test_the_last_admin_of_the_platform_stays(any_server: Server) -> None:
    admin = any_server.admin.user_id
    for answer in (
        await any_server.http.delete(f"/api/v1/users/{admin}"),
        await any_server.http.patch(f"/api/v1/users/{admin}", json={"disabled": True}),
        await any_server.http.delete(f"/api/v1/users/{admin}/memberships"),
        await any_server.http.put(
            "/api/v1/memberships", json={"user_id": str(admin), "role": "viewer"}
        ),
    ):
        assert (answer.status_code, answer.json()["code"]) == (409, "last_admin")


async def test_a_tenant_admin_rules_its_tenant_and_nothing_else(server: Server) -> None:
    acme, acme_project = await server.make_tenant("acme")
    rival, rival_project = await server.make_tenant("rival")
    ada, _ = await server.make_user("ada", Role.MEMBER, acme, acme_project)
    eve, _ = await server.make_user("eve", Role.MEMBER, rival, rival_project)
    _, token = await server.make_user("boss", Role.ADMIN, acme, acme_project, on="tenant")
    boss = server.client(token)

    made = await boss.post("/api/v1/projects", json={"name": "more", "tenant_id": str(acme)})
    assert made.status_code == 201
    elsewhere = await boss.post("/api/v1/projects", json={"name": "x", "tenant_id": str(rival)})
    assert elsewhere.status_code == 404
    assert (await boss.get(f"/api/v1/users/{eve}")).status_code == 404
    assert (await boss.post("/api/v1/tenants", json={"name": "new"})).status_code == 403
    token_for_ada = await boss.post("/api/v1/tokens", json={"name": "t", "user_id": str(ada)})
    assert token_for_ada.status_code == 201
    names = [user["name"] for user in (await boss.get("/api/v1/users")).json()["items"]]
    assert names == ["ada", "boss"]


async def test_nobody_hands_out_or_takes_more_than_they_hold(server: Server) -> None:
    acme, project = await server.make_tenant("acme")
    boss, token = await server.make_user("boss", Role.ADMIN, acme, project, on="tenant")
    client = server.client(token)
    platform = await client.put("/api/v1/memberships", json={"user_id": str(boss), "role": "admin"})
    assert platform.status_code == 403
    # Someone of the platform who lives in the tenant cannot be taken over through a token.
    lodger, _ = await server.make_user("lodger", Role.ADMIN, acme, project, on="platform")
    stolen = await client.post("/api/v1/tokens", json={"name": "t", "user_id": str(lodger)})
    assert (stolen.status_code, stolen.json()["code"]) == (403, "wider_than_own")
    assert (await client.delete(f"/api/v1/users/{lodger}")).status_code == 403


async def test_a_single_permission_holds_only_where_it_was_given(server: Server) -> None:
    acme, first = await server.make_tenant("acme")
    second = await server.make_project(acme, "second")
    user, token = await server.make_user(
        "ada", Role.MEMBER, acme, first, extra=[Permission.JOB_MANAGE]
    )
    await server.http.put(
        "/api/v1/memberships",
        json={"user_id": str(user), "role": "member", "project_id": str(second)},
    )
    principal = await server.principal_of(token)
    assert principal.may(Permission.JOB_MANAGE, acme, first)
    assert not principal.may(Permission.JOB_MANAGE, acme, second)
    assert principal.may(Permission.JOB_WRITE, acme, second)


async def test_a_role_is_replaced_and_taken_away(any_server: Server) -> None:
    acme, project = await any_server.make_tenant("acme")
    user, token = await any_server.make_user("ada", Role.VIEWER, acme, project)
    body = {"user_id": str(user), "role": "operator", "project_id": str(project)}
    assert (await any_server.http.put("/api/v1/memberships", json=body)).status_code == 200
    listed = await any_server.http.get(f"/api/v1/tenants/{acme}/memberships")
    assert [(one["user_id"], one["role"]) for one in listed.json()["items"]] == [
        (str(user), "operator")
    ]
    path = f"/api/v1/users/{user}/memberships?project_id={project}"
    assert (await any_server.http.delete(path)).status_code == 200
    assert (await any_server.http.delete(path)).json()["code"] == "membership_not_found"
    assert (await any_server.client(token).get("/api/v1/tenants")).status_code == 403


async def test_clusters_of_a_project_are_kept_and_read_by_the_scheduler(
    any_server: Server,
) -> None:
    project = any_server.admin.project_id
    one, two = ClusterId(uuid4()), ClusterId(uuid4())
    body = {"required": [str(one)], "excluded": [str(two)]}
    path = f"/api/v1/projects/{project}/clusters"
    assert (await any_server.http.put(path, json=body)).status_code == 200
    assert (await any_server.http.get(path)).json() == {
        "project_id": str(project),
        "required": [str(one)],
        "preferred": [],
        "excluded": [str(two)],
    }
    choices = await any_server.database.read(identity.load_cluster_choices)
    assert choices[project].allows(one)
    assert not choices[project].allows(two)
    assert not choices[project].allows(ClusterId(uuid4()))
    twice = await any_server.http.put(path, json={"required": [str(one)], "excluded": [str(one)]})
    assert twice.status_code == 422


async def test_changes_of_rights_leave_an_audited_event(any_server: Server) -> None:
    acme, project = await any_server.make_tenant("acme")
    await any_server.make_user("ada", Role.MEMBER, acme, project)
    wanted = EventFilter(tenant_id=acme, audit=True)
    page = await any_server.database.read(
        lambda s: list_events(s, any_server.admin, wanted, PageRequest(), "seq")
    )
    assert [event.kind for event in page.items] == [
        "tenant.created",
        "user.created",
        "membership.set",
        "token.created",
    ]


@pytest.mark.parametrize("changed", ["display_name", "email"])
async def test_two_changes_of_one_user_do_not_overwrite_each_other(
    server: Server, changed: str
) -> None:
    user_id, _ = await server.make_user(
        "ada", None, server.admin.tenant_id, server.admin.project_id
    )
    value = "x@example.com" if changed == "email" else "Ada"
    path = f"/api/v1/users/{user_id}"
    await server.http.patch(path, json={"disabled": True})
    await server.http.patch(path, json={changed: value})
    user = (await server.http.get(path)).json()
    assert (user["disabled"], user[changed]) == (True, value)


async def test_a_project_is_meant_by_id_by_name_or_by_default(server: Server) -> None:
    acme, default = await server.make_tenant("acme")
    named = await server.make_project(acme, "named")
    _, token = await server.make_user("ada", Role.MEMBER, acme, default, on="tenant")
    principal = await server.principal_of(token)

    async def resolve(key: UUID | str | None) -> ProjectId:
        found = await server.database.read(
            lambda s: identity.resolve_project(s, principal, key, Permission.JOB_WRITE)
        )
        return found.id

    assert await resolve(None) == default
    assert await resolve("named") == named
    assert await resolve(named) == named
    with pytest.raises(NotFound, match="no project of that name or id"):
        await resolve(uuid4())
