"""Makes the table of every endpoint × role × whose thing it is, by asking the real app.

`python -m tests.integration.api.authorization` writes the table; a test compares it. A new path
parameter needs a maker in `THINGS` and a new body an entry in `BODIES`: without the maker the
table says `(door)`, because only the check before the thing is known was asked.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx2
from fastapi.routing import APIRoute

from gpuplane.api.app import PREFIX, guarded_routes
from gpuplane.core.ids import ProjectId, TenantId, UserId
from gpuplane.core.runs.plans import RunPlan, StepPlan
from gpuplane.domains.runs import service as runs
from gpuplane.kit.access import Permission, Role, permission_of
from gpuplane.kit.clock import instant_to_text
from gpuplane.kit.sealing import SealingKeys
from tests.http_app import Server
from tests.whole_app import whole_server

RELATIONS = ("own", "colleague", "job:manage", "other project", "other tenant")
LINES = [
    *((role, "project") for role in Role),
    (Role.ADMIN, "tenant"),
    (Role.ADMIN, "platform"),
]
"""Each role as held on the project; an admin also of the tenant and of the platform."""
ALLOWED, FORBIDDEN, HIDDEN, INVALID, BROKEN = "yes", "no", "hidden", "invalid", "BROKEN"
TABLE = Path(__file__).with_name("authorization.txt")
PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")


@dataclass
class Person:
    """Somebody with a token and a home."""

    user_id: UserId
    token: str
    tenant_id: TenantId
    project_id: ProjectId
    held: tuple[Role, str] | None = None
    """The one role held, and whether on the home `project`, its `tenant` or the `platform`."""


@dataclass
class World:
    """Two tenants, two projects in the first, and people everywhere."""

    server: Server
    colleague: Person
    neighbour: Person
    """Lives in the other project."""
    stranger: Person
    """Lives in the other tenant."""
    idle: Person
    """Holds no role."""
    clients: dict[str, httpx2.AsyncClient] = field(default_factory=dict)
    callers: dict[tuple[Role, str, str], Person] = field(default_factory=dict)
    things: dict[tuple[UserId, str], str] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def admin(self) -> Person:
        """Return the admin of the platform."""
        who = self.server.admin
        return Person(who.user_id, self.server.admin_token, who.tenant_id, who.project_id)

    def client(self, token: str) -> httpx2.AsyncClient:
        if token not in self.clients:
            self.clients[token] = self.server.client(token)
        return self.clients[token]

    def name(self) -> str:
        """Return a name nothing has yet."""
        return f"thing-{next(self.numbers)}"

    async def post(self, person: Person, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Make something as a person, who may make it."""
        answer = await self.client(person.token).post(PREFIX + path, json=body)
        assert answer.status_code < 300, f"{path}: {answer.text}"
        made: dict[str, Any] = answer.json()
        return made

    async def person(
        self, role: Role | None, tenant: TenantId, project: ProjectId, extra: bool = False
    ) -> Person:
        more = [Permission.JOB_MANAGE] if extra else []
        user_id, token = await self.server.make_user(self.name(), role, tenant, project, extra=more)
        return Person(user_id, token, tenant, project, None if role is None else (role, "project"))

    async def hold(self, person: Person, role: Role, place: str) -> None:
        """Let a person hold exactly one role, on the home project, its tenant or the platform."""
        if person.held == (role, place):
            return
        places = {
            "project": {"project_id": str(person.project_id)},
            "tenant": {"tenant_id": str(person.tenant_id)},
            "platform": {},
        }
        admin = self.client(self.admin.token)
        body = {"user_id": str(person.user_id), "role": role.value, **places[place]}
        answer = await admin.put(f"{PREFIX}/memberships", json=body)
        assert answer.status_code == 200, answer.text
        if person.held is not None and person.held[1] != place:
            path = f"{PREFIX}/users/{person.user_id}/memberships"
            await admin.delete(path, params=places[person.held[1]])
        person.held = (role, place)


async def _job(world: World, owner: Person) -> str:
    return str((await world.post(owner, "/jobs", _job_body(world, owner)))["id"])


def _job_body(world: World, owner: Person) -> dict[str, Any]:
    return {
        "name": world.name(),
        "cluster": "demo",
        "spec": {"command": ["true"]},
        "project_id": str(owner.project_id),
        "tenant_id": str(owner.tenant_id),
    }


async def _user(world: World, owner: Person) -> str:
    """Return the caller's own id, or somebody who lives where the owner lives."""
    if owner in (world.colleague, world.neighbour, world.stranger):
        owner = await world.person(Role.VIEWER, owner.tenant_id, owner.project_id)
    return str(owner.user_id)


async def _run(world: World, owner: Person) -> str:
    """Return a run of the owner's project; nobody starts one by HTTP alone."""
    step = StepPlan("a", "runs.nothing")
    place = (owner.tenant_id, owner.project_id)
    plan = RunPlan("test", world.name(), *place, (step,))
    now = world.server.clock.now_ms()
    run = await world.server.database.write("tests.run", lambda s: runs.start_run(s, plan, now))
    return str(run.id)


async def _secret(world: World, owner: Person) -> str:
    body = {"name": world.name(), "value": "v"}
    return str((await world.post(owner, "/secrets", body))["id"])


async def _token(world: World, owner: Person) -> str:
    return str((await world.post(owner, "/tokens", {"name": world.name()}))["id"])


async def _webhook(world: World, owner: Person) -> str:
    body = {"url": "https://example.com/x", "tenant_id": str(owner.tenant_id)}
    made = await world.post(world.admin, "/webhooks", body)
    return str(made["webhook"]["id"])


async def _cluster_webhook(world: World, owner: Person) -> str:
    body = {"url": "https://example.com/x"}
    boss = await world.person(None, owner.tenant_id, owner.project_id)
    await world.hold(boss, Role.OPERATOR, "tenant")
    made = await world.post(boss, "/clusters/demo/webhooks", body)
    return str(made["webhook"]["id"])


async def _reservation(world: World, owner: Person) -> str:
    made = await world.post(world.admin, "/capacity/reservations", _reservation_body(world, owner))
    return str(made["id"])


def _reservation_body(world: World, owner: Person) -> dict[str, Any]:
    start = world.server.clock.now_ms() + 86_400_000 * next(world.numbers)
    return {
        "cluster": "demo",
        "model": "T4",
        "count": 1,
        "start": instant_to_text(start),
        "end": instant_to_text(start + 60_000),
        "project_id": str(owner.project_id),
    }


async def _window(world: World, _: Person) -> str:
    body = _window_body(world, world.admin)
    return str((await world.post(world.admin, "/clusters/demo/maintenance-windows", body))["id"])


def _window_body(world: World, _: Person) -> dict[str, Any]:
    start = world.server.clock.now_ms() + 86_400_000 * next(world.numbers)
    return {
        "start": instant_to_text(start),
        "end": instant_to_text(start + 60_000),
        "reason": "a new cable",
    }


async def _node(world: World, _: Person) -> str:
    listed = await world.client(world.admin.token).get(f"{PREFIX}/clusters/demo/nodes")
    return str(listed.json()["items"][0]["name"])


async def _quota(world: World, _: Person) -> str:
    body = {"name": world.name()}
    return str((await world.post(world.admin, "/clusters/demo/quotas", body))["name"])


async def _cohort(world: World, _: Person) -> str:
    body = {"name": world.name()}
    return str((await world.post(world.admin, "/clusters/demo/cohorts", body))["name"])


async def _queue(world: World, owner: Person) -> str:
    body = {
        "name": world.name(),
        "tenant": str(owner.tenant_id),
        "cluster_queue": "table",
    }
    return str((await world.post(world.admin, "/clusters/demo/queues", body))["name"])


def _constant(value: Callable[[Person], object]) -> Callable[[World, Person], Awaitable[str]]:
    async def make(_: World, owner: Person) -> str:
        return str(value(owner))

    return make


async def _pipeline(world: World, owner: Person) -> str:
    document = _pipeline_body(world, owner)
    found = await world.post(owner, f"/pipelines?project={owner.project_id}", document)
    world.things[owner.user_id, "pipeline name"] = document["metadata"]["name"]
    return str(found["pipeline"]["id"])


def _pipeline_body(world: World, _: Person) -> dict[str, Any]:
    step = {"id": "a", "step_type": "transform", "config": {"expression": "1"}}
    return {"metadata": {"name": world.name()}, "spec": {"steps": [step]}}


def _changed_pipeline(world: World, owner: Person) -> dict[str, Any]:
    document = _pipeline_body(world, owner)
    document["metadata"]["name"] = world.things[owner.user_id, "pipeline name"]
    return document


def _pipeline_text(world: World, owner: Person) -> dict[str, Any]:
    return {"text": json.dumps(_pipeline_body(world, owner))}


THINGS: dict[str, Callable[[World, Person], Awaitable[str]]] = {
    "tenant_id": _constant(lambda owner: owner.tenant_id),
    "tenant": _constant(lambda owner: owner.tenant_id),
    "project_id": _constant(lambda owner: owner.project_id),
    "user_id": _user,
    "cluster": _constant(lambda _: "demo"),
    "cluster_id": _constant(lambda _: "demo"),
    "job_id": _job,
    "cluster_webhook_id": _cluster_webhook,
    "window_id": _window,
    "node": _node,
    "quota": _quota,
    "cohort": _cohort,
    "queue": _queue,
    "path": _constant(lambda _: "model.bin"),
    "digest": _constant(lambda _: "0" * 64),
    "run_id": _run,
    "pipeline_id": _pipeline,
    "number": _constant(lambda _: 1),
    "trigger_id": _constant(lambda _: UUID(int=0)),
    "step": _constant(lambda _: "a"),
    "secret_id": _secret,
    "token_id": _token,
    "webhook_id": _webhook,
    "reservation_id": _reservation,
}
"""Makes the thing that a path parameter names, in the place of its owner."""

SPECIAL = {
    ("DELETE /clusters/{cluster_id}/webhooks/{webhook_id}", "webhook_id"): "cluster_webhook_id",
    ("PUT /clusters/{cluster}/quotas/{name}", "name"): "quota",
    ("DELETE /clusters/{cluster}/quotas/{name}", "name"): "quota",
    ("POST /clusters/{cluster}/quotas/{name}/adopt", "name"): "quota",
    ("POST /clusters/{cluster}/cohorts/{name}/adopt", "name"): "cohort",
    ("PUT /clusters/{cluster}/cohorts/{name}", "name"): "cohort",
    ("DELETE /clusters/{cluster}/cohorts/{name}", "name"): "cohort",
    ("PUT /clusters/{cluster}/queues/{name}", "name"): "queue",
    ("DELETE /clusters/{cluster}/queues/{name}", "name"): "queue",
    ("POST /clusters/{cluster}/queues/{name}/adopt", "name"): "queue",
}
"""Where a parameter means another thing than its name says elsewhere."""

Body = Callable[[World, Person], dict[str, Any]]

BODIES: dict[str, Body] = {
    "POST /tenants": lambda w, _: {"name": w.name()},
    "PATCH /tenants/{tenant_id}": lambda w, _: {"display_name": "x"},
    "POST /projects": lambda w, o: {"name": w.name(), "tenant_id": str(o.tenant_id)},
    "PATCH /projects/{project_id}": lambda w, _: {"display_name": "x"},
    "PUT /projects/{project_id}/clusters": lambda w, _: {"preferred": [str(uuid4())]},
    "POST /users": lambda w, o: {
        "name": w.name(),
        "tenant_id": str(o.tenant_id),
        "project_id": str(o.project_id),
    },
    "PATCH /users/{user_id}": lambda w, _: {"display_name": "x"},
    "PUT /memberships": lambda w, o: {
        "user_id": str(w.idle.user_id),
        "role": "viewer",
        "project_id": str(o.project_id),
    },
    "POST /tokens": lambda w, o: {"name": w.name(), "user_id": str(o.user_id)},
    "POST /pipelines": _pipeline_body,
    "PUT /pipelines": _pipeline_body,
    "POST /pipelines/check": _pipeline_body,
    "POST /pipelines/import": _pipeline_text,
    "POST /pipelines/import/check": _pipeline_text,
    "PUT /pipelines/{pipeline_id}": _changed_pipeline,
    "POST /runs/{run_id}/fork": lambda w, _: {"step": "a"},
    "POST /runs/{run_id}/events": lambda w, _: {"name": "go"},
    "POST /secrets": lambda w, o: {
        "name": w.name(),
        "value": "v",
        "project_id": str(o.project_id),
    },
    "PUT /secrets/{secret_id}": lambda w, _: {"value": "w"},
    "POST /webhooks": lambda w, o: {
        "url": "https://example.com/x",
        "tenant_id": str(o.tenant_id),
    },
    "PATCH /webhooks/{webhook_id}": lambda w, _: {"kinds": ["job.*"]},
    "POST /clusters/{cluster_id}/webhooks": lambda w, _: {"url": "https://example.com/x"},
    "POST /jobs": _job_body,
    "POST /jobs/estimate": _job_body,
    "PUT /jobs/{job_id}/priority": lambda w, _: {"priority": "low"},
    "PUT /jobs/{job_id}/scale": lambda w, _: {"replicas": 1},
    "POST /jobs/{job_id}/exec": lambda w, _: {"command": ["true"]},
    "POST /jobs/{job_id}/progress": lambda w, _: {"progress": 0.5},
    "POST /jobs/{job_id}/checkpoints": lambda w, _: {"path": "x"},
    "PATCH /clusters/{cluster}/preemption-policy": lambda w, _: {"enabled": True},
    "POST /clusters/{cluster}/maintenance-windows": _window_body,
    "PUT /clusters/{cluster}/dedication": lambda w, _: {"tenant_id": None},
    "POST /clusters/{cluster}/grants": lambda w, o: {"tenant_id": str(o.tenant_id)},
    "POST /clusters/{cluster}/quotas": lambda w, _: {"name": w.name()},
    "PUT /clusters/{cluster}/quotas/{name}": lambda w, _: {"queueing_strategy": "StrictFIFO"},
    "POST /clusters/{cluster}/cohorts": lambda w, _: {"name": w.name()},
    "PUT /clusters/{cluster}/cohorts/{name}": lambda w, _: {},
    "PUT /clusters/{cluster}/multikueue": lambda w, _: {"workers": ["demo"]},
    "POST /clusters/{cluster}/tenants": lambda w, o: {"tenant": str(o.tenant_id)},
    "POST /clusters/{cluster}/queues": lambda w, o: {
        "name": w.name(),
        "tenant": str(o.tenant_id),
        "cluster_queue": "table",
    },
    "PUT /clusters/{cluster}/queues/{name}": lambda w, o: {
        "tenant": str(o.tenant_id),
        "cluster_queue": "table",
    },
    "POST /capacity/reservations": _reservation_body,
    "POST /prices": lambda w, _: {"item": "T4", "price": "1.00"},
}
"""A body that would be taken, by method and path; without one the refusal comes from the body."""


async def _compared(world: World, owner: Person) -> str:
    return f"?ids={await _job(world, owner)},{await _job(world, owner)}"


QUERIES: dict[str, Callable[[World, Person], Awaitable[str]]] = {
    "GET /tokens": _constant(lambda owner: f"?user_id={owner.user_id}"),
    "GET /jobs/compare": _compared,
    **{
        name: _constant(lambda owner: f"?project={owner.project_id}")
        for name in (
            "POST /pipelines",
            "PUT /pipelines",
            "POST /pipelines/check",
            "POST /pipelines/import",
            "POST /pipelines/import/check",
        )
    },
    "GET /pipelines/{pipeline_id}/diff": _constant(lambda _: "?old=1&new=1"),
    "POST /pipelines/{pipeline_id}/rollback": _constant(lambda _: "?version=1"),
    "DELETE /clusters/{cluster}/queues/{name}": _constant(
        lambda owner: f"?tenant={owner.tenant_id}"
    ),
    "POST /clusters/{cluster}/queues/{name}/adopt": _constant(
        lambda owner: f"?tenant={owner.tenant_id}"
    ),
    "DELETE /users/{user_id}/memberships": _constant(
        lambda owner: f"?project_id={owner.project_id}"
    ),
}
"""A query that names the owner's thing, where the path does not."""

HEADERS = {"GET /events/stream": {"Last-Event-ID": "none"}}
"""The stream would not end: a damaged position is answered once the caller was let in."""


async def make_world(server: Server) -> World:
    """Make tenants and people."""
    acme, one = await server.make_tenant("acme")
    two = await server.make_project(acme, "two")
    rival, far = await server.make_tenant("rival")
    nobody = Person(UserId(UUID(int=0)), "", acme, one)
    world = World(server, nobody, nobody, nobody, nobody)
    world.colleague = await world.person(Role.ADMIN, acme, one)
    world.neighbour = await world.person(Role.ADMIN, acme, two)
    world.idle = await world.person(None, acme, one)
    world.stranger = await world.person(Role.ADMIN, rival, far)
    await world.post(world.admin, "/clusters/demo/quotas", {"name": "table"})
    return world


async def rows_of(world: World, route: APIRoute) -> list[str]:
    """Return the rows of one route: a heading, and one row a role."""
    method = sorted(route.methods or ())[0]
    path = route.path.removeprefix(PREFIX)
    name = f"{method} {path}"
    known = all(SPECIAL.get((name, one), one) in THINGS for one in PARAMETER.findall(path))
    door = "" if known else " (door)"
    rows = [f"{name} [{permission_of(route.endpoint)}]{door}"]
    for role, place in LINES:
        if "webhooks" in path:
            await _clear_webhooks(world)
        words = [await _ask(world, route, name, (role, place, each)) for each in RELATIONS]
        cells = "".join(word.ljust(15) for word in words).rstrip()
        label = role.value if place == "project" else f"{role.value} of {place}"
        rows.append(f"    {label:<18}{cells}")
    return rows


async def _clear_webhooks(world: World) -> None:
    """Delete every webhook, because a tenant may have fifty."""
    client = world.client(world.admin.token)
    listed = await client.get(f"{PREFIX}/webhooks?limit=500")
    for webhook in listed.json()["items"]:
        await client.delete(f"{PREFIX}/webhooks/{webhook['id']}")


Cell = tuple[Role, str, str]
"""A role, the place it is held in, and whose thing is asked for."""


async def _ask(world: World, route: APIRoute, name: str, cell: Cell) -> str:
    """Ask one route as one kind of caller for one kind of thing."""
    method, _, path = name.partition(" ")
    reads = method == "GET"  # what only reads may be asked for the same thing again
    changes_callers = not reads and ("{user_id}" in path or "memberships" in path)
    caller = None if changes_callers else world.callers.get(cell)
    if caller is None:
        caller = await _caller(world, cell)
        if not changes_callers:
            world.callers[cell] = caller
    owner = {
        "own": caller,
        "other project": world.neighbour,
        "other tenant": world.stranger,
    }.get(cell[2], world.colleague)
    own = owner is caller and cell[1] == "project"  # the wider roles may make everything anyhow
    if own:
        await world.hold(caller, Role.ADMIN, "project")
    for parameter in PARAMETER.findall(path):
        kind = SPECIAL.get((name, parameter), parameter)
        value = await _thing(world, owner, kind, kept=reads and "webhook" not in parameter)
        path = re.sub(r"\{" + parameter + r"(:\w+)?\}", value, path)
    query = await QUERIES[name](world, owner) if name in QUERIES else ""
    if own:
        await world.hold(caller, cell[0], cell[1])
    body = BODIES.get(name)
    answer = await world.client(caller.token).request(
        method,
        route.path.removesuffix(name.partition(" ")[2]) + path + query,
        json=None if body is None else body(world, owner),
        headers=HEADERS.get(name, {}),
    )
    assert answer.status_code != 401, f"{name}: {answer.text}"
    if answer.status_code in (400, 422) and name not in HEADERS:
        return INVALID
    return {403: FORBIDDEN, 404: HIDDEN, 500: BROKEN}.get(answer.status_code, ALLOWED)


async def _caller(world: World, cell: Cell) -> Person:
    home = world.colleague
    role, place, relation = cell
    caller = await world.person(
        role if place == "project" else None,
        home.tenant_id,
        home.project_id,
        extra=relation == "job:manage",
    )
    if place != "project":
        await world.hold(caller, role, place)
    return caller


async def _thing(world: World, owner: Person, parameter: str, *, kept: bool) -> str:
    maker = THINGS.get(parameter)
    if maker is None:
        return str(uuid4())
    name = (owner.user_id, parameter)
    if not kept:
        return await maker(world, owner)
    if name not in world.things:
        world.things[name] = await maker(world, owner)
    return world.things[name]


def routes_by_tag(server: Server) -> dict[str, list[APIRoute]]:
    """Return the routes of an app under their first tag, in the order of the app."""
    found: dict[str, list[APIRoute]] = {}
    for route in guarded_routes(server.app):
        found.setdefault(str((route.tags or ["other"])[0]), []).append(route)
    return found


def heading() -> str:
    """Return what explains the table."""
    columns = " " * 22 + "".join(relation.ljust(15) for relation in RELATIONS).rstrip()
    return (
        "Who may do what: every endpoint × role × whose thing it is; roles are held\n"
        "on the project unless another place is named.\n"
        "yes: let in (or in the wrong state) · no: 403 · hidden: 404\n"
        "invalid: 400 or 422, as for something that does not exist\n"
        "(door): only the check before the thing is known was asked\n\n" + columns + "\n"
    )


async def section_of(server: Server, world: World, tag: str) -> str:
    """Return the section of one tag."""
    lines = [f"== {tag} =="]
    for route in routes_by_tag(server).get(tag, []):
        lines += await rows_of(world, route)
    return "\n".join(lines) + "\n"


def committed_sections() -> dict[str, str]:
    """Return the committed table by tag."""
    text = TABLE.read_text(encoding="utf-8") if TABLE.exists() else ""
    return {
        part.partition(" ==")[0]: f"== {part}".rstrip() + "\n"
        for part in text.split("== ")[1:]
        for part in [part]
        if part.partition(" ==")[1]
    }


async def _print_table() -> None:
    with tempfile.TemporaryDirectory() as folder:
        keys = SealingKeys(Path(folder) / "sealing")
        async with whole_server(Path(folder), keys) as server:
            world = await make_world(server)
            sections = [
                await section_of(server, world, tag) for tag in sorted(routes_by_tag(server))
            ]
    sys.stdout.write(heading() + "\n" + "\n".join(sections))


if __name__ == "__main__":
    asyncio.run(_print_table())
