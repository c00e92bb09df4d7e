"""A kind of one cluster, kept in memory and kept fresh: list, then watch, list again on a gap.

Every change is delivered once and in the order of the server. An informer that cannot reach its
cluster keeps what it knew, says since when, and tries again with growing pauses; informers share
nothing, so that a slow cluster slows nobody. What is kept is what `decode` and `convert` keep.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, TypeVar

import msgspec

from gpuplane.kit.clock import Clock, SystemClock
from gpuplane.kube.errors import Forbidden, Gone, KubeError, NotThere, Unreachable, Unreadable
from gpuplane.kube.indexes import Index, Key
from gpuplane.kube.kinds import Kind
from gpuplane.kube.readers import KubeReader, Selector, turn_page
from gpuplane.kube.watching import Mark, decode_object

log = logging.getLogger("gpuplane.kube")

T = TypeVar("T")

RESYNC_S = 180
"""The specification's three minutes: the watch is opened anew and everything looked at again."""
RELIST_S = 3_600
"""A whole list so often, against whatever a watch may have missed unnoticed."""
BACKOFF_FIRST_S = 0.5
BACKOFF_LAST_S = 30.0
AWAY_LAST_S = 5.0
"""The same for a server that nobody reaches: a try costs it nothing, and it is heard of soon."""
SHORTEST_WATCH_S = 1.0
"""A watch that ends earlier without an event is a server, or a proxy, that cannot watch."""
MAX_OBJECTS = 500_000
SLICE = 50
"""So many objects are taken before others on the event loop have their turn."""


class ChangeKind(StrEnum):
    """What happened to an object."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    RESYNCED = "RESYNCED"


@dataclass(frozen=True, slots=True)
class Change(Generic[T]):
    """One change of one object.

    Attributes:
        kind: What happened; RESYNCED says again what is there.
        namespace: Of the object, empty where its kind has none.
        name: Of the object.
        old: As it was, None where it is new.
        new: As it is, None where it is gone.
    """

    kind: ChangeKind
    namespace: str
    name: str
    old: T | None
    new: T | None


@dataclass(slots=True)
class InformerState:
    """How an informer does.

    Attributes:
        synced: Whether the whole list was read once.
        lists: Whole lists that were read.
        watches: Watches that were opened.
        events: Changes that came by watches.
        unreadable: Objects that did not have the shape and were left out.
        failures: In a row.
        last_error: Of the last failure, empty since it works again.
        is_forbidden: Whether that was for want of the right to read.
        heard_at: When the server was heard of last, on the clock's monotonic scale.
    """

    synced: bool = False
    lists: int = 0
    watches: int = 0
    events: int = 0
    unreadable: int = 0
    failures: int = 0
    last_error: str = ""
    is_forbidden: bool = False
    heard_at: float | None = None


class _Gap(Exception):
    """The watch does not follow on what was there."""


class Informer(Generic[T]):
    """Objects of one kind, as they are now."""

    def __init__(
        self,
        client: KubeReader,
        kind: Kind,
        *,
        namespace: str | None = None,
        labels: Selector = None,
        fields: Selector = None,
        decode: Any = dict[str, Any],
        convert: Callable[[Any], T] | None = None,
        resync_s: int = RESYNC_S,
        relist_s: int = RELIST_S,
        max_objects: int = MAX_OBJECTS,
        clock: Clock | None = None,
    ) -> None:
        """Read nothing yet.

        Args:
            client: Of the cluster.
            kind: What to keep.
            namespace: All where None.
            labels: Those that carry these.
            fields: Those whose fields are so.
            decode: The type that objects are decoded into: `dict[str, Any]`, or a Struct with
                `metadata` as in `kube.shapes`.
            convert: Makes what is kept of what was decoded; pure.
            resync_s: How often the watch is opened anew and callbacks see all objects again.
            relist_s: How often everything is listed again.
            max_objects: More are an error that the state tells; memory stays bounded.
            clock: For pauses and ages.
        """
        self.kind = kind
        self.namespace = namespace
        self.state = InformerState()
        self._client = client
        self._labels, self._fields = labels, fields
        self._decode, self._convert = decode, convert
        self._resync_s, self._relist_s = resync_s, relist_s
        self._max_objects = max_objects
        self._clock = clock or SystemClock()
        self._entries: dict[Key, tuple[str, T]] = {}
        self._indexes: dict[str, Index[T]] = {}
        self._callbacks: list[Callable[[Change[T]], None]] = []
        self._generation = 0
        self._waiters: set[asyncio.Future[None]] = set()
        self._synced = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._version: str | None = None
        self._listed_at = 0.0
        self._resynced_at = self._clock.monotonic()
        self._gaps = 0
        self._is_away = False
        self._on_return: Callable[[], None] | None = None

    # Before it is started

    def add_index(self, name: str, keys_of: Callable[[T], Iterable[Hashable]]) -> None:
        """Have objects found by what this function gives for each, pure, no, one or more keys."""
        index: Index[T] = Index(keys_of)
        for key, (_, value) in self._entries.items():
            index.put(key, value)
        self._indexes[name] = index

    def on_change(self, callback: Callable[[Change[T]], None]) -> None:
        """Have a function called on the event loop with each change, in order.

        It must be quick and must not wait; what it raises is logged and does not stop the rest.
        """
        self._callbacks.append(callback)

    def on_return(self, callback: Callable[[], None]) -> None:
        """Have a function called on the event loop when the server is heard of again."""
        self._on_return = callback

    def start(self) -> None:
        """Begin to read; does nothing when it has begun."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"informer:{self.kind}")

    async def stop(self) -> None:
        """Stop reading; what was kept stays."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    # What is there

    @property
    def synced(self) -> bool:
        """Whether everything was read once."""
        return self.state.synced

    @property
    def generation(self) -> int:
        """A number that grows with each change."""
        return self._generation

    async def wait_synced(self, timeout_s: float) -> bool:
        """Return whether everything is read within so long."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._synced.wait()
        except TimeoutError:
            return False
        return True

    def get(self, namespace: str | None, name: str) -> T | None:
        """Return an object, or None."""
        entry = self._entries.get((namespace or "", name))
        return None if entry is None else entry[1]

    def items(self) -> list[T]:
        """Return all objects."""
        return [value for _, value in list(self._entries.values())]

    def __len__(self) -> int:
        return len(self._entries)

    def by_index(self, name: str, key: Hashable) -> list[T]:
        """Return the objects for which an index gives this key, in the order of their names."""
        found = sorted(self._indexes[name].find(key))
        return [entry[1] for one in found if (entry := self._entries.get(one)) is not None]

    def silent_s(self) -> float | None:
        """Return how long the server was not heard of, None where it never was."""
        heard = self.state.heard_at
        return None if heard is None else self._clock.monotonic() - heard

    async def wait_changed(self, timeout_s: float, *, since: int | None = None) -> bool:
        """Return True at the next change, or False after so long without one.

        Args:
            timeout_s: At most.
            since: A `generation` that the caller has seen: a change after it counts at once, so
                that none between looking and waiting is lost.
        """
        if since is not None and self._generation > since:
            return True
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            async with asyncio.timeout(timeout_s):
                await waiter
        except TimeoutError:
            return False
        finally:
            self._waiters.discard(waiter)
        return True

    # Keeping it fresh

    async def _run(self) -> None:
        while True:
            try:
                await self._turn()
                continue
            except (Gone, _Gap) as reason:
                self._version = None
                self._gaps += 1
                if self._gaps == 1:  # one is the way of watches, no trouble
                    log.info("%s are listed again: %s", self.kind, reason)
                    continue
                self._failed(str(reason))
            except NotThere as error:
                self._version = None
                self._keep_only(set())  # the kind is gone, and all of its objects with it
                self._failed(str(error))
            except Unreadable as error:
                self._version = None
                self._failed(str(error))
            except KubeError as error:
                self._failed(str(error))
                self._is_away = isinstance(error, Unreachable)
                self.state.is_forbidden = isinstance(error, Forbidden)
            except Exception as error:
                log.exception("an informer of %s failed", self.kind)
                self._version = None
                self._failed(f"{type(error).__name__} while reading {self.kind}")
            await self._clock.sleep(self._pause_s())

    async def _turn(self) -> None:
        """List if there is need, then watch until the server ends it."""
        now = self._clock.monotonic()
        if self._version is None or now - self._listed_at >= self._relist_s:
            await self._list()
        began, events = self._clock.monotonic(), self.state.events
        await self._watch()
        now = self._clock.monotonic()
        if now - began < SHORTEST_WATCH_S and events == self.state.events:
            raise Unreachable("The server ended the watch as soon as it was opened.")
        if now - self._resynced_at >= self._resync_s * 0.9:
            self._resynced_at = now
            await self._resync()

    def _failed(self, why: str) -> None:
        self._is_away = self.state.is_forbidden = False
        self.state.failures += 1
        if why != self.state.last_error:  # once, not at each try
            log.warning("%s cannot be read: %s", self.kind, why)
        self.state.last_error = why

    def _heard(self) -> None:
        self.state.heard_at = self._clock.monotonic()
        has_returned = self.state.failures > 0
        self.state.failures = 0
        self.state.last_error = ""
        self.state.is_forbidden = False
        if has_returned and self._on_return is not None:
            self._on_return()

    def _pause_s(self) -> float:
        """Return a pause that grows with the failures, spread so that informers do not march."""
        tries = max(self.state.failures, self._gaps, 1)
        last_s = AWAY_LAST_S if self._is_away else BACKOFF_LAST_S
        longest = min(last_s, BACKOFF_FIRST_S * 2.0 ** min(tries - 1, 10))
        return longest * random.uniform(0.5, 1.0)

    async def _list(self) -> None:
        """Read everything, and deliver how it differs from what was known."""
        seen: set[Key] = set()
        token: str | None = None
        turned: set[str] = set()
        while True:
            page = await self._client.list_page(
                self.kind,
                msgspec.Raw,
                self.namespace,
                self._labels,
                self._fields,
                continue_token=token,
            )
            for count, data in enumerate(page.items or (), 1):
                try:
                    seen.add(self._put(decode_object(data, self._decode)))
                except Unreadable as error:
                    self._skip(error)
                if count % SLICE == 0:
                    await asyncio.sleep(0)
            if len(seen) > self._max_objects:
                raise Unreadable(f"There are more than {self._max_objects} {self.kind}.")
            token = page.metadata.continue_
            if not token:
                break
            turn_page(token, turned)
        self._keep_only(seen)
        self._version = page.metadata.resource_version
        self._listed_at = self._clock.monotonic()
        self.state.lists += 1
        self.state.synced = True
        self._heard()
        self._synced.set()
        self._tell_waiters()

    def _keep_only(self, seen: set[Key]) -> None:
        for key in [key for key in self._entries if key not in seen]:
            self._drop(key)

    async def _watch(self) -> None:
        version = self._version or ""
        position = _number(version)
        self.state.watches += 1
        timeout_s = max(1, round(self._resync_s * random.uniform(0.9, 1.1)))
        stands: asyncio.TimerHandle | None = None

        def taken() -> None:
            # A server that takes the watch and keeps it is heard of, before anything changes there.
            nonlocal stands
            stands = asyncio.get_running_loop().call_later(SHORTEST_WATCH_S, self._heard)

        events = self._client.watch_as(
            self.kind,
            self._decode,
            self.namespace,
            self._labels,
            self._fields,
            resource_version=version,
            timeout_s=timeout_s,
            on_open=taken,
        )
        try:
            async with contextlib.aclosing(events):
                async for word, obj in events:
                    self._heard()
                    self._gaps = 0
                    if isinstance(obj, Mark):
                        version = obj.resource_version
                        if word == "UNREADABLE":
                            self._skip()
                    else:
                        _, _, version = _identity(obj)
                        if (at := _number(version)) < position:
                            raise _Gap(f"version {at} came after {position}")
                        self._take(word, obj)
                    position = _number(version)
                    self._version = version
        except Unreachable as error:
            if stands is None or error.reason != "Timeout":
                raise
            log.debug("the watch of %s said nothing for long and is opened anew", self.kind)
        finally:
            if stands is not None:
                stands.cancel()

    def _skip(self, error: Unreadable | None = None) -> None:
        """Leave an object out: one that nobody foresaw must not hide ten thousand others."""
        self.state.unreadable += 1
        if self.state.unreadable == 1:  # the state counts the others
            why = error or "it does not have the shape that is read here"
            cause = None if error is None else error.__cause__  # what `convert` raised
            log.warning("one of %s is left out: %s", self.kind, why, exc_info=cause)

    def _take(self, word: str, obj: Any) -> None:
        self.state.events += 1
        if word == "DELETED":
            namespace, name, _ = _identity(obj)
            self._drop((namespace, name))
        elif word in ("ADDED", "MODIFIED"):
            try:
                self._put(obj)
            except Unreadable as error:
                self._skip(error)
            if len(self._entries) > self._max_objects:
                raise Unreadable(f"There are more than {self._max_objects} {self.kind}.")
        self._tell_waiters()

    async def _resync(self) -> None:
        """Say again what is there, for whoever has missed something of its own."""
        if not self._callbacks:
            self._tell_waiters()
            return
        for count, (key, (_, value)) in enumerate(list(self._entries.items()), 1):
            self._call(Change(ChangeKind.RESYNCED, *key, value, value))
            if count % SLICE == 0:
                await asyncio.sleep(0)
        self._tell_waiters()

    def _put(self, obj: Any) -> Key:
        """Keep an object as it is now.

        Raises:
            Unreadable: If it cannot be converted; then nothing older is kept of it either.
        """
        namespace, name, version = _identity(obj)
        key = (namespace, name)
        before = self._entries.get(key)
        if before is not None and before[0] == version and version:
            return key
        try:
            value: T = obj if self._convert is None else self._convert(obj)
            for index in self._indexes.values():
                index.put(key, value)
        except Exception as error:
            self._drop(key)
            why = type(error).__name__  # what it says may be of the object
            raise Unreadable(f"{namespace}/{name} cannot be converted: {why}.") from error
        self._entries[key] = (version, value)
        self._generation += 1
        if before is None:
            self._call(Change(ChangeKind.ADDED, namespace, name, None, value))
        else:
            self._call(Change(ChangeKind.MODIFIED, namespace, name, before[1], value))
        return key

    def _drop(self, key: Key) -> None:
        for index in self._indexes.values():
            index.drop(key)
        before = self._entries.pop(key, None)
        if before is None:
            return
        self._generation += 1
        self._call(Change(ChangeKind.DELETED, *key, before[1], None))

    def _call(self, change: Change[T]) -> None:
        for callback in self._callbacks:
            try:
                callback(change)
            except Exception:
                log.exception("a callback failed on %s %s", change.kind, change.name)

    def _tell_waiters(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)


def _identity(obj: Any) -> tuple[str, str, str]:
    """Return namespace, name and resourceVersion of what was decoded.

    Raises:
        Unreadable: If it has no name.
    """
    if isinstance(obj, dict):
        try:
            meta = obj["metadata"]
            return meta.get("namespace", ""), meta["name"], meta.get("resourceVersion", "")
        except (LookupError, TypeError, AttributeError):
            raise Unreadable("It has no metadata with a name.") from None
    meta = obj.metadata
    return meta.namespace, meta.name, meta.resource_version


def _number(version: str) -> int:
    """Return a resourceVersion as the number that it is."""
    return int(version) if version.isdigit() else 0
