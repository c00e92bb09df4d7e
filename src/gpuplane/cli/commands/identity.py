"""Tenants, projects, users with their roles, and tokens."""

from typing import Any

import click

from gpuplane.cli.asking import YES, confirm
from gpuplane.cli.client import Client
from gpuplane.cli.lazy import NearestGroup
from gpuplane.cli.lookups import find_exactly, find_one, pick_exactly
from gpuplane.cli.output import Column, Output, note, output_option, show_data, show_one, show_rows
from gpuplane.cli.parameters import INSTANT
from gpuplane.cli.words import age, clock_text

ROLES = click.Choice(["admin", "operator", "member", "viewer"])
NAMED = (
    Column("NAME", lambda row: row["name"]),
    Column("DISPLAY NAME", lambda row: row["display_name"]),
    Column("AGE", lambda row: age(row["created_at"]), right=True),
    Column("ID", lambda row: row["id"], wide=True),
)


def find_tenant(client: Client, key: str) -> dict[str, Any]:
    """Return the tenant that a whole name or an id means."""
    return find_exactly(client, "/tenants", key, "tenant")


def find_project(client: Client, key: str, tenant: str | None = None) -> dict[str, Any]:
    """Return the project that a whole name, `TENANT/NAME` or an id means."""
    owner, slash, name = key.rpartition("/")
    whose = tenant_id(client, owner if slash else tenant)
    return find_exactly(client, "/projects", name, "project", tenant_id=whose)


def _user(client: Client, key: str) -> dict[str, Any]:
    return find_exactly(client, "/users", key, "user")


def tenant_id(client: Client, key: str | None) -> str | None:
    """Return the id of the tenant that a name or an id means."""
    return None if key is None else str(find_tenant(client, key)["id"])


def project_id(client: Client, key: str | None, tenant: str | None = None) -> str | None:
    """Return the id of the project that a name, `TENANT/NAME` or an id means."""
    return None if key is None else str(find_project(client, key, tenant)["id"])


def _fields(row: dict[str, Any]) -> list[tuple[str, object]]:
    return [(name.replace("_", " "), value) for name, value in row.items()]


# -- tenants ----------------------------------------------------------------------------------


@click.group(cls=NearestGroup)
def tenants() -> None:
    """Tenants: who owns projects, users, jobs and bills."""


@tenants.command("ls")
@output_option
def list_tenants(output: Output) -> None:
    """List tenants."""
    show_rows(Client().items("/tenants"), NAMED, output)


@tenants.command("show")
@click.argument("tenant")
@output_option
def show_tenant(tenant: str, output: Output) -> None:
    """Show one tenant."""
    found = find_one(Client(), "/tenants", tenant, "tenant")
    show_one(found, _fields(found), output)


@tenants.command("create")
@click.argument("name")
@click.option("--display-name", default="", help="What people call it.")
@output_option
def create_tenant(name: str, display_name: str, output: Output) -> None:
    """Create a tenant with a project `default`."""
    found = Client().post("/tenants", {"name": name, "display_name": display_name})
    show_one(found, _fields(found), output)


@tenants.command("set")
@click.argument("tenant")
@click.option("--display-name", required=True, help="What people call it from now on.")
def change_tenant(tenant: str, display_name: str) -> None:
    """Change what people call a tenant."""
    client = Client()
    found = client.patch(f"/tenants/{tenant_id(client, tenant)}", {"display_name": display_name})
    click.echo(f"{found['name']} is called {found['display_name']!r}")


@tenants.command("rm")
@click.argument("tenant")
@YES
def delete_tenant(tenant: str, *, yes: bool) -> None:
    """Delete a tenant in which nothing lies any more.

    One that used what is billed stays: bills tell its name.
    """
    client = Client()
    found = find_tenant(client, tenant)
    confirm(f"Delete tenant {found['name']}?", yes=yes)
    client.delete(f"/tenants/{found['id']}")
    click.echo(f"{found['name']} deleted")


@tenants.command("members")
@click.argument("tenant")
@output_option
def list_members(tenant: str, output: Output) -> None:
    """List who holds which role in a tenant and its projects."""
    client = Client()
    rows = list(client.items(f"/tenants/{tenant_id(client, tenant)}/memberships"))
    names = {each["id"]: each["name"] for each in client.items("/users")}
    places = {each["id"]: each["name"] for each in client.items("/projects")}
    columns = (
        Column("USER", lambda row: names.get(row["user_id"], row["user_id"])),
        Column("ROLE", lambda row: row["role"]),
        Column("PROJECT", lambda row: places.get(row["project_id"] or "", row["project_id"])),
        Column("EXTRA", lambda row: row["extra"]),
        Column("SINCE", lambda row: age(row["created_at"]), right=True),
    )
    show_rows(rows, columns, output)


# -- projects ---------------------------------------------------------------------------------


@click.group(cls=NearestGroup)
def projects() -> None:
    """Projects, and the clusters they may use. PROJECT is a name, TENANT/NAME or an id."""


@projects.command("ls")
@click.option("--tenant", help="Only of this tenant.")
@output_option
def list_projects(tenant: str | None, output: Output) -> None:
    """List projects."""
    client = Client()
    owners = {each["id"]: each["name"] for each in client.items("/tenants")}
    columns = (
        Column("TENANT", lambda row: owners.get(row["tenant_id"], row["tenant_id"])),
        *NAMED,
    )
    show_rows(client.items("/projects", tenant_id=tenant_id(client, tenant)), columns, output)


@projects.command("show")
@click.argument("project")
@output_option
def show_project(project: str, output: Output) -> None:
    """Show one project and how it stands to clusters."""
    client = Client()
    found = client.get(f"/projects/{project_id(client, project)}")
    affinities = client.get(f"/projects/{found['id']}/clusters")
    found["clusters"] = {word: affinities[word] for word in ("required", "preferred", "excluded")}
    names = {each["id"]: each["name"] for each in client.rows("/clusters")}
    shown = [
        (f"{word} clusters", [names.get(each, each) for each in ids])
        for word, ids in found["clusters"].items()
    ]
    fields = [each for each in _fields(found) if each[0] != "clusters"]
    show_one(found, [*fields, *shown], output)


@projects.command("create")
@click.argument("name")
@click.option("--tenant", help="Its tenant; yours unless given.")
@click.option("--display-name", default="", help="What people call it.")
@output_option
def create_project(name: str, tenant: str | None, display_name: str, output: Output) -> None:
    """Create a project in a tenant."""
    client = Client()
    body = {"name": name, "display_name": display_name, "tenant_id": tenant_id(client, tenant)}
    found = client.post("/projects", body)
    show_one(found, _fields(found), output)


@projects.command("set")
@click.argument("project")
@click.option("--display-name", help="What people call it from now on.")
@click.option("--require", multiple=True, metavar="CLUSTER", help="Only these clusters.")
@click.option("--prefer", multiple=True, metavar="CLUSTER", help="These clusters rather.")
@click.option("--exclude", multiple=True, metavar="CLUSTER", help="Never these clusters.")
@click.option("--any-cluster", is_flag=True, help="Forget what was said about clusters.")
def change_project(
    project: str,
    display_name: str | None,
    require: tuple[str, ...],
    prefer: tuple[str, ...],
    exclude: tuple[str, ...],
    *,
    any_cluster: bool,
) -> None:
    """Change a project's display name, or which clusters it must, would rather or may not use."""
    client = Client()
    found = find_project(client, project)
    address = f"/projects/{found['id']}"
    if display_name is not None:
        client.patch(address, {"display_name": display_name})
    named = {"required": require, "preferred": prefer, "excluded": exclude}
    if any(named.values()) or any_cluster:
        rows = client.rows("/clusters")
        body = {
            word: [pick_exactly(rows, key, "cluster")["id"] for key in keys]
            for word, keys in named.items()
        }
        client.put(f"{address}/clusters", body)
    click.echo(f"{found['name']} changed")


@projects.command("rm")
@click.argument("project")
@YES
def delete_project(project: str, *, yes: bool) -> None:
    """Delete a project in which nothing lies any more.

    One that used what is billed stays: bills tell its name.
    """
    client = Client()
    found = find_project(client, project)
    confirm(f"Delete project {found['name']}?", yes=yes)
    client.delete(f"/projects/{found['id']}")
    click.echo(f"{found['name']} deleted")


# -- users ------------------------------------------------------------------------------------


@click.group(cls=NearestGroup)
def users() -> None:
    """Users and their roles."""


@users.command("ls")
@output_option
def list_users(output: Output) -> None:
    """List users."""
    columns = (
        Column("NAME", lambda row: row["name"]),
        Column("EMAIL", lambda row: row["email"]),
        Column("DISPLAY NAME", lambda row: row["display_name"]),
        Column("STATE", lambda row: "disabled" if row["disabled"] else "active", status=True),
        Column("AGE", lambda row: age(row["created_at"]), right=True),
        Column("ID", lambda row: row["id"], wide=True),
    )
    show_rows(Client().items("/users"), columns, output)


@users.command("show")
@click.argument("user")
@output_option
def show_user(user: str, output: Output) -> None:
    """Show one user."""
    found = find_one(Client(), "/users", user, "user")
    show_one(found, _fields(found), output)


@users.command("whoami")
@output_option
def who_am_i(output: Output) -> None:
    """Show whom this token belongs to and what it may do."""
    found = Client().get("/whoami")
    show_one(found, _fields(found), output)


@users.command("create")
@click.argument("name")
@click.option("--email", help="E-mail address.")
@click.option("--display-name", default="", help="What people call them.")
@click.option("--tenant", help="Home tenant; yours unless given.")
@click.option("--project", help="Project meant when a call names none.")
@output_option
def create_user(
    name: str,
    email: str | None,
    display_name: str,
    tenant: str | None,
    project: str | None,
    output: Output,
) -> None:
    """Create a user; `users grant` gives it a role, `tokens create --user` a token."""
    client = Client()
    body = {
        "name": name,
        "email": email,
        "display_name": display_name,
        "tenant_id": tenant_id(client, tenant),
        "project_id": project_id(client, project, tenant),
    }
    found = client.post("/users", body)
    show_one(found, _fields(found), output)


@users.command("set")
@click.argument("user")
@click.option("--email", help="E-mail address.")
@click.option("--display-name", help="What people call them.")
@click.option("--disable/--enable", "disabled", default=None, help="Shut out, or let in again.")
def change_user(
    user: str, email: str | None, display_name: str | None, *, disabled: bool | None
) -> None:
    """Change a user; what is not given stays."""
    client = Client()
    asked = {"email": email, "display_name": display_name, "disabled": disabled}
    body = {name: value for name, value in asked.items() if value is not None}
    found = client.patch(f"/users/{_user(client, user)['id']}", body)
    click.echo(f"{found['name']} changed")


@users.command("rm")
@click.argument("user")
@YES
def delete_user(user: str, *, yes: bool) -> None:
    """Delete a user."""
    client = Client()
    found = _user(client, user)
    confirm(f"Delete user {found['name']}?", yes=yes)
    client.delete(f"/users/{found['id']}")
    click.echo(f"{found['name']} deleted")


def _place(
    client: Client, tenant: str | None, project: str | None
) -> tuple[dict[str, str | None], str]:
    """Return the place that a role is held in, as the fields of a body and in words."""
    if project is not None:
        found = find_project(client, project, tenant)
        place = {"tenant_id": found["tenant_id"], "project_id": found["id"]}
        return place, f"in project {found['name']}"
    if tenant is None:
        return {"tenant_id": None, "project_id": None}, "on the platform"
    found = find_tenant(client, tenant)
    return {"tenant_id": found["id"], "project_id": None}, f"in tenant {found['name']}"


@users.command("grant")
@click.argument("user")
@click.argument("role", type=ROLES)
@click.option("--tenant", help="In this tenant.")
@click.option("--project", help="In this project.")
@click.option("--extra", multiple=True, help="A single right beside it, such as job:manage.")
def grant(
    user: str, role: str, tenant: str | None, project: str | None, extra: tuple[str, ...]
) -> None:
    """Give a user a role in a tenant or project, or on the whole platform with neither."""
    client = Client()
    found = _user(client, user)
    body = {"user_id": found["id"], "role": role, "extra": list(extra)}
    place, where = _place(client, tenant, project)
    client.put("/memberships", body | place)
    click.echo(f"{found['name']} is {role} {where}")


@users.command("revoke")
@click.argument("user")
@click.option("--tenant", help="In this tenant.")
@click.option("--project", help="In this project.")
def revoke(user: str, tenant: str | None, project: str | None) -> None:
    """Take a role away: in a tenant or project, or on the whole platform with neither."""
    client = Client()
    found = _user(client, user)
    place, where = _place(client, tenant, project)
    client.delete(f"/users/{found['id']}/memberships", **place)
    click.echo(f"{found['name']} holds no role {where}")


# -- tokens -----------------------------------------------------------------------------------


@click.group(cls=NearestGroup)
def tokens() -> None:
    """Tokens: what commands and programs show to be let in."""


@tokens.command("ls")
@click.option("--user", help="Of this user; your own unless given.")
@output_option
def list_tokens(user: str | None, output: Output) -> None:
    """List tokens without what they are."""
    client = Client()
    whose = None if user is None else _user(client, user)["id"]
    columns = (
        Column("NAME", lambda row: row["name"]),
        Column("BEGINS", lambda row: row["hint"]),
        Column("STATE", lambda row: "revoked" if row["revoked_at"] else "active", status=True),
        Column("SCOPES", lambda row: "all" if row["scopes"] is None else row["scopes"]),
        Column("EXPIRES", lambda row: clock_text(row["expires_at"])),
        Column("LAST USED", lambda row: clock_text(row["last_used_at"])),
        Column("AGE", lambda row: age(row["created_at"]), right=True),
        Column("ID", lambda row: row["id"], wide=True),
    )
    show_rows(client.items("/tokens", user_id=whose), columns, output)


@tokens.command("create")
@click.argument("name")
@click.option("--user", help="For this user; yourself unless given.")
@click.option("--scope", multiple=True, help="Only this right, such as job:read; repeatable.")
@click.option("--expires", type=INSTANT, help="When it ends (or +30d).")
@click.option("-o", "--output", type=click.Choice(["text", "json", "yaml"]), default="text",
              show_default=True, help="text is the token alone.")  # fmt: skip
def create_token(
    name: str, user: str | None, scope: tuple[str, ...], expires: str | None, output: str
) -> None:
    """Create a token and print it; it is never shown again."""
    client = Client()
    body = {
        "name": name,
        "user_id": None if user is None else _user(client, user)["id"],
        "scopes": list(scope) or None,
        "expires_at": expires,
    }
    found = client.post("/tokens", body)
    if output == "text":
        note("Keep it: it is shown this once.")
        click.echo(found["token"])
    else:
        show_data(found, Output(output))


@tokens.command("revoke")
@click.argument("token")
@click.option("--user", help="Of this user; your own unless given.")
def revoke_token(token: str, user: str | None) -> None:
    """Shut a token out, by its name or id."""
    client = Client()
    whose = None if user is None else _user(client, user)["id"]
    rows = [row for row in client.items("/tokens", user_id=whose) if not row["revoked_at"]]
    found = pick_exactly(rows, token, "token")
    client.delete(f"/tokens/{found['id']}")
    click.echo(f"{found['name']} revoked")
