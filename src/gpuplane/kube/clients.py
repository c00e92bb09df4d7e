"""The verbs of Kubernetes for one cluster. Objects are plain dicts, as the API has them.

Owns what changes something there; what only asks is in `kube.readers`. Never retries on its own but
where the server asks for it, never writes what it sends to a log.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Self

from gpuplane.kit.clock import Clock
from gpuplane.kube import execs
from gpuplane.kube.credentials import Connection
from gpuplane.kube.errors import Conflict, NotThere
from gpuplane.kube.kinds import POD, SERVICE_ACCOUNT, Kind, path_segment
from gpuplane.kube.readers import KubeReader, Obj, as_object
from gpuplane.kube.sessions import DEFAULT_USER_AGENT, ClientLimits, Params

FIELD_MANAGER = "gpuplane"


class KubeClient(KubeReader):
    """One cluster's API server."""

    def __init__(
        self,
        connection: Connection,
        *,
        user_agent: str = DEFAULT_USER_AGENT,
        field_manager: str = FIELD_MANAGER,
        limits: ClientLimits | None = None,
        clock: Clock | None = None,
        packed: bool = True,
    ) -> None:
        """Connect to nothing yet.

        Args:
            connection: Into the cluster.
            user_agent: What audit logs there show.
            field_manager: Owner of the fields that are applied and made.
            limits: What is waited for and taken at most.
            clock: For pauses.
            packed: Take answers packed by gzip: a tenth of the bytes, more work on both sides.
        """
        super().__init__(
            connection, user_agent=user_agent, limits=limits, clock=clock, packed=packed
        )
        self._manager = field_manager

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # What is changed

    async def create(
        self, obj: Mapping[str, Any], namespace: str | None = None, *, dry_run: bool = False
    ) -> Obj:
        """Make an object.

        Raises:
            AlreadyThere: If one of that name is there.
            Invalid: With the fields that cannot hold.
        """
        kind = await self.kind_of(obj)
        params: Params = {"fieldManager": self._manager, "dryRun": "All" if dry_run else None}
        path = kind.path(self._namespace(kind, obj, namespace))
        return as_object(await self._session.send("POST", path, params=params, body=obj))

    async def apply(
        self,
        obj: Mapping[str, Any],
        *,
        force: bool = False,
        dry_run: bool = False,
        subresource: str | None = None,
        manager: str | None = None,
    ) -> Obj:
        """Make an object be so as far as it is said here; what others own stays theirs.

        Args:
            obj: The fields that we want to own, with name and namespace.
            force: Take fields from their owners.
            dry_run: Say what would be, and whether it could be.
            subresource: Such as `status`.
            manager: Another field manager than ours, where an API asks for a certain one.

        Raises:
            FieldConflict: If others own fields of it, naming both.
        """
        kind = await self.kind_of(obj)
        params: Params = {
            "fieldManager": manager or self._manager,
            "force": force or None,
            "dryRun": "All" if dry_run else None,
        }
        path = kind.path(self._namespace(kind, obj, None), _name_of(obj))
        content_type = "application/apply-patch+yaml"
        return as_object(
            await self._session.send(
                "PATCH",
                _below(path, subresource),
                params=params,
                body=obj,
                content_type=content_type,
            )
        )

    async def patch(
        self,
        kind: Kind,
        name: str,
        patch: Mapping[str, Any],
        namespace: str | None = None,
        *,
        subresource: str | None = None,
    ) -> Obj:
        """Change an object by a JSON merge patch: None takes a field away, lists are replaced.

        A `metadata.resourceVersion` in the patch guards it: Conflict where the object has changed.
        """
        return as_object(
            await self._session.send(
                "PATCH",
                _below(kind.path(namespace, name), subresource),
                params={"fieldManager": self._manager},
                body=patch,
                content_type="application/merge-patch+json",
            )
        )

    async def replace(self, obj: Mapping[str, Any], *, subresource: str | None = None) -> Obj:
        """Replace an object that was read, if nobody has changed it since.

        Raises:
            Conflict: If somebody has.
            ValueError: If the object names no resourceVersion.
        """
        if not (obj.get("metadata") or {}).get("resourceVersion"):
            raise ValueError("an object without resourceVersion would overwrite what others did")
        kind = await self.kind_of(obj)
        path = kind.path(self._namespace(kind, obj, None), _name_of(obj))
        return as_object(
            await self._session.send(
                "PUT",
                _below(path, subresource),
                params={"fieldManager": self._manager},
                body=obj,
            )
        )

    async def delete(
        self,
        kind: Kind,
        name: str,
        namespace: str | None = None,
        *,
        propagation: str = "Background",
        uid: str | None = None,
        grace_s: int | None = None,
    ) -> None:
        """Have an object deleted; one that is gone already is no error.

        Args:
            kind: Its kind.
            name: Its name.
            namespace: Its namespace.
            propagation: `Background`, `Foreground` or `Orphan`.
            uid: Only this one: another of the same name is left alone.
            grace_s: What its containers get to end; their own wish where None.
        """
        options: Obj = {"propagationPolicy": propagation}
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        try:
            await self._session.send("DELETE", kind.path(namespace, name), body=options)
        except NotThere:
            return
        except Conflict:
            if uid is None:
                raise
            found = await self.find(kind, name, namespace)
            if found is not None and found["metadata"]["uid"] == uid:
                raise

    async def evict(self, name: str, namespace: str, grace_s: int | None = None) -> None:
        """Ask for a Pod to go, which disruption budgets may refuse; one that is gone is no error.

        Raises:
            TooManyRequests: If a budget forbids it now.
        """
        body: Obj = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
        }
        if grace_s is not None:
            body["deleteOptions"] = {"gracePeriodSeconds": grace_s}
        try:
            await self._session.send(
                "POST", f"{POD.path(namespace, name)}/eviction", body=body, retries=0
            )
        except NotThere:
            return

    async def issue_token(self, account: str, namespace: str, *, expires_s: int = 3_600) -> str:
        """Return a new token of a ServiceAccount, a secret; the cluster may make it shorter-lived.

        Raises:
            NotThere: If there is no such account.
        """
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": expires_s},
        }
        path = f"{SERVICE_ACCOUNT.path(namespace, account)}/token"
        found = as_object(await self._session.send("POST", path, body=body))
        return str(found["status"]["token"])

    # Commands

    async def exec(
        self,
        pod: str,
        namespace: str,
        container: str | None,
        command: Sequence[str],
        stdin: bytes = b"",
        timeout_s: float = 60.0,
    ) -> execs.ExecResult:
        """Run a command in a container and return what it wrote and how it ended.

        Raises:
            Unreachable: If it has not ended in time, or the connection broke.
            NotThere: If there is no such Pod.
        """
        path = f"{POD.path(namespace, pod)}/exec"
        return await execs.run_command(
            self._session, path, container, command, stdin, timeout_s=timeout_s
        )

    def _namespace(self, kind: Kind, obj: Mapping[str, Any], namespace: str | None) -> str | None:
        if not kind.namespaced:
            return None
        named = (obj.get("metadata") or {}).get("namespace")
        if named and namespace and named != namespace:
            raise ValueError(f"the object is of namespace {named}, not of {namespace}")
        return namespace or named or self.connection.namespace


def _name_of(obj: Mapping[str, Any]) -> str:
    name = (obj.get("metadata") or {}).get("name")
    if not isinstance(name, str) or not name:
        raise ValueError("the object has no name")
    return name


def _below(path: str, subresource: str | None) -> str:
    return path if subresource is None else f"{path}/{path_segment(subresource)}"
