"""API_CALL: one HTTP request, to an address that was checked and to no other.

Inner addresses are refused as they are for webhooks; secrets come by name and stay in memory.
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import httpx2

from gpuplane.core.ids import ProjectId
from gpuplane.core.runs.plans import Answer, Completed, Failed, StepCall
from gpuplane.domains.pipelines.documents.configs import (
    ApiCallConfig,
    SecretHeader,
    header_problem,
)
from gpuplane.domains.pipelines.expressions import canonical
from gpuplane.domains.pipelines.steps.names import rendered
from gpuplane.domains.pipelines.steps.tools import StepTools
from gpuplane.domains.secrets import service as secrets
from gpuplane.kit import outbound
from gpuplane.kit.errors import ProductError
from gpuplane.kit.outbound import TargetRefused
from gpuplane.kit.targets import parse_target, target_refusal

RETRIED = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
"""Answers after which another try may succeed."""
MAX_RETRY_AFTER_S = 3_600
SHOWN_CHARS = 500
OURS = frozenset({"content-length", "host", "connection", "transfer-encoding"})
"""Headers that follow from the request and are not a pipeline's to set."""


@dataclass(frozen=True, slots=True)
class Answered:
    """What came back."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class ApiCalls:
    """The handler of API_CALL."""

    def __init__(self, tools: StepTools) -> None:
        self._tools = tools

    async def __call__(self, call: StepCall) -> Answer:
        """Answer with what the other side answered."""
        config = rendered(call, ApiCallConfig)
        stand_in = self._stand_in(config)
        if stand_in is not None:
            return _completed(Answered(200, {}, json.dumps(stand_in).encode()))
        content = None if config.body is None else json.dumps(config.body).encode()
        try:
            headers = await self._headers(call, config)
            for name, value in headers.items():
                problem = header_problem(name, value)
                if problem is not None:  # of a secret: the others were looked at
                    return Failed("InvalidConfig", f"config.headers: {problem}", is_final=True)
            url = _with_query(config.url, config.query)
            timeout = _within(config.timeout_seconds, call)
            answered = await send(self._tools, config.method, url, headers, content, timeout)
        except TimeoutError:
            return Failed("Timeout", f"No answer within {config.timeout_seconds:g} s.")
        except TargetRefused as refusal:
            return Failed("AddressRefused", str(refusal), is_final=True)
        except ProductError as refusal:
            return Failed("Refused", refusal.detail, is_final=True)
        except (httpx2.HTTPError, OSError, UnicodeError) as failure:
            target = parse_target(config.url)
            place = "" if target is None else f"{target.host}:{target.port}: "
            text = f"{place}{type(failure).__name__}: {failure}"
            return Failed("Unreachable", text[:SHOWN_CHARS])
        return _judged(answered, config)

    def _stand_in(self, config: ApiCallConfig) -> Any:
        target = parse_target(config.url)
        if target is None:
            return None
        return self._tools.catalogue.services.get(target.host, {}).get(target.path)

    async def _headers(self, call: StepCall, config: ApiCallConfig) -> dict[str, str]:
        named = {
            name: value for name, value in config.headers.items() if isinstance(value, SecretHeader)
        }
        values = await reveal(self._tools, call, {each.secret for each in named.values()})
        headers = {"User-Agent": "gpuplane-pipelines", "Idempotency-Key": call.idempotency_key}
        if config.body is not None:
            headers["Content-Type"] = "application/json"
        if call.traceparent:
            headers["traceparent"] = call.traceparent
        for name, value in config.headers.items():
            if name.lower() not in OURS:
                known = next((each for each in headers if each.lower() == name.lower()), name)
                headers.pop(known, None)
                headers[name] = (
                    value.prefix + values[value.secret]
                    if isinstance(value, SecretHeader)
                    else value
                )
        return headers


async def reveal(tools: StepTools, call: StepCall, names: set[str]) -> dict[str, str]:
    """Return secrets of a step's project by name; each access is an audited event.

    Raises:
        SecretNotFound: If the project has no secret of a name.
    """
    if not names:
        return {}
    found = await tools.database.write(
        "pipelines.reveal_secrets",
        lambda s: secrets.reveal_for_step(
            s,
            tools.sealing,
            call.step_id,
            ProjectId(call.project_id),
            names,
            f"pipeline:{call.context.get('pipeline', '')}",
            call.now,
        ),
    )
    return {name: each.value for name, each in found.items()}


async def send(
    tools: StepTools,
    method: str,
    url: str,
    headers: Mapping[str, str],
    content: bytes | None,
    timeout_s: float,
) -> Answered:
    """Send one request to an address that was checked, whatever the name says later.

    Raises:
        TargetRefused: If the address may not be called, or the answer is too long.
        TimeoutError: If there is no whole answer in time.
        httpx2.HTTPError: If the other side cannot be reached.
    """
    async with asyncio.timeout(timeout_s):
        answer = await outbound.send(
            tools.client, method, url, headers, content, tools.allowed_hosts
        )
        try:
            body = bytearray()
            async for chunk in answer.aiter_bytes():
                body += chunk
                if len(body) > tools.response_bytes:
                    raise TargetRefused(f"The answer is longer than {tools.response_bytes} bytes.")
        finally:
            await answer.aclose()
    return Answered(int(answer.status_code), dict(answer.headers), bytes(body))


def target_problem(tools: StepTools, url: str) -> str | None:
    """Return why a URL may not be called, as far as that is known without a look-up."""
    target = parse_target(url)
    if target is None:
        return "This is no http or https address."
    if target.host in tools.catalogue.services:
        return None
    reason = target_refusal(target, tools.allowed_hosts)
    return None if reason is None else f"It may not be called: {reason}."


def _with_query(url: str, query: Mapping[str, Any]) -> str:
    if not query:
        return url
    pairs = [
        (key, value if isinstance(value, str) else canonical(value))
        for key, given in query.items()
        for value in (given if isinstance(given, list) else [given])
        if value is not None
    ]
    return f"{url}{'&' if '?' in url else '?'}{urlencode(pairs)}"


def _within(timeout_s: float, call: StepCall) -> float:
    if call.deadline_at is None:
        return timeout_s
    return max(min(timeout_s, (call.deadline_at - call.now) / 1000), 0.001)


def _judged(answered: Answered, config: ApiCallConfig) -> Answer:
    good = config.success_codes
    if answered.status in good if good is not None else 200 <= answered.status < 300:
        return _completed(answered)
    shown = answered.body[:SHOWN_CHARS].decode(errors="replace")
    wait = answered.headers.get("retry-after", "")
    after = min(int(wait), MAX_RETRY_AFTER_S) * 1000 if wait.isdigit() else None
    return Failed(
        "BadStatus",
        f"The other side answered {answered.status}.",
        is_final=answered.status not in RETRIED,
        retry_after_ms=after,
        detail={"status": answered.status, "body": shown},
    )


def _completed(answered: Answered) -> Answer:
    """Return the outputs: a JSON object's fields, and beside them status and whole body."""
    text = answered.body.decode(errors="replace")
    try:
        body: Any = json.loads(text) if text else None
    except (ValueError, RecursionError):
        body = text
    fields = body if isinstance(body, dict) else {}
    return Completed({**fields, "status_code": answered.status, "body": body})
