"""What endpoints of jobs are offered besides the database: backends and folders."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar, cast

from gpuplane.backends.interface import AttemptRef, Backend
from gpuplane.core.ids import ClusterId
from gpuplane.db.calls import Call
from gpuplane.domains.jobs import service
from gpuplane.domains.jobs.service import Attempt, Looks, Output
from gpuplane.kit.errors import Unavailable, Unprocessable

T = TypeVar("T")

WORKSPACE_BYTES = 256 << 20
"""The longest upload that is read at all; the setting may say less."""


class FindsBackends(Protocol):
    """Finds the backend of a cluster in this process."""

    def find(self, cluster_id: ClusterId) -> Backend | None:
        """Return it, or None when no part here serves the cluster."""
        ...


@dataclass(frozen=True, slots=True)
class WorkspaceFolder:
    """Where uploaded working directories lie; offered as the port `workspaces`.

    Args:
        path: The folder; an archive is named by its digest.
        max_bytes: The longest upload.
        max_unpacked_bytes: The most that an archive may unpack to.
        max_files: The most files of an archive.
    """

    path: Path
    max_bytes: int = WORKSPACE_BYTES
    max_unpacked_bytes: int = 4 << 30
    max_files: int = 200_000


LOOKS = Looks()
"""Shared by the endpoints of one process."""


def find_backend(call: Call, attempt: Attempt) -> Backend:
    """Return the backend that runs or ran an attempt.

    Raises:
        Unavailable: If no part of this process serves its cluster.
    """
    backends = cast("FindsBackends", call.ports["backends"])
    backend = backends.find(attempt.cluster_id)
    if backend is None:
        raise Unavailable(
            "The cluster of this attempt is not served here just now.",
            code="cluster_unavailable",
            fix="Try again in a moment.",
            retry_after_s=5,
        )
    return backend


def able(backend: Backend, kind: type[T], what: str) -> T:
    """Return the backend as one that can do something.

    Raises:
        Unprocessable: If it cannot.
    """
    if not isinstance(backend, kind):
        raise Unprocessable(
            f"A {backend.kind} cluster cannot {what}.",
            code="not_supported_by_backend",
            fix="Use a cluster of another kind for this.",
        )
    return backend


def ref_of(attempt: Attempt) -> AttemptRef:
    """Return the name a backend knows an attempt by."""
    return AttemptRef(attempt.id, attempt.epoch)


async def audit(call: Call, found: Output, kind: str, message: str) -> None:
    """Leave the trace of a read, once for each reader, attempt and while."""
    if found.attempt is None:
        return
    if LOOKS.is_new(call.principal.user_id, found.attempt.id, kind, call.now):
        await call.database.write(
            "jobs.audit",
            lambda s: service.audit(s, call.principal, found, kind, message, call.now),
        )
