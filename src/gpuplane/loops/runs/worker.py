"""What a worker has at hand: handlers at work, answers not stored yet, and how calls are made."""

import asyncio
import dataclasses
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from uuid import UUID

from gpuplane.core.lifecycle.runs import StepStatus
from gpuplane.core.runs.boards import UNREADABLE, Reply
from gpuplane.core.runs.plans import Answer, ChildResult, Completed, Failed, StepCall
from gpuplane.db.database import Database
from gpuplane.db.sessions import ReadSession
from gpuplane.domains.runs import service as runs
from gpuplane.domains.runs.service import Claimed, Registered
from gpuplane.kit.clock import Clock, instant_to_text
from gpuplane.kit.tasks import end_tasks
from gpuplane.loops.runs.calling import CacheKey, cache_key_of, call_handler, near_of, reply_of
from gpuplane.loops.runs.memory import Memories, Outputs, RunMemory, learn_graph, numbers_of
from gpuplane.loops.runs.meters import RunMeters

DAMAGED = Failed("Unreadable", "What was planned cannot be read from the database any more.", True)


@dataclass(slots=True, eq=False)
class AtWork:
    """One handler at work."""

    claimed: Claimed
    task: "asyncio.Task[None] | None" = None
    revoked: bool = False


class Workbench:
    """Runs claimed steps as tasks and collects their answers."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        handlers: runs.Handlers,
        meters: RunMeters,
        output_bytes: int,
        answered: Callable[[], None],
    ) -> None:
        """Make an empty one.

        Args:
            database: Where outputs and children are read.
            clock: The time.
            handlers: Who does steps.
            meters: Where calls are counted.
            output_bytes: What a step may keep.
            answered: Called when there is an answer to store.
        """
        self._database = database
        self._clock = clock
        self._handlers = handlers
        self._meters = meters
        self._output_bytes = output_bytes
        self._answered = answered
        self._chance = random.Random()
        self._seats: dict[str, asyncio.Semaphore] = {}
        self.memories = Memories()
        self.at_work: dict[tuple[UUID, int], AtWork] = {}
        self.busy: dict[UUID, int] = {}
        self.replies: list[Reply] = []

    async def begin(self, claimed: Sequence[Claimed]) -> None:
        """Start the handlers of steps that were claimed; what they need is read together."""
        await self._remember(claimed)
        children = await self._children_of(claimed)
        for each in claimed:
            key = (each.step.id, each.epoch)
            work = AtWork(each)
            self.at_work[key] = work
            self.busy[each.step.run_id] = self.busy.get(each.step.run_id, 0) + 1
            call = self._call_of(each, children.get(each.step.id, ()))
            work.task = asyncio.create_task(self._do(work, call))
        self._meters.running.set(len(self.at_work))

    async def _do(self, work: AtWork, call: StepCall) -> None:
        claimed = work.claimed
        began = time.perf_counter()
        try:
            registered = self._handlers.find(claimed.step.handler)
            assert registered is not None, "only known handlers are claimed"
            if self._is_damaged(claimed):
                reply = self._reply(claimed, DAMAGED)
            elif registered.at_once is None or claimed.stopping:
                reply = await self._answer(registered, claimed, call)
            else:
                async with self._seats_of(registered.name, registered.at_once):
                    reply = await self._answer(registered, claimed, call)
        except asyncio.CancelledError:
            self._leave(work)
            if not work.revoked:
                raise
            return
        self._leave(work)
        self._meters.step_time.labels(registered.name).observe(time.perf_counter() - began)
        word = type(reply.answer).__name__.lower()
        self._meters.steps.labels(registered.name, word).inc()
        self.replies.append(reply)
        self._answered()

    async def _answer(self, registered: Registered, claimed: Claimed, call: StepCall) -> Reply:
        rule = claimed.step.spec.cache
        first = claimed.state is None and not claimed.joined and claimed.event is None
        if rule is None or claimed.stopping or claimed.late:
            answer = await call_handler(registered, claimed, call, self._clock.now_ms)
            return self._reply(claimed, answer)
        key = cache_key_of(registered, call, rule.salt)
        note = claimed.step.cache_note
        if first:
            found, last = await self._database.read(
                lambda s: runs.find_output(
                    s, call.project_id, key.key, registered.name, claimed.step.key
                )
            )
            age_ms = None if found is None else call.now - found.at
            if found is not None and age_ms is not None and age_ms <= rule.keep_ms:
                return _from_cache(claimed, found)
            note = miss_note(key, found, last)
        answer = await call_handler(registered, claimed, call, self._clock.now_ms)
        reply = self._reply(claimed, answer)
        return dataclasses.replace(
            reply,
            cache_note=note,
            cache_key=key.key,
            cache_parts=(key.salt_hash, key.input_hash),
        )

    def _seats_of(self, name: str, count: int) -> asyncio.Semaphore:
        if name not in self._seats:
            self._seats[name] = asyncio.Semaphore(count)
        return self._seats[name]

    def _is_damaged(self, claimed: Claimed) -> bool:
        memory = self.memories.find(claimed.step.run_id)
        readable = memory is None or memory.head.is_readable
        return claimed.step.spec.handler == UNREADABLE or not readable

    def _reply(self, claimed: Claimed, answer: Answer) -> Reply:
        return reply_of(claimed, answer, self._output_bytes, self._chance.uniform(-1, 1))

    def _leave(self, work: AtWork) -> None:
        claimed = work.claimed
        self.at_work.pop((claimed.step.id, claimed.epoch), None)
        left = self.busy.get(claimed.step.run_id, 1) - 1
        if left:
            self.busy[claimed.step.run_id] = left
        else:
            self.busy.pop(claimed.step.run_id, None)

    def revoke(self, claims: Sequence[tuple[UUID, int]]) -> None:
        """Cancel handlers whose claims hold no more."""
        for key in claims:
            work = self.at_work.get(key)
            if work is not None and work.task is not None:
                work.revoked = True
                work.task.cancel()

    def revoke_others(self, owned: dict[UUID, int]) -> None:
        """Cancel every handler whose step is not this worker's any more."""
        self.revoke([key for key in self.at_work if owned.get(key[0]) != key[1]])

    async def stop(self) -> None:
        """Cancel everything and wait for it; the steps are begun again by whoever comes next."""
        tasks = [work.task for work in self.at_work.values() if work.task is not None]
        for work in self.at_work.values():
            work.revoked = True
        await end_tasks(tasks)
        self.at_work.clear()
        self.busy.clear()
        self.replies.clear()

    # -- what a call is told -------------------------------------------------------------------

    def note_stored(self, reply: Reply) -> None:
        """Remember the output of a step that is over now."""
        memory = self.memories.find(reply.run_id)
        if memory is not None and isinstance(reply.answer, Completed):
            memory.learn_output(reply.step_id.int & 0xFFFFFF, reply.output)

    async def _remember(self, claimed: Sequence[Claimed]) -> None:
        """Read what calls of these steps need and is not remembered."""
        unknown = self.memories.unknown(each.step.run_id for each in claimed)
        if unknown:
            self.memories.learn(await self._database.read(lambda s: runs.load_heads(s, unknown)))
        for each in claimed:
            registered = self._handlers.find(each.step.handler)
            memory = self.memories.find(each.step.run_id)
            assert memory is not None, "its head was just read"
            if registered is not None and registered.reads_outputs:
                await self._remember_outputs(memory, each)

    async def _remember_outputs(self, memory: RunMemory, claimed: Claimed) -> None:
        run_id, seq = claimed.step.run_id, claimed.step.seq
        if seq not in memory.needs:
            rows = await self._database.read(partial(runs.load_graph, run_id=run_id))
            learn_graph(memory, rows)
        lacking = memory.visible(seq) & ~memory.known
        if lacking:
            numbers = list(numbers_of(lacking))
            found = await self._database.read(
                partial(runs.load_outputs, run_id=run_id, seqs=numbers)
            )
            for number, (_, output) in found.items():
                memory.learn_output(number, output)

    async def _children_of(self, claimed: Sequence[Claimed]) -> dict[UUID, tuple[ChildResult, ...]]:
        joined = [each.step for each in claimed if each.joined]
        if not joined:
            return {}

        def query(session: ReadSession) -> dict[UUID, tuple[ChildResult, ...]]:
            return {
                step.id: tuple(
                    ChildResult(key, StepStatus(status), output, message)
                    for key, status, output, message in runs.load_children(
                        session, step.run_id, step.seq
                    )
                )
                for step in joined
            }

        return await self._database.read(query)

    def _call_of(self, claimed: Claimed, children: tuple[ChildResult, ...]) -> StepCall:
        run, step = claimed.run, claimed.step
        memory = self.memories.find(run.id)
        assert memory is not None, "it was remembered before"
        registered = self._handlers.find(step.handler)
        reads = registered is not None and registered.reads_outputs
        return StepCall(
            run_id=run.id,
            step_id=step.id,
            key=step.key,
            name=step.spec.name or step.key,
            tenant_id=run.tenant_id,
            project_id=run.project_id,
            idempotency_key=f"{run.id}/{step.key}#{step.generation}",
            attempt=claimed.attempt,
            now=self._clock.now_ms(),
            input=step.spec.input,
            params=memory.head.params,
            context=memory.head.context,
            scope=step.spec.scope,
            outputs=Outputs(memory, memory.visible(step.seq)) if reads else {},
            state=runs.decode(claimed.state),
            event=runs.decode(claimed.event),
            timed_out=claimed.timed_out,
            children=children,
            deadline_at=claimed.expires_at,
            traceparent=memory.head.traceparent,
        )


def _from_cache(claimed: Claimed, found: "runs.KeptOutput") -> Reply:
    """Return the answer that an earlier step gave to the same input."""
    note = (
        f"Hit: {found.step_key} of run {found.run_id} had the same input "
        f"at {instant_to_text(found.at)}."
    )
    output = found.output
    return Reply(
        claimed.step.run_id,
        claimed.step.id,
        claimed.epoch,
        Completed(),
        near_of(claimed),
        output,
        cache_note=note,
        from_cache=True,
    )


def miss_note(
    key: CacheKey, found: "runs.KeptOutput | None", last: "runs.KeptOutput | None"
) -> str:
    """Return why no earlier output could be taken."""
    if found is not None:
        return f"Miss: the output of {instant_to_text(found.at)} is too old."
    if last is None:
        return "Miss: no output of this step is kept."
    if last.input_hash != key.input_hash:
        return f"Miss: the input differs from that of {instant_to_text(last.at)}."
    return f"Miss: the salt differs from that of {instant_to_text(last.at)}."
