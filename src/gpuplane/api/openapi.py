"""Completes the OpenAPI document: problems, tokens, rights and idempotency keys of every operation.

`make openapi` writes it to `openapi/openapi.json`, from which clients are generated.
"""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from gpuplane.kit.access import Permission, permission_of
from gpuplane.kit.problems import MEDIA_TYPE

_PROBLEM: dict[str, Any] = {
    "type": "object",
    "title": "Problem",
    "description": "Why a request was refused (RFC 9457), and what would mend it.",
    "required": ["type", "title", "status", "code", "detail", "fix"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "code": {"type": "string", "description": "One stable word for programs."},
        "detail": {"type": "string", "description": "One sentence for people."},
        "fix": {"type": "string", "description": "What would change it; may be empty."},
        "field": {"type": "string", "description": "The first field that cannot hold."},
        "request_id": {"type": "string"},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["field", "reason", "fix"],
                "properties": {
                    "field": {"type": "string"},
                    "reason": {"type": "string"},
                    "fix": {"type": "string"},
                },
            },
        },
    },
}
_KEY: dict[str, Any] = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "The same key and body get the same answer; another body gets 409.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
}


def describe_api(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document of an app."""
    document = get_openapi(
        title=app.title, version=app.version, summary=app.summary, routes=app.routes
    )
    parts = document.setdefault("components", {})
    schemas = parts.setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas["Problem"] = _PROBLEM
    parts["securitySchemes"] = {
        "token": {
            "type": "http",
            "scheme": "bearer",
            "description": "A token of this product, or a JWT of a trusted issuer.",
        }
    }
    document["security"] = [{"token": []}]
    for route in app.routes:
        if isinstance(route, APIRoute) and route.include_in_schema:
            for method in route.methods or ():
                _complete(document["paths"][route.path_format][method.lower()], route, method)
    return document


def _complete(operation: dict[str, Any], route: APIRoute, method: str) -> None:
    permission = permission_of(route.endpoint) or Permission.PUBLIC
    operation["x-permission"] = permission.value
    if permission is Permission.PUBLIC:
        operation["security"] = []
    if method == "POST":
        operation.setdefault("parameters", []).append(_KEY)
    responses = operation["responses"]
    responses.pop("422", None)
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    responses["4XX"] = {"description": "Refused, with the reason and the fix.", "content": content}
    responses.setdefault("503", {"description": "Later; see Retry-After.", "content": content})
