"""Stands before every route: who calls, may they, is the body sane, was it answered before.

A plain ASGI application around FastAPI's own, so that it costs a few dictionary look-ups.
"""

import asyncio
import hashlib
import re
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import parse_qsl
from uuid import UUID

from fastapi.routing import APIRoute
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpuplane.api.authentication import Authenticator
from gpuplane.api.direct import direct_app
from gpuplane.api.forms import is_form, read_form
from gpuplane.api.json_bodies import read_json
from gpuplane.api.limits import Limits, RateBuckets, SubmitBuckets
from gpuplane.core.ids import ProjectId, TenantId, UserId
from gpuplane.db.calls import Call, open_answer
from gpuplane.db.database import Database
from gpuplane.db.idempotency import StoredAnswer, find_answer
from gpuplane.kit.access import (
    Permission,
    Principal,
    form_parts,
    is_submit,
    permission_of,
    rate_limit_of,
    upload_limit,
)
from gpuplane.kit.clock import Clock
from gpuplane.kit.errors import (
    Conflict,
    FieldError,
    Forbidden,
    InvalidInput,
    TooLarge,
    Unprocessable,
    WrongMediaType,
)
from gpuplane.kit.problems import nearest
from gpuplane.kit.tracing import Tracing

NOBODY = Principal(
    user_id=UserId(UUID(int=0)),
    name="anonymous",
    tenant_id=TenantId(UUID(int=0)),
    project_id=ProjectId(UUID(int=0)),
    grants=(),
)
"""The principal of public endpoints: it holds nothing."""

_TRACEPARENT = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_KEY = re.compile(r"[\x21-\x7e]+")


@dataclass(slots=True)
class _Turn:
    """Requests with one key in this process: one is answered, the others wait."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    waiting: int = 0


@dataclass(slots=True)
class GuardContext:
    """What every guard of an app shares."""

    database: Database
    clock: Clock
    authenticator: Authenticator
    limits: Limits
    buckets: SubmitBuckets
    rates: RateBuckets
    ports: dict[str, Any]
    tracing: Tracing = field(default_factory=Tracing)
    answering: "dict[tuple[str, str], _Turn]" = field(default_factory=dict)
    """Keys being answered right now in this process; a second request waits for the first."""


class Guard:
    """The guard of one route."""

    def __init__(self, app: ASGIApp, route: APIRoute, context: GuardContext) -> None:
        """Stand before a route.

        Raises:
            ValueError: If its endpoint names no permission.
        """
        permission = permission_of(route.endpoint)
        if permission is None:
            raise ValueError(f"{route.path} names no permission; mark it with @requires(...)")
        direct = direct_app(route)
        self.is_direct = direct is not None
        """Whether the framework's own request handler is passed by."""
        self._app = direct or app
        self._context = context
        self._permission = permission
        self._upload_bytes = upload_limit(route.endpoint)
        self._is_submit = is_submit(route.endpoint)
        self._rate = rate_limit_of(route.endpoint)
        self._form_parts = form_parts(route.endpoint)
        self._query_names = _query_names(route)
        self._name = f"{' '.join(sorted(route.methods or ()))} {route.path}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or raise the ProductError that refuses it."""
        headers = _headers(scope)
        given = headers.get(b"traceparent", b"").decode("latin-1")
        known = given if _TRACEPARENT.fullmatch(given) else None
        if not self._context.tracing.is_on or self._permission is Permission.PUBLIC:
            await self._answer(scope, receive, send, headers, known)
            return
        with self._context.tracing.span(self._name, known) as traceparent:
            await self._answer(scope, receive, send, headers, traceparent)

    async def _answer(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        headers: dict[bytes, bytes],
        traceparent: str | None,
    ) -> None:
        call = await self._call(scope, headers)
        call.traceparent = traceparent
        self._check_query(scope)
        if self._is_submit:
            self._context.buckets.take(call.principal.tenant_id)
        if self._rate is not None:
            self._context.rates.take(self._rate, call.principal.user_id)
            send = self._counted(call, self._rate, send)
        scope.setdefault("state", {})["call"] = call
        if self._upload_bytes is not None:
            await self._app(scope, _limited(receive, headers, self._upload_bytes), send)
            return
        body = await _read_body(receive, headers, self._context.limits.body_bytes)
        kind = headers.get(b"content-type", b"")
        if body and self._form_parts and is_form(kind):
            scope["state"]["form"] = read_form(kind, body, self._form_parts)
        elif body:
            _require_json(headers)
            scope["state"]["json"] = read_json(body, self._context.limits.json_depth)
        if scope["method"] == "POST" and b"idempotency-key" in headers:
            call.idempotency_key = self._key(headers)
            call.request_hash = _request_hash(scope, body)
            await self._once(call, scope, _replayed(body, receive), send)
            return
        await self._app(scope, _replayed(body, receive), send)

    def _counted(self, call: Call, rate: str, send: Send) -> Send:
        """Return a `send` by which a call that was refused before it cost anything is not counted.

        What cannot be read is refused by the parts around the endpoint, so the status is looked at.
        """

        async def look(message: Message) -> None:
            refused = message["type"] == "http.response.start" and 400 <= message["status"] < 500
            if refused and not call.is_costly:
                self._context.rates.give_back(rate, call.principal.user_id)
            await send(message)

        return look

    async def _call(self, scope: Scope, headers: dict[bytes, bytes]) -> Call:
        principal, again = NOBODY, None
        if self._permission is not Permission.PUBLIC:
            authorization = headers.get(b"authorization", b"").decode("latin-1")
            again = partial(self._context.authenticator.authenticate, authorization)
            principal = await again()
            scope.setdefault("state", {})["principal"] = principal
            if not principal.may_anywhere(self._permission):
                raise Forbidden(
                    f"{principal.name} may not do this: the right {self._permission} is missing.",
                    fix=f"Ask an admin for a role or a token with {self._permission}.",
                    extra={"permission": str(self._permission)},
                )
        state = scope.setdefault("state", {})
        state["user"] = principal.name
        return Call(
            database=self._context.database,
            clock=self._context.clock,
            principal=principal,
            request_id=state.get("request_id", ""),
            ports=self._context.ports,
            authenticate=again,
        )

    def _check_query(self, scope: Scope) -> None:
        text = scope["query_string"]
        if not text:
            return
        try:
            names = parse_qsl(text.decode("ascii"), keep_blank_values=True, errors="strict")
        except (UnicodeDecodeError, ValueError) as error:
            raise InvalidInput(
                "The query string is not valid UTF-8.", fix="Encode it as UTF-8 percent codes."
            ) from error
        errors = tuple(
            FieldError(
                name[:100],
                f"There is no parameter {name[:100]!r} here.",
                nearest(name[:100], self._query_names),
            )
            for name, _ in names
            if name not in self._query_names
        )[:20]
        if errors:
            first = errors[0]
            raise Unprocessable(
                first.reason, code="invalid_field", field=first.field, fix=first.fix, errors=errors
            )

    def _key(self, headers: dict[bytes, bytes]) -> str:
        key = headers[b"idempotency-key"].decode("latin-1")
        longest = self._context.limits.idempotency_key_chars
        if not 0 < len(key) <= longest or not _KEY.fullmatch(key):
            raise InvalidInput(
                f"An Idempotency-Key is 1 to {longest} visible ASCII characters.",
                code="invalid_idempotency_key",
                field="Idempotency-Key",
                fix="Use a UUID.",
            )
        return key

    async def _once(self, call: Call, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a key once: from the store if it was answered, else by the endpoint."""
        name = (call.idempotency_scope, call.idempotency_key or "")
        turn = self._context.answering.setdefault(name, _Turn())
        turn.waiting += 1
        try:
            async with turn.lock:
                stored = await self._context.database.read(lambda s: find_answer(s, *name))
                if stored is None:
                    await self._app(scope, receive, send)
                else:
                    await self._replay(call, stored, scope, receive, send)
        finally:
            turn.waiting -= 1
            if not turn.waiting:
                self._context.answering.pop(name, None)

    async def _replay(
        self, call: Call, stored: StoredAnswer, scope: Scope, receive: Receive, send: Send
    ) -> None:
        if stored.request_hash != call.request_hash:
            raise Conflict(
                "This Idempotency-Key was used for another request.",
                code="idempotency_key_reused",
                field="Idempotency-Key",
                fix="Use a new key for a new request.",
            )
        answer = Response(
            open_answer(call, stored.body),
            status_code=stored.status,
            media_type="application/json",
            headers={"Idempotent-Replayed": "true"},
        )
        await answer(scope, receive, send)


def _headers(scope: Scope) -> dict[bytes, bytes]:
    return dict(scope["headers"])


def _query_names(route: APIRoute) -> frozenset[str]:
    """Return every query parameter that a route reads, with those of its dependencies."""
    names: set[str] = set()
    rest = [route.dependant]
    while rest:
        dependant = rest.pop()
        rest += dependant.dependencies
        for one in dependant.query_params:
            fields = getattr(one.field_info.annotation, "model_fields", None)
            names |= {one.alias} if fields is None else set(fields)
    return frozenset(names)


def _require_json(headers: dict[bytes, bytes]) -> None:
    kind = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
    if kind == b"application/json" or kind.endswith(b"+json"):
        return
    named = kind[:100].decode("latin-1") or "none"
    raise WrongMediaType(
        f"The body is read as JSON alone, and its Content-Type is {named!r}.",
        field="Content-Type",
        fix="Send Content-Type: application/json.",
    )


def _request_hash(scope: Scope, body: bytes) -> str:
    digest = hashlib.sha256()
    for part in (scope["method"].encode(), scope["path"].encode(), scope["query_string"], body):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()


def _too_large(limit: int) -> TooLarge:
    return TooLarge(
        f"The body is longer than {limit} bytes.",
        fix="Send less at once.",
        extra={"limit": "body_bytes", "limit_bytes": limit},
    )


def _check_announced(headers: dict[bytes, bytes], limit: int) -> None:
    announced = headers.get(b"content-length", b"0")
    if announced.isdigit() and int(announced) > limit:
        raise _too_large(limit)


async def _read_body(receive: Receive, headers: dict[bytes, bytes], limit: int) -> bytes:
    _check_announced(headers, limit)
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return b""
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise _too_large(limit)
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return a receive that hands out a body already read, then what comes after it."""
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def _limited(receive: Receive, headers: dict[bytes, bytes], limit: int) -> Receive:
    """Return a receive that refuses a stream longer than the limit."""
    _check_announced(headers, limit)
    size = 0

    async def counted() -> Message:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        if size > limit:
            raise _too_large(limit)
        return message

    return counted
