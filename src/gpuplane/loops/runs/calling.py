"""One call of a handler: typed input, time, what it may answer, and what is stored of that."""

import asyncio
import dataclasses
import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from gpuplane.core.runs.boards import Reply
from gpuplane.core.runs.plans import (
    Answer,
    Awaiting,
    Completed,
    Expanding,
    Failed,
    Skipped,
    Sleeping,
    StepCall,
)
from gpuplane.domains.runs.service import Claimed, Registered
from gpuplane.kit.depths import MAX_JSON_DEPTH, is_deeper

log = logging.getLogger("gpuplane.runs")

ANSWERS = (Completed, Failed, Skipped, Sleeping, Awaiting, Expanding)
MESSAGE_CHARS = 2_000
STOP_TIMEOUT_S = 60.0
"""How long a handler may take to end what it began."""

_encoder = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True)
class CacheKey:
    """Under what an output is kept for equal input, and the parts of it that can differ."""

    key: str
    salt_hash: str
    input_hash: str


def cache_key_of(registered: Registered, call: StepCall, salt: str) -> CacheKey:
    """Return under what this call's output is kept.

    Raises:
        TypeError: If the input cannot be written as JSON.
    """
    told = call.input if registered.cache_input is None else registered.cache_input(call)
    text = msgspec.json.encode(told, order="deterministic")
    input_hash = hashlib.sha256(text).hexdigest()
    salt_hash = hashlib.sha256(salt.encode()).hexdigest()
    whole = f"{registered.name}\0{input_hash}\0{salt_hash}"
    return CacheKey(hashlib.sha256(whole.encode()).hexdigest(), salt_hash, input_hash)


async def call_handler(
    registered: Registered, claimed: Claimed, call: StepCall, now: Callable[[], int]
) -> Answer:
    """Call a handler and return its answer; whatever goes wrong is a failed try.

    Raises:
        asyncio.CancelledError: If the call was cancelled from outside.
    """
    if claimed.late:
        return too_late(claimed)
    try:
        typed = _typed(registered.input_type, call)
    except msgspec.ValidationError as error:
        return Failed("BadInput", f"The input is not what the handler takes: {error}", True)
    work = registered.on_cancel if claimed.stopping else registered.call
    assert work is not None, "only handlers that can stop are told to"
    left = _seconds_left(claimed, now())
    try:
        async with asyncio.timeout(left):
            answer = await work(typed)
    except TimeoutError as error:
        if left is not None:
            return (
                Failed("StopFailed", "It took too long.") if claimed.stopping else too_late(claimed)
            )
        return _broken(registered, call, error)
    except Exception as error:  # noqa: BLE001 - a handler's mistake is its step's failure
        return _broken(registered, call, error)
    return _checked(registered, answer)


def _seconds_left(claimed: Claimed, now: int) -> float | None:
    if claimed.stopping:
        return STOP_TIMEOUT_S
    expires_at = claimed.step.expires_at  # the end of the run's time is the engine's business
    return None if expires_at is None else max(0.0, (expires_at - now) / 1000)


def too_late(claimed: Claimed) -> Failed:
    """Return the answer of an attempt that took too long."""
    return Failed("TimedOut", f"The attempt took longer than {claimed.step.spec.timeout_ms} ms.")


def _typed(kind: Any, call: StepCall) -> StepCall:
    if kind is None:
        return call
    return dataclasses.replace(call, input=msgspec.convert(call.input, kind))


def _broken(registered: Registered, call: StepCall, error: Exception) -> Failed:
    place = (registered.name, call.key, call.run_id)
    log.error("handler %s failed at step %s of run %s", *place, exc_info=error)
    text = f"{type(error).__name__}: {error}"
    return Failed("HandlerError", text[:MESSAGE_CHARS])


def _checked(registered: Registered, answer: Any) -> Answer:
    """Return an answer if it is one of the kinds, and its output of the type that was promised."""
    if not isinstance(answer, ANSWERS):
        kind = type(answer).__name__
        return Failed("BadAnswer", f"The handler answered with {kind}, which is no answer.", True)
    known: Answer = answer
    if isinstance(known, Completed) and registered.output_type is not None:
        try:
            msgspec.convert(msgspec.to_builtins(known.output), registered.output_type)
        except (msgspec.ValidationError, TypeError) as error:
            return Failed("BadOutput", f"The output is not what was promised: {error}", True)
    return known


def reply_of(claimed: Claimed, answer: Answer, limit_bytes: int, chance: float) -> Reply:
    """Return what is stored of an answer; one that cannot be stored is a failed try."""
    output = state = None
    try:
        if isinstance(answer, Completed) and answer.output is not None:
            output = _encoder.encode(answer.output).decode()
        elif isinstance(answer, Sleeping | Awaiting | Expanding) and answer.state is not None:
            state = _encoder.encode(answer.state).decode()
        elif isinstance(answer, Expanding):
            _encoder.encode(answer.children)
    except (TypeError, ValueError, RecursionError) as error:
        answer = Failed("BadOutput", f"The answer cannot be written as JSON: {error}", True)
        output = state = None
    size = len(output or state or "")
    if size > limit_bytes:
        what = "output" if output is not None else "state"
        answer = Failed(
            "OutputTooLarge",
            f"The {what} has {size} bytes; a step may keep {limit_bytes}. "
            "Write large data to an artifact and hand on where it lies.",
            True,
        )
        output = state = None
    if not isinstance(answer, Failed) and _is_deep(output or state or ""):
        what = "output" if output is not None else "state"
        answer = Failed(
            "OutputTooDeep",
            f"The {what} nests deeper than {MAX_JSON_DEPTH} levels, more than anybody could read. "
            "Flatten it, or write it to an artifact as text.",
            True,
        )
        output = state = None
    return Reply(
        claimed.step.run_id,
        claimed.step.id,
        claimed.epoch,
        _short(answer),
        near_of(claimed),
        output,
        state,
        chance,
    )


def _is_deep(text: str) -> bool:
    """Return whether JSON that was just written nests too deep; most has too few brackets."""
    if text.count("[") + text.count("{") <= MAX_JSON_DEPTH:
        return False
    try:
        return is_deeper(msgspec.json.decode(text))
    except RecursionError:
        return True


def near_of(claimed: Claimed) -> tuple[int, ...]:
    """Return the numbers of a step's parent and of those that wait for it."""
    step = claimed.step
    return (*step.followers, step.parent) if step.parent else step.followers


def _short(answer: Answer) -> Answer:
    """Cut what people are told to a length that a row and an event can hold."""
    if isinstance(answer, Failed):
        return Failed(
            answer.word[:100],
            answer.message[:MESSAGE_CHARS],
            answer.is_final,
            answer.retry_after_ms,
        )
    return answer
