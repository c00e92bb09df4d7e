"""Answers every error as a problem document; private detail goes to the log alone."""

import logging
from typing import Any, cast

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from sqlalchemy.exc import DataError
from starlette.exceptions import HTTPException
from starlette.routing import Match

from gpuplane.api.refusals import RefusalTrace
from gpuplane.kit.errors import (
    Forbidden,
    InvalidInput,
    NotFound,
    ProductError,
    Unavailable,
    Unprocessable,
)
from gpuplane.kit.problems import MEDIA_TYPE, problem_of, refused_fields

log = logging.getLogger("gpuplane.api")

RETRY_AFTER_S = 1
"""Said with a 429 or 503 whose error names no time."""


def answer_errors(app: FastAPI) -> None:
    """Register the handlers on an app."""
    app.add_exception_handler(ProductError, _product)
    app.add_exception_handler(RequestValidationError, _validation)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(DataError, _out_of_range)
    app.add_exception_handler(OverflowError, _out_of_range)


def answer_of(request: Request, error: ProductError) -> JSONResponse:
    """Return the problem document of an error as a response."""
    headers = {}
    if error.status in (429, 503):
        headers["Retry-After"] = str(error.retry_after_s or RETRY_AFTER_S)
    elif error.retry_after_s is not None:
        headers["Retry-After"] = str(error.retry_after_s)
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    request_id = request.scope.get("state", {}).get("request_id")
    return JSONResponse(
        problem_of(error, request_id),
        status_code=error.status,
        headers=headers,
        media_type=MEDIA_TYPE,
    )


async def _product(request: Request, error: Exception) -> JSONResponse:
    found = cast("ProductError", error)
    if found.status >= 500:
        log.info("answered %d %s", found.status, found.code, exc_info=found.__cause__)
    elif found.__cause__ is not None:  # refused as it should be: what led to it is no fault of ours
        cause = type(found.__cause__).__name__
        log.info("answered %d %s because of %s", found.status, found.code, cause)
    if isinstance(found, Forbidden):
        await _trace(request, found)
    return answer_of(request, found)


async def _trace(request: Request, refusal: Forbidden) -> None:
    principal = request.scope.get("state", {}).get("principal")
    route = request.scope.get("route")
    if principal is not None and route is not None:
        trace: RefusalTrace = request.app.state.refusals
        await trace.note(principal, f"{request.method} {route.path}", refusal)


async def _validation(request: Request, error: Exception) -> JSONResponse:
    found = cast("RequestValidationError", error)
    body_field = getattr(request.scope.get("route"), "body_field", None)
    kind: Any = None if body_field is None else body_field.field_info.annotation
    # FastAPI says first in which part of the request a field lies; people know.
    errors = [{**one, "loc": one["loc"][1:]} for one in found.errors()]
    return answer_of(request, refused_fields(errors, kind))


async def _http(request: Request, error: Exception) -> JSONResponse:
    found = cast("HTTPException", error)
    if found.status_code == 405:
        allowed = _methods_at(request)
        refusal = ProductError(
            f"{request.method} is not possible here.",
            code="method_not_allowed",
            fix=f"Possible here: {allowed}.",
        )
        refusal.status = 405
        answer = answer_of(request, refusal)
        answer.headers["Allow"] = allowed
        return answer
    if found.status_code == 404:
        return answer_of(
            request,
            NotFound(
                "There is nothing at this address.",
                code="unknown_path",
                fix="See /api/v1/openapi.json for every address.",
            ),
        )
    if found.status_code >= 500:
        return answer_of(
            request, Unavailable("This cannot be answered just now.", fix="Try again in a moment.")
        )
    other = InvalidInput(str(found.detail), fix="Check the request.")
    other.status = found.status_code
    return answer_of(request, other)


def _methods_at(request: Request) -> str:
    """Return every method of an address; the framework names those of its first route alone."""
    methods: set[str] = set()
    for route in request.app.routes:
        if isinstance(route, APIRoute) and route.matches(request.scope)[0] is not Match.NONE:
            methods |= route.methods or set()
    return ", ".join(sorted(methods))


async def _out_of_range(request: Request, error: Exception) -> JSONResponse:
    log.info("a value did not fit into its column", exc_info=error)
    return answer_of(
        request,
        Unprocessable(
            "A value is larger than can be stored.",
            code="out_of_range",
            fix="Use smaller numbers and shorter text.",
        ),
    )
