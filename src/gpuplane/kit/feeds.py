"""Tells readers in this process that a stream has grown; holds positions, never the content.

Each reader keeps its own position and reads at its own speed, so a slow one costs no memory.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import TypeVar

T = TypeVar("T")


class Seats:
    """How many readers of one kind this process serves at one time."""

    def __init__(self, limit: int) -> None:
        """Make so many seats, all free."""
        self.limit = limit
        self.taken = 0
        self._closing = asyncio.Event()

    @property
    def is_full(self) -> bool:
        """Return whether another reader has to wait."""
        return self.taken >= self.limit

    @property
    def is_closed(self) -> bool:
        """Return whether readers are to come back later, to the next server."""
        return self._closing.is_set()

    def close(self) -> None:
        """End every reader; called when the server stops."""
        self._closing.set()

    @contextlib.contextmanager
    def taking(self) -> Iterator[None]:
        """Hold a seat while a reader reads; whoever lets readers in asks `is_full` first."""
        self.taken += 1
        try:
            yield
        finally:
            self.taken -= 1

    async def until_closed(self, items: AsyncIterator[T]) -> AsyncIterator[T]:
        """Yield items until there are no more; when readers are to go, what is awaited is let go.

        Args:
            items: They hold no time-out and no scope of cancelling from one item to the next: each
                is asked for in a task of its own.
        """
        closing = asyncio.ensure_future(self._closing.wait())
        asking: asyncio.Future[T] | None = None
        try:
            while True:
                asking = asyncio.ensure_future(anext(items))
                await asyncio.wait((asking, closing), return_when=asyncio.FIRST_COMPLETED)
                if not asking.done():
                    return
                try:
                    item = asking.result()
                except StopAsyncIteration:
                    return
                yield item
        finally:
            left = [each for each in (asking, closing) if each is not None and not each.done()]
            for each in left:
                each.cancel()
            await asyncio.gather(*left, return_exceptions=True)


class Feed:
    """The newest known position of one stream, and who waits for a newer one."""

    def __init__(self, max_readers: int = 200, poll_s: float = 15.0) -> None:
        """Make a feed.

        Args:
            max_readers: Readers at one time at most.
            poll_s: How long a reader waits for news before it looks itself; a second where
                another process publishes.
        """
        self.max_readers = max_readers
        self.poll_s = poll_s
        self.readers = 0
        self.is_closed = False
        self._news = asyncio.Event()

    def publish(self) -> None:
        """Wake every reader."""
        news, self._news = self._news, asyncio.Event()
        news.set()

    def close(self) -> None:
        """End every reader; called when the server stops."""
        self.is_closed = True
        self.publish()

    @contextlib.contextmanager
    def reading(self) -> Iterator[bool]:
        """Count a reader while it reads; False when there are too many already."""
        if self.readers >= self.max_readers:
            yield False
            return
        self.readers += 1
        try:
            yield True
        finally:
            self.readers -= 1

    def next_news(self) -> asyncio.Event:
        """Return the event that the next `publish` sets; take it before looking, then wait."""
        return self._news

    async def wait(self, news: asyncio.Event, timeout_s: float) -> None:
        """Return once the stream has grown since `next_news`, or after the time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(timeout_s, self.poll_s)):
                await news.wait()
