"""Builds the HTTP app from the routers it is given; every route stands behind a guard."""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from prometheus_client import CollectorRegistry
from starlette.types import ASGIApp, Receive, Scope, Send

from gpuplane import __version__
from gpuplane.api.authentication import Authenticator
from gpuplane.api.edge import Edge, request_times
from gpuplane.api.errors import answer_errors
from gpuplane.api.guard import Guard, GuardContext
from gpuplane.api.limits import Limits, RateBuckets, SubmitBuckets
from gpuplane.api.openapi import describe_api
from gpuplane.api.operations import api_router, probe_router
from gpuplane.api.refusals import RefusalTrace
from gpuplane.api.shortcuts import Shortcuts
from gpuplane.db.database import Database
from gpuplane.kit.clock import Clock
from gpuplane.kit.loops import LoopState
from gpuplane.kit.tracing import Tracing

PREFIX = "/api/v1"


@dataclass(frozen=True, slots=True)
class AppDependencies:
    """What the composition root hands to the API."""

    database: Database
    clock: Clock
    authenticator: Authenticator
    routers: Sequence[APIRouter]
    """Routers of the domains, mounted under `/api/v1`."""
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    limits: Limits = field(default_factory=Limits)
    loop_states: Mapping[str, LoopState] = field(default_factory=dict)
    """Live states of the loops that this process runs."""
    tracing: Tracing = field(default_factory=Tracing)
    ports: Mapping[str, Any] = field(default_factory=dict)
    """Named parts that endpoints may ask for with `call.port(name, kind)`."""


class _Api(FastAPI):
    """The framework's app, passed by where a shortcut leads to the endpoint."""

    shortcuts: Shortcuts
    straight: ASGIApp
    """The shortcuts behind an edge of their own."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, by a shortcut if one is for it."""
        app = self.straight if self.shortcuts.are_for(scope) else super().__call__
        await app(scope, receive, send)


def create_app(deps: AppDependencies) -> FastAPI:
    """Return the app.

    Raises:
        ValueError: If an endpoint names no permission, or two have one method and path.
    """
    app = _Api(
        title="gpuplane",
        version=__version__,
        summary="One control plane for every GPU an organisation owns or rents.",
        openapi_url=f"{PREFIX}/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=operation_id,
    )
    context = GuardContext(
        database=deps.database,
        clock=deps.clock,
        authenticator=deps.authenticator,
        limits=deps.limits,
        buckets=SubmitBuckets(deps.limits, deps.clock),
        rates=RateBuckets(deps.limits, deps.clock),
        tracing=deps.tracing,
        ports={
            **deps.ports,
            "registry": deps.registry,
            "loop_states": deps.loop_states,
            "limits": deps.limits,
        },
    )
    seen: set[tuple[str, str]] = set()
    _mount(app, probe_router, "", context, seen)
    for router in (api_router, *deps.routers):
        _mount(app, router, PREFIX, context, seen)
    answer_errors(app)
    app.state.refusals = RefusalTrace(deps.database, deps.clock)
    times = request_times(deps.registry)
    app.add_middleware(Edge, times=times)
    app.shortcuts = Shortcuts(app)
    app.straight = Edge(app.shortcuts, times)
    document: list[dict[str, Any]] = []

    def described() -> dict[str, Any]:
        if not document:
            document.append(describe_api(app))
        return document[0]

    app.openapi = described  # type: ignore[method-assign]  # as FastAPI documents it
    return app


def operation_id(route: APIRoute) -> str:
    """Return the id of an operation in the OpenAPI document: `jobs_submit`."""
    module = route.endpoint.__module__.split(".")
    place = module[2] if module[1] == "domains" else module[-2]
    return f"{place}_{route.endpoint.__name__}"


def guarded_routes(app: FastAPI) -> list[APIRoute]:
    """Return every route of an app that stands behind a guard, in the order they are tried."""
    return [route for route in app.routes if isinstance(route, APIRoute)]


def _mount(
    app: FastAPI,
    router: APIRouter,
    prefix: str,
    context: GuardContext,
    seen: set[tuple[str, str]],
) -> None:
    """Copy a router's routes onto the app, each behind its guard.

    Routes are copied flat because the app then matches one list, and because each must be wrapped.
    """
    for route in router.routes:
        if not isinstance(route, APIRoute):
            raise TypeError(f"{route!r} is no API route; routers of domains hold nothing else")
        path = prefix + route.path
        for method in sorted(route.methods or ()):
            if (method, path) in seen:
                raise ValueError(f"two endpoints answer {method} {path}")
            seen.add((method, path))
        built = build_route(router, route, path)
        added = copy(built)
        added.app = Guard(built.app, added, context)
        app.router.routes.append(added)


_built: dict[tuple[int, str], tuple[APIRoute, APIRoute]] = {}
"""By a router's route and its whole path: that route, which so keeps its identity, and its like."""


def build_route(router: APIRouter, route: APIRoute, path: str) -> APIRoute:
    """Return a router's route under its whole path, without a guard; the same at each call.

    To build it the framework looks at every parameter and model, which takes most of the time in
    which an app is made, and nothing of it is of one app.
    """
    known = _built.get((id(route), path))
    if known is not None:
        return known[1]
    workshop = APIRouter(generate_unique_id_function=operation_id)
    workshop.add_api_route(
        path,
        route.endpoint,
        methods=sorted(route.methods or ()),
        response_model=route.response_model,
        status_code=route.status_code,
        tags=[*router.tags, *(tag for tag in route.tags if tag not in router.tags)],
        dependencies=route.dependencies,
        summary=route.summary,
        description=route.description,
        response_description=route.response_description,
        responses=route.responses,
        deprecated=route.deprecated,
        operation_id=route.operation_id,
        include_in_schema=route.include_in_schema,
        response_class=route.response_class,
        name=route.name,
        openapi_extra=route.openapi_extra,
    )
    built = workshop.routes[-1]
    if not isinstance(built, APIRoute):
        raise TypeError(f"{path} was not built as an API route")
    _built[id(route), path] = (route, built)
    return built
