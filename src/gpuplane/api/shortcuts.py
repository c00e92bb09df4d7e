"""Leads a request for a plain endpoint at a fixed address straight to its guard.

The framework's own way there (its error, telemetry and body-limit layers, then every route tried
in turn) costs more than much of such an endpoint's own work. What it does there is done by the edge
and the guard already, and errors are answered by the same handlers.
"""

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.routing import Match
from starlette.types import Receive, Scope, Send

from gpuplane.api.guard import Guard


class Shortcuts:
    """Stands before an app whose routes and error handlers are all registered."""

    def __init__(self, app: FastAPI) -> None:
        """Look up which endpoints of an app can be gone to directly."""
        self._app = app
        self._routes = {
            (method, route.path): route
            for route in app.routes
            if isinstance(route, APIRoute) and isinstance(route.app, Guard) and route.app.is_direct
            for method in route.methods or ()
            if "{" not in route.path and _first_match(app, method, route.path) is route
        }
        self._straight = ExceptionMiddleware(_to_guard, handlers=dict(app.exception_handlers))

    def are_for(self, scope: Scope) -> bool:
        """Return whether a request can be answered here."""
        return (
            scope["type"] == "http"
            and (scope["method"], scope["path"]) in self._routes
            and not scope.get("root_path")
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request that the shortcuts are for."""
        route = self._routes[scope["method"], scope["path"]]
        scope["app"] = self._app
        scope["route"] = route
        scope["endpoint"] = route.endpoint
        scope["path_params"] = {}
        await self._straight(scope, receive, send)


async def _to_guard(scope: Scope, receive: Receive, send: Send) -> None:
    await scope["route"].app(scope, receive, send)


def _first_match(app: FastAPI, method: str, path: str) -> object:
    """Return the route that the framework would choose."""
    scope: Scope = {"type": "http", "method": method, "path": path, "headers": [], "root_path": ""}
    matching = (route for route in app.routes if route.matches(scope)[0] is Match.FULL)
    return next(matching, None)
