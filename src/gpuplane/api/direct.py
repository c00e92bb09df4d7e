"""Runs endpoints that take nothing but the call and one JSON body, and answer with a body.

The framework's own handling of a request costs more than most of our endpoints: it solves
dependencies, reads the body a second time and checks the answer. The guard has read and checked
the body already and our answers are built from what was checked, so for these endpoints, submits
above all, only what differs is left: validate, call, serialise. Errors are raised exactly as the
framework raises them, and the OpenAPI document knows no difference.
"""

from typing import Any

from fastapi import Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.types import ASGIApp, Receive, Scope, Send

from gpuplane.db.calls import get_call

_MISSING = {"type": "missing", "loc": ("body",), "msg": "Field required", "input": None}


def direct_app(route: APIRoute) -> ASGIApp | None:
    """Return an app that answers a route, or None if it asks for more than call and body.

    The app finds the decoded body in the scope's state as `json`, absent if nothing was sent.
    """
    dependant, field, kind = route.dependant, route.body_field, route.response_model
    other = (
        *dependant.path_params,
        *dependant.query_params,
        *dependant.header_params,
        *dependant.cookie_params,
    )
    needs = [each.call for each in dependant.dependencies]
    is_plain = field is not None and len(dependant.body_params) == 1 and needs == [get_call]
    is_model = isinstance(kind, type) and issubclass(kind, BaseModel)
    answers_json = getattr(route.response_class, "value", None) is JSONResponse
    if not is_plain or other or not is_model or not answers_json:
        return None
    call_name = dependant.dependencies[0].name or "call"
    body_name = dependant.body_params[0].name
    status = route.status_code or 200
    endpoint = route.endpoint

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        state = scope["state"]
        if "json" not in state:
            raise RequestValidationError([_MISSING])
        assert field is not None, "a plain endpoint has a body"
        value, errors = field.validate(state["json"], {}, loc=("body",))
        if errors:
            raise RequestValidationError(errors, body=state["json"])
        found: Any = await endpoint(**{call_name: state["call"], body_name: value})
        if not isinstance(found, Response):
            content = found.model_dump_json(by_alias=True)
            found = Response(content, status_code=status, media_type="application/json")
        await found(scope, receive, send)

    return app
