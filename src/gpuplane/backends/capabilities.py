"""What only some backends can do: a class each, asked for with `isinstance`.

Like the verbs of every backend these are idempotent. A backend without one is told apart by it, not
by its kind.
"""

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from gpuplane.backends.interface import (
    AttemptPlan,
    AttemptRef,
    ExecResult,
    LogChunk,
    MigOrder,
    ReplicaChanges,
    ReplicaObservation,
    Stream,
)

if TYPE_CHECKING:  # whoever reads the contract alone needs no client of a cluster
    from gpuplane.kube.clients import KubeClient


@runtime_checkable
class ReachesKubernetes(Protocol):
    """A backend of a Kubernetes cluster: who follows its queues uses the same client."""

    client: "KubeClient"


@runtime_checkable
class Dispatches(Protocol):
    """A backend of a cluster that may send attempts to another, or have them sent to it."""

    async def take_dispatched(self, plan: AttemptPlan, secrets: dict[str, str]) -> None:
        """Keep a record of an attempt that was sent here and make what it needs; idempotent.

        Args:
            plan: The attempt as its manager was given it.
            secrets: Environment names to secret values; never written anywhere that lasts.

        Raises:
            Tombstoned: If the attempt was evicted first.
            StaleEpoch: If a newer epoch of this attempt is known.
            Unavailable: While it has not arrived, or the cluster cannot be reached.
            BackendError: If it cannot be run here.
        """
        ...

    async def read_end(self, ref: AttemptRef) -> tuple[ReplicaObservation, ...]:
        """Return how an attempt ended that was sent elsewhere, nothing while that is not known.

        Raises:
            Unavailable: If the cluster cannot be asked.
        """
        ...


@runtime_checkable
class ObservesChanges(Protocol):
    """A backend that can say what changed, so that a turn costs as much as what happened."""

    async def observe_replicas_since(self, cursor: str) -> ReplicaChanges:
        """Return the replicas that changed since the cursor.

        Args:
            cursor: From an earlier answer. Empty, or one from before the backend was opened:
                every replica not yet forgotten is returned.
        """
        ...


@runtime_checkable
class ReadsLogs(Protocol):
    """A backend whose output can be read back."""

    async def read_logs(
        self, ref: AttemptRef, rank: int, stream: Stream, offset: int, limit_bytes: int
    ) -> LogChunk:
        """Return at most limit_bytes from offset; empty data at the end of what there is.

        Raises:
            OffsetGone: If the offset has been rotated away.
            BackendError: If nothing is kept for the attempt.
        """
        ...

    def follow_logs(
        self, ref: AttemptRef, ranks: Sequence[int], stdout_offset: int, stderr_offset: int
    ) -> AsyncIterator[LogChunk]:
        """Yield output as it is written, in order, and end when the attempt is over.

        Args:
            stdout_offset: Where to begin in each rank's standard output; 0 is the oldest byte
                that is kept, so a reader sees by the first chunk's offset what is gone.
            stderr_offset: The same for standard error.

        Raises:
            OffsetGone: If an offset above 0 has been rotated away.
            BackendError: If nothing is kept for the attempt.
        """
        ...


@runtime_checkable
class Executes(Protocol):
    """A backend that can run a command beside a replica."""

    async def exec(
        self, ref: AttemptRef, rank: int, command: Sequence[str], stdin: bytes, timeout_s: float
    ) -> ExecResult:
        """Run the command in the replica's directory and environment."""
        ...


@runtime_checkable
class Repartitions(Protocol):
    """A backend that can cut a GPU in MIG mode anew."""

    async def repartition(self, order: MigOrder) -> None:
        """Destroy and create MIG instances of one GPU; again, when that was done, does nothing.

        Returns once it is sure to happen: what is destroyed is gone from `observe` at once, what
        is created is seen there when it is ready, and the generation grows with each.

        Raises:
            BackendError: If the GPU is not there or not in MIG mode, an instance to be destroyed
                is held by an attempt, or the instances cannot exist together; nothing is changed.
        """
        ...


@runtime_checkable
class Scales(Protocol):
    """A backend whose services may grow and shrink while they run."""

    async def scale(self, plan: AttemptPlan, secrets: dict[str, str], grace_s: float) -> None:
        """Have a started attempt run exactly the replicas of the plan.

        Those that it has not yet are started where the plan says; all others end with the reason
        `ScaledDown`. How one ended is told until a plan names it neither as a replica nor as
        leaving. A plan with an older `scale_number` than one that was seen changes nothing.

        Raises:
            Tombstoned: If the attempt was evicted: nothing more of it may start.
            StaleEpoch: If a newer epoch of this attempt is known.
            BackendError: If a replica cannot be started.
        """
        ...


@runtime_checkable
class DecidesScale(Protocol):
    """A backend on which the cluster's own object says how many replicas a service has."""

    async def set_wanted(self, ref: AttemptRef, wanted: int) -> None:
        """Ask for so many replicas; what became of it is told by `scales` of an observation.

        Raises:
            ScalerDecides: If an autoscaler of the cluster decides it.
            BackendError: If nothing is known of the attempt.
        """
        ...


@runtime_checkable
class Checkpoints(Protocol):
    """A backend that can ask a workload to write a checkpoint."""

    async def request_checkpoint(self, ref: AttemptRef) -> None:
        """Send the checkpoint signal (SIGUSR1 on local processes); the file reports the result."""
        ...


@runtime_checkable
class ChecksCharts(Protocol):
    """A backend that can tell before its start whether the chart of a job may run."""

    async def check_chart(self, plan: AttemptPlan) -> None:
        """Render the chart of a job that was not accepted yet, and start nothing.

        Raises:
            Unfit: If it could never start; names the field of the job.
            BackendError: If that cannot be known now; its start tells.
        """
        ...


@runtime_checkable
class FetchesArtifacts(Protocol):
    """A backend that gives artifacts back."""

    async def list_artifacts(self, ref: AttemptRef) -> tuple[tuple[str, int], ...]:
        """Return (relative path, bytes) of the artifacts the job named, once it is over."""
        ...

    async def read_artifact(
        self, ref: AttemptRef, path: str, offset: int, limit_bytes: int
    ) -> bytes:
        """Return a run of bytes of one artifact; path tricks are refused."""
        ...
