"""HTTP of what jobs write: logs in ranges or followed, as text or as server-sent events."""

import codecs
import json
from collections.abc import AsyncIterator
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query, Request
from fastapi.responses import StreamingResponse

from gpuplane.backends.capabilities import ReadsLogs
from gpuplane.backends.interface import BackendError, LogChunk, OffsetGone, Stream
from gpuplane.core.lifecycle.jobs import Condition
from gpuplane.db.calls import Call, CallDep
from gpuplane.domains.jobs import service
from gpuplane.domains.jobs.endpoints.parts import able, audit, find_backend, ref_of
from gpuplane.domains.jobs.errors import LogsGone, TooManyFollowers
from gpuplane.domains.jobs.schemas import LogsOut
from gpuplane.domains.jobs.service import Attempt, Output
from gpuplane.kit.access import Permission, requires
from gpuplane.kit.errors import ProductError, Unavailable
from gpuplane.kit.feeds import Seats

router = APIRouter()

DEFAULT_BYTES = 65_536
MAX_BYTES = 1_048_576
MAX_OFFSET = 2**62
POLL_FIRST_S = 0.01
POLL_S = 0.1
POLL_GROWTH = 1.3
"""How often a follower looks for an attempt that has not begun: no event names one job's start."""
RECHECK_S = 15.0
"""How long a follower reads on after its token was revoked, at most."""
NOTHING_KEPT = "NothingKept"
"""The word of backends for output that was never written or is forgotten."""
STOPPING = "server_stopping"
EVENT_STREAM = "text/event-stream"
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}

Offset = Annotated[int, Query(ge=0, lt=MAX_OFFSET, description="Byte of the stream to begin at.")]
Number = Annotated[int | None, Query(ge=1, le=2**31 - 1, description="Which attempt; the latest.")]


@router.get(
    "/jobs/{job_id}/logs",
    response_model=LogsOut,
    responses={200: {"content": {EVENT_STREAM: {}, "text/plain": {}}}},
)
@requires(Permission.JOB_READ)
async def read_logs(
    call: CallDep,
    request: Request,
    job_id: UUID,
    rank: Annotated[
        int | None, Query(ge=0, le=10_000, description="The first that there is, unless told.")
    ] = None,
    stream: Stream = Stream.STDOUT,
    offset: Offset = 0,
    limit_bytes: Annotated[int, Query(ge=1, le=MAX_BYTES)] = DEFAULT_BYTES,
    attempt: Number = None,
    stderr_offset: Offset = 0,
    *,
    follow: Annotated[
        bool, Query(description="Stream both streams of every rank as they are written.")
    ] = False,
) -> LogsOut | StreamingResponse:
    """Return a range of one stream, or follow all of an attempt and of those after it.

    Unless told it is the latest attempt; a range is of the one before while that has not begun.
    """
    found = await call.read(lambda s: service.get_output(s, call.principal, job_id, attempt))
    follows = follow or EVENT_STREAM in request.headers.get("accept", "")
    if attempt is None and (found.is_last or not follows):
        latest = found
        found = await call.read(lambda s: service.last_written(s, latest))
    if follows:
        seats = call.port("log_followers", Seats)
        if seats.is_full:
            raise TooManyFollowers(
                f"{seats.limit} readers follow logs on this server already.",
                fix="Try again later, or read ranges: leave out `follow`.",
                retry_after_s=10,
            )
        is_events = EVENT_STREAM in request.headers.get("accept", "")
        followed = _follow(call, found, offset, stderr_offset, only_one=attempt is not None)
        chunks = _seated(call, seats, followed)
        return StreamingResponse(
            _events(chunks, seats) if is_events else _plain(chunks, seats),
            media_type=EVENT_STREAM if is_events else "text/plain; charset=utf-8",
            headers=HEADERS,
        )
    if rank is None:
        rank = 0 if found.attempt is None else next(iter(service.list_ranks(found.attempt)), 0)
    return await _range(call, found, rank, stream, offset, limit_bytes)


async def _range(
    call: Call, found: Output, rank: int, stream: Stream, offset: int, limit_bytes: int
) -> LogsOut:
    chunk: LogChunk | None = None
    if found.attempt is not None and found.attempt.ensured_at is not None:
        await audit(call, found, "job.logs_read", f"{call.principal.name} read its log.")
        reader = able(find_backend(call, found.attempt), ReadsLogs, "give logs back")  # type: ignore[type-abstract]  # a protocol is asked for
        try:
            chunk = await reader.read_logs(ref_of(found.attempt), rank, stream, offset, limit_bytes)
        except BackendError as error:
            raise _gone(error) from error
    data = b"" if chunk is None else chunk.data
    start = offset if chunk is None else chunk.offset
    text, used = _text(data, is_end=found.is_over and len(data) < limit_bytes)
    return LogsOut(
        job_id=found.job.id,
        attempt=0 if found.attempt is None else found.attempt.number,
        rank=rank,
        stream=str(stream),
        offset=start,
        next_offset=start + used,
        text=text,
        is_over=found.is_over and not data,
    )


def _text(data: bytes, *, is_end: bool) -> tuple[str, int]:
    """Return bytes as text and how many were used; half a character is left for the next range."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data, final=is_end)
    left = b"" if is_end else decoder.getstate()[0]
    return text, len(data) - len(left)


async def _seated(
    call: Call, seats: Seats, chunks: AsyncIterator[tuple[Attempt, LogChunk] | ProductError]
) -> AsyncIterator[tuple[Attempt, LogChunk] | ProductError]:
    """Yield what is followed, as long as the reader may still read it."""
    checked = call.clock.monotonic()
    with seats.taking():
        async for item in seats.until_closed(chunks):
            if call.clock.monotonic() - checked >= RECHECK_S:
                checked = call.clock.monotonic()
                try:
                    await call.recheck()
                except ProductError as error:
                    yield error
                    return
            yield item


async def _follow(
    call: Call, found: Output, stdout_offset: int, stderr_offset: int, *, only_one: bool
) -> AsyncIterator[tuple[Attempt, LogChunk] | ProductError]:
    """Yield what attempts write, one after another, until the job is over."""
    pause = POLL_FIRST_S
    while True:
        while found.attempt is None or (found.attempt.ensured_at is None and not found.is_over):
            if found.is_last or found.job.condition is Condition.PAUSED:
                return
            await call.clock.sleep(pause)
            pause = min(POLL_S, pause * POLL_GROWTH)
            before = found
            found = await call.read(lambda s, before=before: service.current(s, before))  # type: ignore[misc]  # bound now
        attempt = found.attempt
        if attempt.ensured_at is not None:
            await audit(call, found, "job.logs_followed", f"{call.principal.name} follows its log.")
            try:
                reader = able(find_backend(call, attempt), ReadsLogs, "give logs back")  # type: ignore[type-abstract]  # a protocol is asked for
                ranks = service.list_ranks(attempt)
                async for chunk in reader.follow_logs(
                    ref_of(attempt), ranks, stdout_offset, stderr_offset
                ):
                    yield attempt, chunk
            except BackendError as error:
                yield _gone(error)
                return
            except ProductError as error:
                yield error
                return
        if only_one:
            return
        stdout_offset = stderr_offset = 0
        last = found
        while True:
            found = await call.read(lambda s, last=last: service.next_attempt(s, last))  # type: ignore[misc]  # bound now
            paused = found.job.condition is Condition.PAUSED
            if found.attempt is not None:
                break
            if found.is_last or paused:
                return
            await call.clock.sleep(POLL_S)


async def _plain(
    chunks: AsyncIterator[tuple[Attempt, LogChunk] | ProductError], seats: Seats
) -> AsyncIterator[bytes]:
    async for item in chunks:
        if isinstance(item, ProductError):
            yield f"\n[{item.code}] {item.detail}\n".encode()
        else:
            yield item[1].data
    if seats.is_closed:
        yield f"\n[{STOPPING}] The server stops; the job goes on. Follow it again.\n".encode()


async def _events(
    chunks: AsyncIterator[tuple[Attempt, LogChunk] | ProductError], seats: Seats
) -> AsyncIterator[bytes]:
    """Yield server-sent events; text that ends within a character waits for its rest.

    A reader that is sent away because the server stops is told of no end: it connects again.
    """
    decoders: dict[tuple[UUID, int, str], codecs.IncrementalDecoder] = {}
    async for item in chunks:
        if isinstance(item, ProductError):
            said = {"code": item.code, "detail": item.detail, "fix": item.fix}
            yield f"event: error\ndata: {json.dumps(said)}\n\n".encode()
            continue
        attempt, chunk = item
        key = (attempt.id, chunk.rank, str(chunk.stream))
        decoder = decoders.setdefault(key, codecs.getincrementaldecoder("utf-8")("replace"))
        data = {
            "attempt": attempt.number,
            "rank": chunk.rank,
            "stream": str(chunk.stream),
            "offset": chunk.offset,
            "next_offset": chunk.offset + len(chunk.data),
            "at": chunk.at,
            "text": decoder.decode(chunk.data),
        }
        yield f"event: log\ndata: {json.dumps(data)}\n\n".encode()
    if not seats.is_closed:
        yield b"event: end\ndata: {}\n\n"


def _gone(error: BackendError) -> ProductError:
    if isinstance(error, OffsetGone):
        return LogsGone(
            f"{error.message}.",
            field="offset",
            fix=f"Begin at {error.oldest_offset}.",
            extra={"oldest_offset": error.oldest_offset},
        )
    if error.word == NOTHING_KEPT:
        return LogsGone(f"{error.message}.", fix="Its output was never written or is pruned.")
    return Unavailable(
        f"{error.message.rstrip('.')}.",
        code="logs_unavailable",
        fix="Try again once its cluster answers: `gpuplane clusters ls` says which do.",
        retry_after_s=2,
    )
