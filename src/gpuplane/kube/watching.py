"""What lists and watches carry, decoded only as far as it is wanted.

A page or an event is decoded straight into the type asked for; what the type does not name never
becomes a Python object, which is most of a Pod.
"""

from collections.abc import AsyncIterator
from typing import Any, Generic, TypeVar

import httpx2
import msgspec

from gpuplane.kube.errors import Unreadable, error_of

T = TypeVar("T")

UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises of an answer that is none; the last of one that is nested too deeply."""


class ListMeta(msgspec.Struct, rename="camel", gc=False):
    """The metadata of a list."""

    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")
    remaining_item_count: int | None = None


class Page(msgspec.Struct, Generic[T]):
    """Some of the objects of a list."""

    metadata: ListMeta
    items: list[T] | None = None


class _Event(msgspec.Struct):
    """An event of a watch, its object not decoded yet."""

    type: str
    object: msgspec.Raw


class _Version(msgspec.Struct, rename="camel", gc=False):
    resource_version: str = ""


class Mark(msgspec.Struct, gc=False):
    """How far a watch has come: the object of a BOOKMARK."""

    metadata: _Version

    @property
    def resource_version(self) -> str:
        """Where a new watch may go on."""
        return self.metadata.resource_version


_DECODERS: dict[Any, Any] = {}
"""One for each type that the product names; making one takes longer than most uses of it."""


def _decoder(shape: Any) -> Any:
    found = _DECODERS.get(shape)
    if found is None:
        found = _DECODERS[shape] = msgspec.json.Decoder(shape)
    return found


def decode_page(data: bytes, shape: type[T]) -> Page[T]:
    """Return a page of a list with its objects in this shape.

    Raises:
        Unreadable: If it is no list of such objects.
    """
    try:
        page: Page[T] = _decoder(Page[shape]).decode(data)  # type: ignore[valid-type]  # a type made at run time
    except UNDECODABLE as error:
        raise Unreadable(f"The answer is no list of objects: {error}.") from None
    return page


def decode_object(data: bytes | msgspec.Raw, shape: type[T]) -> T:
    """Return one object in this shape.

    Raises:
        Unreadable: If it is none.
    """
    try:
        found: T = _decoder(shape).decode(data)
    except UNDECODABLE as error:
        raise Unreadable(f"The answer is no object: {error}.") from None
    return found


def decode_event(line: bytes, shape: type[T]) -> tuple[str, T | Mark]:
    """Return the type and the object of one event.

    An object that does not have the shape is left out: `UNREADABLE` with a Mark of its version.

    Raises:
        KubeError: What an ERROR event tells, such as Gone.
        Unreadable: If it is no event.
    """
    try:
        event: _Event = _decoder(_Event).decode(line)
        if event.type == "BOOKMARK":
            return event.type, _decoder(Mark).decode(event.object)
        if event.type == "ERROR":
            status = _decoder(dict[str, Any]).decode(event.object)
            code = status.get("code")
            raise error_of(code if isinstance(code, int) and code >= 400 else 500, status)
        try:
            found: T = _decoder(shape).decode(event.object)
        except UNDECODABLE:
            return "UNREADABLE", _decoder(Mark).decode(event.object)
    except UNDECODABLE as error:
        raise Unreadable(f"The watch sent no event: {error}.") from None
    return event.type, found


async def read_lines(response: httpx2.Response, longest: int) -> AsyncIterator[bytes]:
    """Yield the lines of a stream without their ends; what follows the last is no line.

    Raises:
        Unreadable: If a line is longer than this.
    """
    rest: list[bytes] = []
    size = 0
    async for chunk in response.aiter_raw():
        *whole, tail = chunk.split(b"\n")
        for line in whole:
            if rest:
                rest.append(line)
                line = b"".join(rest)
                rest, size = [], 0
            if len(line) > longest:
                raise Unreadable(f"A line of the stream is longer than {longest} bytes.")
            if line:
                yield line
        if tail:
            rest.append(tail)
            size += len(tail)
            if size > longest:
                raise Unreadable(f"A line of the stream is longer than {longest} bytes.")
