"""What is read of one cluster: objects, their changes, logs, rights, what it serves.

Never changes anything there; `kube.clients` does, and is a reader too.
"""

import builtins
import contextlib
import datetime
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from typing import Any, TypeVar

from gpuplane.kit.clock import Clock
from gpuplane.kube import reviews
from gpuplane.kube.credentials import Connection
from gpuplane.kube.discovery import Discovery, ServedGroup, ServerVersion
from gpuplane.kube.errors import Gone, NotThere, Unreadable
from gpuplane.kube.kinds import POD, SERVICE, Kind, find_kind
from gpuplane.kube.sessions import DEFAULT_USER_AGENT, ClientLimits, Params, Session
from gpuplane.kube.watching import Mark, Page, decode_event, decode_object, decode_page, read_lines

Obj = dict[str, Any]
Selector = str | Mapping[str, str] | None
T = TypeVar("T")

LIST_RESTARTS = 2
"""How often a list is begun anew because its continue token ran out."""
LIST_PAGES = 10_000
"""Pages of one list: ten times what the largest needs, as servers may send less than is asked."""
LOG_BYTES = 10 << 20


class KubeReader:
    """One cluster's API server, as far as it is asked."""

    def __init__(
        self,
        connection: Connection,
        *,
        user_agent: str = DEFAULT_USER_AGENT,
        limits: ClientLimits | None = None,
        clock: Clock | None = None,
        packed: bool = True,
    ) -> None:
        """Connect to nothing yet.

        Args:
            connection: Into the cluster.
            user_agent: What audit logs there show.
            limits: What is waited for and taken at most.
            clock: For pauses.
            packed: Take answers packed by gzip: a tenth of the bytes, more work on both sides.
        """
        self.connection = connection
        self.limits = limits or ClientLimits()
        self._session = Session(
            connection, user_agent=user_agent, limits=self.limits, clock=clock, packed=packed
        )
        self.discovery = Discovery(self._session, clock)

    async def close(self) -> None:
        """Close every connection."""
        await self._session.close()

    # What is there

    async def get(self, kind: Kind, name: str, namespace: str | None = None) -> Obj:
        """Return an object.

        Raises:
            NotThere: If there is none.
        """
        return as_object(await self._session.send("GET", kind.path(namespace, name)))

    async def find(self, kind: Kind, name: str, namespace: str | None = None) -> Obj | None:
        """Return an object, or None."""
        try:
            return await self.get(kind, name, namespace)
        except NotThere:
            return None

    async def list(
        self,
        kind: Kind,
        namespace: str | None = None,
        labels: Selector = None,
        fields: Selector = None,
    ) -> list[Obj]:
        """Return the objects of a kind, of all namespaces where none is named.

        Raises:
            NotThere: If the cluster does not serve the kind.
        """
        found, _ = await self.list_as(kind, dict[str, Any], namespace, labels, fields)
        for obj in found:  # the items of a list name neither, which every other verb needs
            obj.setdefault("apiVersion", kind.api_version)
            obj.setdefault("kind", kind.kind)
        return found

    async def list_as(
        self,
        kind: Kind,
        shape: type[T],
        namespace: str | None = None,
        labels: Selector = None,
        fields: Selector = None,
    ) -> tuple[builtins.list[T], str]:
        """Return the objects of a kind in a shape, and the resourceVersion to watch from.

        Raises:
            NotThere: If the cluster does not serve the kind.
            Unreadable: If the list has no end, or is longer than is taken.
        """
        for attempt in range(LIST_RESTARTS + 1):
            try:
                return await self._list_once(kind, shape, namespace, labels, fields)
            except Gone:  # the continue token is older than what etcd keeps
                if attempt == LIST_RESTARTS:
                    raise
        raise AssertionError("the last attempt returns or raises")

    async def _list_once(
        self, kind: Kind, shape: type[T], namespace: str | None, labels: Selector, fields: Selector
    ) -> tuple[builtins.list[T], str]:
        found: builtins.list[T] = []
        size, token, turned = 0, "", set[str]()
        while True:
            data = await self._read_page(kind, namespace, labels, fields, token)
            page = decode_page(data, shape)
            found += page.items or ()
            size += len(data)
            if len(found) > self.limits.list_objects or size > self.limits.list_bytes:
                raise Unreadable(
                    f"The list of {kind} is longer than {self.limits.list_objects} objects"
                    f" or {self.limits.list_bytes} bytes."
                )
            token = page.metadata.continue_
            if not token:
                return found, page.metadata.resource_version
            turn_page(token, turned)

    async def list_page(
        self,
        kind: Kind,
        shape: type[T],
        namespace: str | None = None,
        labels: Selector = None,
        fields: Selector = None,
        *,
        continue_token: str | None = None,
    ) -> Page[T]:
        """Return one page of a list.

        Raises:
            Gone: If the continue token is too old.
        """
        data = await self._read_page(kind, namespace, labels, fields, continue_token)
        return decode_page(data, shape)

    async def _read_page(
        self,
        kind: Kind,
        namespace: str | None,
        labels: Selector,
        fields: Selector,
        continue_token: str | None,
    ) -> bytes:
        params: Params = {
            "limit": self.limits.page_size,
            "continue": continue_token or None,
            "labelSelector": selector_text(labels),
            "fieldSelector": selector_text(fields),
        }
        return await self._session.send("GET", kind.path(namespace), params=params)

    def watch(
        self,
        kind: Kind,
        namespace: str | None = None,
        labels: Selector = None,
        fields: Selector = None,
        *,
        resource_version: str,
        timeout_s: int | None = None,
    ) -> AsyncGenerator[tuple[str, Obj]]:
        """Yield changes as (`ADDED`, `MODIFIED` or `DELETED`, object) until the server ends it.

        Args:
            kind: Of the objects.
            namespace: All where None.
            labels: Those that carry these.
            fields: Those whose fields are so.
            resource_version: From where; what `list_as` returned.
            timeout_s: When the server ends the watch; its own choice where None.

        Raises:
            Gone: If the server no longer remembers so far back: list again.
        """
        events = self.watch_as(
            kind,
            dict[str, Any],
            namespace,
            labels,
            fields,
            resource_version=resource_version,
            timeout_s=timeout_s,
        )
        return _without_marks(events)

    async def watch_as(
        self,
        kind: Kind,
        shape: type[T],
        namespace: str | None = None,
        labels: Selector = None,
        fields: Selector = None,
        *,
        resource_version: str,
        timeout_s: int | None = None,
        on_open: Callable[[], None] | None = None,
    ) -> AsyncGenerator[tuple[str, T | Mark]]:
        """Yield changes in a shape, and `BOOKMARK` with a Mark of how far the server has come.

        `on_open` is called once the server has taken the watch.
        """
        params: Params = {
            "watch": True,
            "allowWatchBookmarks": True,
            "resourceVersion": resource_version,
            "timeoutSeconds": timeout_s,
            "labelSelector": selector_text(labels),
            "fieldSelector": selector_text(fields),
        }
        async with self._session.stream("GET", kind.path(namespace), params=params) as response:
            if on_open is not None:
                on_open()
            async for line in read_lines(response, self.limits.line_bytes):
                yield decode_event(line, shape)

    # What runs there tells

    async def read_service(self, name: str, namespace: str, port: int, path: str) -> bytes:
        """Return what a Service answers to a GET, which the API server carries there.

        Args:
            name: Of the Service.
            namespace: Its own.
            port: One that the Service has.
            path: From `/`.

        Raises:
            NotThere: If there is no such Service.
            KubeError: What it or the API server answered; nobody behind it is a 503.
        """
        place = f"{SERVICE.path(namespace, name)}:{port}/proxy{path}"
        return await self._session.send("GET", place, accept="*/*", retries=0)

    async def read_log(
        self,
        pod: str,
        namespace: str,
        container: str | None = None,
        *,
        tail_lines: int | None = None,
        since_s: int | None = None,
        previous: bool = False,
        timestamps: bool = False,
        limit_bytes: int = LOG_BYTES,
    ) -> bytes:
        """Return what a container has written, at most so many bytes.

        Raises:
            BadRequest: If the container has not started.
            NotThere: If there is no such Pod.
        """
        params = _log_params(container, tail_lines, since_s, timestamps=timestamps)
        params |= {"previous": previous or None, "limitBytes": limit_bytes}
        path = f"{POD.path(namespace, pod)}/log"
        return await self._session.send("GET", path, params=params, accept="*/*")

    async def follow_log(
        self,
        pod: str,
        namespace: str,
        container: str | None = None,
        *,
        tail_lines: int | None = None,
        since_s: int | None = None,
        since: datetime.datetime | None = None,
        timestamps: bool = False,
        idle_s: float = 4 * 3600.0,
    ) -> AsyncIterator[bytes]:
        """Yield what a container writes, in pieces as they come, until it ends.

        Args:
            pod: Its name.
            namespace: Its namespace.
            container: Which, where it has several.
            tail_lines: Begin with so many of the last lines.
            since_s: Begin so long ago.
            since: Begin at this instant.
            timestamps: Put an instant before each line.
            idle_s: End with Unreachable after so long without a byte. Kubelets close idle streams
                after four hours.
        """
        params = _log_params(container, tail_lines, since_s, timestamps=timestamps)
        params["follow"] = True
        if since is not None:
            params["sinceTime"] = since.astimezone(datetime.UTC).isoformat().replace("+00:00", "Z")
        path = f"{POD.path(namespace, pod)}/log"
        async with self._session.stream("GET", path, params=params, idle_s=idle_s) as response:
            async for chunk in response.aiter_raw():
                yield chunk

    # What we may

    async def can_i(
        self,
        verb: str,
        kind: Kind,
        namespace: str | None = None,
        *,
        name: str | None = None,
        subresource: str | None = None,
    ) -> bool:
        """Return whether these credentials may do so; all namespaces where none is named."""
        return await reviews.may(self._session, verb, kind, namespace, name, subresource)

    async def list_rules(self, namespace: str) -> reviews.Rules:
        """Return what these credentials may do in a namespace, as far as the cluster can tell."""
        return await reviews.load_rules(self._session, namespace)

    # What is served

    async def version(self) -> ServerVersion:
        """Return the server's version."""
        return await self.discovery.version()

    async def served(self, group: str) -> ServedGroup | None:
        """Return the versions of a group, the preferred first; None where it is not served."""
        return await self.discovery.served(group)

    async def resolve(self, kind: Kind) -> Kind | None:
        """Return a kind in a version that this cluster serves, or None."""
        return await self.discovery.resolve(kind)

    async def kind_of(self, obj: Mapping[str, Any]) -> Kind:
        """Return the kind of an object, from the table or from the cluster.

        Raises:
            NotThere: If the cluster serves no such kind.
            ValueError: If the object names none.
        """
        known = find_kind(obj)
        if known is not None:
            return known
        return await self.discovery.kind_of(obj["apiVersion"], obj["kind"])


def turn_page(token: str, turned: set[str]) -> None:
    """Note a continue token among those of a list.

    Raises:
        Unreadable: If it was there before, or there are too many: such a list has no end.
    """
    if token in turned or len(turned) >= LIST_PAGES:
        raise Unreadable("The server's pages of a list come to no end.")
    turned.add(token)


def selector_text(selector: Selector) -> str | None:
    """Return a selector as the API takes it; a mapping means each key equal to its value."""
    if selector is None or isinstance(selector, str):
        return selector or None
    return ",".join(f"{key}={value}" for key, value in sorted(selector.items())) or None


def as_object(data: bytes) -> Obj:
    """Return an answer as the object that it is."""
    return decode_object(data, dict[str, Any])


def _log_params(
    container: str | None, tail_lines: int | None, since_s: int | None, *, timestamps: bool
) -> dict[str, str | int | bool | builtins.list[str] | None]:
    return {
        "container": container,
        "tailLines": tail_lines,
        "sinceSeconds": since_s,
        "timestamps": timestamps or None,
    }


async def _without_marks(
    events: AsyncGenerator[tuple[str, Obj | Mark]],
) -> AsyncGenerator[tuple[str, Obj]]:
    async with contextlib.aclosing(events):
        async for word, obj in events:
            if not isinstance(obj, Mark):
                yield word, obj
