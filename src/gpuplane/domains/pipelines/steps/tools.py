"""What step handlers are given by the composition root: the database, a way out, what is set up."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import httpx2

from gpuplane.core.workloads import JobSpec
from gpuplane.db.database import Database
from gpuplane.domains.jobs.service import SubmitLimits
from gpuplane.domains.pipelines.rules import Catalogue, Channels
from gpuplane.kit.clock import Clock
from gpuplane.kit.sealing import SealingKeys


@dataclass(frozen=True, slots=True)
class JobAsk:
    """A job's body, read: what is asked, and where."""

    spec: JobSpec
    cluster: str | None = None
    array_size: int | None = None
    array_limit: int | None = None


class ReadJob(Protocol):
    """Reads a job's body as the API of jobs does."""

    def __call__(self, body: Mapping[str, Any]) -> JobAsk:
        """Return what a body asks; ProductError names the field that cannot hold."""
        ...


@dataclass(frozen=True, slots=True)
class StepTools:
    """What handlers work with.

    Args:
        allowed_hosts: Hosts inside the operator's network that API_CALL may reach.
        folders: Folders of this machine that triggers may look into.
        response_bytes: Longest answer of a call that is kept.
        function_network: Whether a FUNCTION may be granted the network at all.
        send_mail: Sends one message by the mail server that settings name; blocks.
    """

    database: Database
    clock: Clock
    client: httpx2.AsyncClient
    sealing: SealingKeys
    read_job: ReadJob
    submit_limits: SubmitLimits
    catalogue: Catalogue = field(default_factory=Catalogue)
    channels: Channels = field(default_factory=Channels)
    allowed_hosts: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    response_bytes: int = 1 << 20
    function_network: bool = False
    send_mail: Callable[[tuple[str, ...], str, str], int] | None = None
