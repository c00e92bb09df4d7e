"""One authenticated request on its way through an endpoint: who, when, and the way to the database.

`write` makes idempotency atomic: the shaped answer is stored in the transaction it answers for.
"""

import asyncio
import base64
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar, cast

from fastapi import Depends, Request
from pydantic import BaseModel

from gpuplane.db.database import Database
from gpuplane.db.idempotency import StoredAnswer, store_answer
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.db.units import Gathered
from gpuplane.kit.access import Principal
from gpuplane.kit.bodies import SecretBody
from gpuplane.kit.clock import Clock
from gpuplane.kit.sealing import SealingKeys

T = TypeVar("T")
Shaped = TypeVar("Shaped", bound=BaseModel)
Item = TypeVar("Item")


@dataclass(slots=True)
class Call:
    """What every endpoint is given; `ports` holds what the composition root offers endpoints."""

    database: Database
    clock: Clock
    principal: Principal
    request_id: str
    traceparent: str | None = None
    idempotency_key: str | None = None
    request_hash: str = ""
    ports: dict[str, Any] = field(default_factory=dict)
    authenticate: Callable[[], Awaitable[Principal]] | None = None
    """Asks once more who is behind the request; for answers that last (streams, followed logs)."""
    is_costly: bool = False
    """Whether it has done what its rate is limited for: one refused before does not count."""

    @property
    def now(self) -> int:
        """Return the current instant in milliseconds."""
        return self.clock.now_ms()

    @property
    def idempotency_scope(self) -> str:
        """Return within what a key is unique: the user, so that nobody reads another's answer."""
        return str(self.principal.user_id)

    async def read(self, query: Callable[[ReadSession], T]) -> T:
        """Run a query on one consistent view."""
        return await self.database.read(query)

    async def write(
        self,
        name: str,
        unit: Callable[[WriteSession], T],
        shape: Callable[[T], Shaped],
        status: int = 200,
    ) -> Shaped:
        """Run a unit of work, shape its result, and keep the answer under the request's key.

        Args:
            name: `domain.verb` of the unit; also its failpoint and metric.
            unit: What to do; refused work raises a ProductError and leaves nothing behind.
            shape: Makes the API body from the unit's result.
            status: The HTTP status stored with the answer; the same as the endpoint's.
        """

        def run(session: WriteSession) -> Shaped:
            body = shape(unit(session))
            _keep_answers(session, [(self, body)], status)
            return body

        await self._prepare_keys()
        return await self.database.write(name, run)

    async def write_gathered(self, gathered: Gathered[Item, Shaped], item: Item) -> Shaped:
        """Run a gathered unit made with `answered` for one item of this call."""
        await self._prepare_keys()
        return await self.database.write_gathered(gathered, item)

    async def _prepare_keys(self) -> None:
        """Make the sealing key of a first start, if an answer may be kept: not in the writer."""
        keeps = self.idempotency_key is not None and "sealing" in self.ports
        if keeps and not self.sealing.is_ready:
            await asyncio.to_thread(self.sealing.key_ids)

    @property
    def sealing(self) -> SealingKeys:
        """Return the keys that seal secrets at rest."""
        return self.port("sealing", SealingKeys)

    async def seal(self, plain: bytes, context: str) -> bytes:
        """Return a sealed secret; on a thread, for the first one waits until a key is made."""
        return await asyncio.to_thread(self.sealing.seal, plain, context)

    async def recheck(self) -> None:
        """Raise Unauthenticated if the caller's token no longer holds."""
        if self.authenticate is not None:
            self.principal = await self.authenticate()

    def port(self, name: str, kind: type[T]) -> T:
        """Return a named part that the composition root offers to endpoints."""
        value = self.ports[name]
        if not isinstance(value, kind):
            raise TypeError(f"port {name!r} is {type(value).__name__}, not {kind.__name__}")
        return value


def answered(
    work: Callable[[WriteSession, Sequence[Item]], Sequence[Shaped | Exception]],
    call_of: Callable[[Item], Call],
    status: int,
) -> Callable[[WriteSession, Sequence[Item]], Sequence[Shaped | Exception]]:
    """Return the work of a gathered unit that also keeps each answer under its request's key.

    Args:
        work: Returns each item's API body, or why it is refused.
        call_of: The call that brought an item.
        status: The HTTP status stored with the answers; the same as the endpoint's.
    """

    def run(session: WriteSession, items: Sequence[Item]) -> Sequence[Shaped | Exception]:
        outcomes = work(session, items)
        told = [
            (call_of(item), outcome)
            for item, outcome in zip(items, outcomes, strict=True)
            if not isinstance(outcome, Exception)
        ]
        _keep_answers(session, told, status)
        return outcomes

    return run


def _keep_answers(
    session: WriteSession, told: Sequence[tuple[Call, BaseModel]], status: int
) -> None:
    """Store the answers of calls that carry a key, in the transaction they answer for."""
    for call, body in told:
        if call.idempotency_key is not None:
            store_answer(
                session,
                call.idempotency_scope,
                call.idempotency_key,
                StoredAnswer(call.request_hash, status, _kept(call, body)),
                call.now,
            )


def _kept(call: Call, body: BaseModel) -> str:
    """Return an answer as it is kept for replays: sealed if it shows a secret."""
    text = body.model_dump_json(by_alias=True)
    if not isinstance(body, SecretBody):
        return text
    sealed = call.sealing.seal(text.encode(), f"answer/{call.idempotency_key}")
    return _SEALED + base64.b64encode(sealed).decode()


def open_answer(call: Call, kept: str) -> str:
    """Return the answer that was kept, as it was first given."""
    if not kept.startswith(_SEALED):
        return kept
    sealed = base64.b64decode(kept.removeprefix(_SEALED))
    return call.sealing.open(sealed, f"answer/{call.idempotency_key}").decode()


_SEALED = "sealed:"


async def get_call(request: Request) -> Call:
    """Return the call that the authentication layer put on this request.

    Waits for nothing; a plain function would be run on a thread for each request.
    """
    return cast("Call", request.state.call)


CallDep = Annotated[Call, Depends(get_call)]
