"""The record of an attempt: whether it may start, why it was stopped, and how each rank ended.

Owns the pure half: every verb is a function from a record to the next one, so that the store need
only compare and swap. A record outlives the pods; what it says of an end is never changed again.

    accepted  a workload may be made, held back
    started   it was let go, or may be at any moment
    never     it was evicted before that: nothing of it may ever start
    forgotten nothing is kept of it; it still forbids a late start
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from gpuplane.backends.interface import AttemptRef, BackendError, StaleEpoch, Tombstoned
from gpuplane.backends.kubernetes import names
from gpuplane.core.ids import AttemptId
from gpuplane.core.reasons import Word

FORMAT = 1
KEY = "record"
"""The key of the ConfigMap's data under which the record lies, as JSON."""

RELEASE_KIND = "ConfigMap"
"""The kind of a workload that is a Helm release: the object that the release hangs on."""
STAND_IN = "StandIn"
"""The kind of a Helm release where Kueue admits: the Job that stands in line for it."""
LASTING = frozenset({"Deployment", RELEASE_KIND, STAND_IN})
"""Kinds of workloads that run until they are evicted."""

ACCEPTED, STARTED, NEVER, FORGOTTEN = "accepted", "started", "never", "forgotten"


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """How one rank ended; instants in ms since the epoch."""

    phase: str
    reason: str
    ended_at: int
    message: str = ""
    started_at: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    restart_count: int = 0
    outputs: dict[str, Any] | None = None
    progress_ratio: float | None = None
    checkpoint: str | None = None
    node_name: str = ""
    gpu_ids: tuple[str, ...] = ()
    for_attempt: str = ""


class Given(msgspec.Struct, frozen=True):
    """The pod that has a rank, and when it was given it, ms since the epoch."""

    uid: str
    at: int


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is kept of one attempt, whatever becomes of its objects."""

    attempt_id: str
    epoch: int
    fate: str
    at: int
    """When its fate was last changed."""
    format: int = FORMAT
    job_id: str = ""
    namespace: str = ""
    kind: str = ""
    name: str = ""
    ranks: tuple[int, ...] = ()
    port: int | None = None
    service: str = ""
    """The Service by which it is reached, where it has not the workload's name."""
    evict_reason: str = ""
    evict_at: int | None = None
    keeps_longer: bool = False
    is_dispatched: bool = False
    """Whether another cluster's Kueue makes its workload here, and takes it away."""
    outcomes: dict[str, Outcome] = {}
    most: int | None = None
    """How many replicas a service that scales may have at most; None where they are fixed."""
    scale: int = 0
    """Number of the last change of its ranks."""
    by_pod: bool = False
    """Whether Kueue admits each of its pods by itself: a rank is given to a pod once it is bound,
    and to no other afterwards."""
    pods: dict[str, Given] = {}
    """Who has which rank, where `by_pod`."""
    next_rank: int = 0
    """The next rank that is given, where `by_pod`."""
    past: tuple[str, ...] = ()
    """Uids of the last pods whose ranks were dropped: who still sees one gives it no other."""

    @property
    def id(self) -> AttemptId:
        """Return the attempt it is of."""
        return AttemptId(_uuid(self.attempt_id))

    @property
    def ref(self) -> AttemptRef:
        """Return the name of its attempt with the epoch it was accepted at."""
        return AttemptRef(self.id, self.epoch)

    def is_of(self, namespace: str, name: str) -> bool:
        """Return whether its workload lies there; one that was never accepted does not say where.

        Labels alone tell nothing: a tenant can put those of another's attempt on its own objects.
        """
        return not self.name or (self.namespace, self.name) == (namespace, name)

    @property
    def is_release(self) -> bool:
        """Return whether it is a Helm release."""
        return self.kind in (RELEASE_KIND, STAND_IN)

    @property
    def has_stand_in(self) -> bool:
        """Return whether it is a Helm release that a Job stands in line for."""
        return self.kind == STAND_IN

    @property
    def is_over(self) -> bool:
        """Return whether nothing of it runs or can start."""
        if self.fate in (NEVER, FORGOTTEN):
            return True
        if self.by_pod:
            stopped = bool(self.evict_reason) or self.is_deleted
            return stopped and all(str(rank) in self.outcomes for rank in self.ranks)
        ranks = self.staying
        if self.most is not None and not ranks:
            return bool(self.evict_reason)  # scaled to zero: it goes on until it is evicted
        return bool(ranks) and all(str(rank) in self.outcomes for rank in ranks)

    @property
    def is_deleted(self) -> bool:
        """Return whether somebody else took away what makes its pods, as a rank tells."""
        return any(each.reason == Word.DELETED for each in self.outcomes.values())

    @property
    def open_ranks(self) -> tuple[int, ...]:
        """Return the ranks of which no end is known."""
        return tuple(rank for rank in self.ranks if str(rank) not in self.outcomes)

    @property
    def staying(self) -> tuple[int, ...]:
        """Return the ranks that no scaler took away."""
        if self.most is None:
            return self.ranks
        told = self.outcomes
        return tuple(
            rank
            for rank in self.ranks
            if (found := told.get(str(rank))) is None or found.reason != Word.SCALED_DOWN
        )

    @property
    def over_at(self) -> int:
        """Return when the last of its ranks ended."""
        ends = [each.ended_at for each in self.outcomes.values()]
        return max(ends, default=self.evict_at or self.at)

    @property
    def failed(self) -> bool:
        """Return whether a rank ended in another way than it should."""
        return any(each.reason != Word.COMPLETED for each in self.outcomes.values())


def _uuid(text: str) -> Any:
    found = names.find_id({"it": text}, "it")
    if found is None:
        raise ValueError(f"{text!r} is no id of an attempt")
    return found


def decide_accept(
    record: Record | None,
    ref: AttemptRef,
    now: int,
    *,
    namespace: str,
    kind: str,
    name: str,
    ranks: Sequence[int],
    port: int | None = None,
    service: str = "",
    keeps_longer: bool = False,
    job_id: str = "",
    is_dispatched: bool = False,
    most: int | None = None,
    by_pod: bool = False,
) -> Record:
    """Return the record of an attempt that is to be started.

    Raises:
        Tombstoned: If it was evicted before it started, or forgotten.
        StaleEpoch: If a newer epoch of it is known.
    """
    if record is not None and record.fate == FORGOTTEN:
        raise Tombstoned(Word.CANCELLED, "the attempt is over and was forgotten")
    if record is not None:
        record = take_over(record, ref)
        if record.fate == NEVER:
            raise Tombstoned(Word.CANCELLED, "the attempt was evicted before it started")
        return record
    return Record(
        attempt_id=str(ref.attempt_id),
        epoch=ref.epoch,
        fate=ACCEPTED,
        at=now,
        namespace=namespace,
        kind=kind,
        name=name,
        ranks=() if by_pod else tuple(sorted(ranks)),
        port=port,
        service=service,
        keeps_longer=keeps_longer,
        job_id=job_id,
        is_dispatched=is_dispatched,
        most=most,
        by_pod=by_pod,
    )


def take_over(record: Record, ref: AttemptRef) -> Record:
    """Return the record at the epoch of a verb.

    Raises:
        StaleEpoch: If the verb's is older.
    """
    if record.epoch > ref.epoch:
        raise StaleEpoch(
            Word.CANCELLED, f"epoch {ref.epoch} is older than {record.epoch}, which is known"
        )
    return record if record.epoch == ref.epoch else msgspec.structs.replace(record, epoch=ref.epoch)


def decide_start(record: Record | None, ref: AttemptRef, now: int) -> Record:
    """Return the record of an attempt that is let go now.

    Raises:
        Tombstoned: If it was evicted meanwhile.
        StaleEpoch: If a newer epoch took it over meanwhile.
    """
    if record is None or record.fate in (NEVER, FORGOTTEN):
        raise Tombstoned(Word.CANCELLED, "the attempt was evicted before it started")
    record = take_over(record, ref)
    if record.fate == STARTED:
        return record
    return msgspec.structs.replace(record, fate=STARTED, at=now)


def decide_scale(
    record: Record | None, ref: AttemptRef, ranks: Sequence[int], number: int
) -> Record:
    """Return the record of a started service whose ranks are these from now on.

    How a rank ended that a scaler took away is forgotten once it is not named any more.

    Raises:
        Tombstoned: If it was evicted or is over: nothing more of it may start.
        StaleEpoch: If a newer epoch took it over.
    """
    if record is None or record.fate != STARTED or record.evict_reason or record.is_over:
        raise Tombstoned(Word.CANCELLED, "the attempt was evicted or does not run")
    record = take_over(record, ref)
    if number <= record.scale:
        return record
    kept = {str(rank) for rank in ranks}
    return msgspec.structs.replace(
        record,
        ranks=tuple(sorted(ranks)),
        scale=number,
        outcomes={rank: each for rank, each in record.outcomes.items() if rank in kept},
    )


def decide_ranks(
    record: Record | None, uids: Sequence[str], now: int, max_untold: int
) -> Record | None:
    """Return the record in which each of these pods has a rank, in their order.

    Args:
        record: Of a service whose pods Kueue admits one by one.
        uids: Of pods that are bound; those that have a rank, or had one, get none.
        now: The instant, ms since the epoch.
        max_untold: How many ends may wait to be taken in before no more ranks are given.
    """
    if record is None or not takes_ranks(record, max_untold):
        return record
    known = {given.uid for given in record.pods.values()} | set(record.past)
    new = [uid for uid in dict.fromkeys(uids) if uid not in known]
    if not new:
        return record
    given = {str(record.next_rank + place): Given(uid, now) for place, uid in enumerate(new)}
    return msgspec.structs.replace(
        record,
        ranks=(*record.ranks, *map(int, given)),
        pods={**record.pods, **given},
        next_rank=record.next_rank + len(new),
    )


def takes_ranks(record: Record, max_untold: int) -> bool:
    """Return whether pods of an attempt may be given ranks now."""
    if not record.by_pod or record.fate != STARTED or record.evict_reason or record.is_deleted:
        return False
    return len(record.outcomes) < max_untold


def decide_told(
    record: Record | None,
    ref: AttemptRef,
    ranks: Sequence[int],
    next_rank: int,
    present: Collection[str],
    keep: int,
) -> Record:
    """Return the record without ranks that ended and that the control plane has done with.

    Args:
        record: Of a service whose pods Kueue admits one by one.
        ref: The attempt.
        ranks: Those that it has.
        next_rank: Ranks below this that it has not are done with.
        present: Uids of pods that are there: they keep their ranks, or they would get others.
        keep: How many pods whose ranks were dropped are remembered.

    Raises:
        Tombstoned: If it was evicted or is over.
        StaleEpoch: If a newer epoch took it over.
    """
    if record is None or record.fate != STARTED or record.evict_reason or record.is_over:
        raise Tombstoned(Word.CANCELLED, "the attempt was evicted or does not run")
    record = take_over(record, ref)
    done = {
        str(rank)
        for rank in record.ranks
        if rank < next_rank and rank not in ranks and str(rank) in record.outcomes
        if (given := record.pods.get(str(rank))) is None or given.uid not in present
    }
    if not done:
        return record
    dropped = tuple(given.uid for rank, given in record.pods.items() if rank in done)
    return msgspec.structs.replace(
        record,
        ranks=tuple(rank for rank in record.ranks if str(rank) not in done),
        outcomes={rank: each for rank, each in record.outcomes.items() if rank not in done},
        pods={rank: given for rank, given in record.pods.items() if rank not in done},
        past=(*record.past, *dropped)[-keep:],
    )


def decide_evict(record: Record | None, ref: AttemptRef, reason: str, now: int) -> Record:
    """Return the record of an attempt that is to stop; the first reason stays.

    Raises:
        StaleEpoch: If a newer epoch is known.
    """
    if record is None:
        return Record(
            attempt_id=str(ref.attempt_id),
            epoch=ref.epoch,
            fate=NEVER,
            at=now,
            evict_reason=reason,
            evict_at=now,
        )
    if record.fate == FORGOTTEN:
        return record
    record = take_over(record, ref)
    if record.evict_reason or record.is_over:
        return record
    fate = NEVER if record.fate == ACCEPTED else record.fate
    at = now if fate != record.fate else record.at
    return msgspec.structs.replace(record, fate=fate, at=at, evict_reason=reason, evict_at=now)


def decide_forget(record: Record | None, ref: AttemptRef, now: int) -> Record | None:
    """Return the record that only forbids a late start; None where nothing is kept.

    Raises:
        StaleEpoch: If a newer epoch is known.
        BackendError: If it still runs.
    """
    if record is None or record.fate == FORGOTTEN:
        return record
    record = take_over(record, ref)
    if not record.is_over:
        raise BackendError(Word.SUPERVISOR_LOST, "an attempt that still runs is not forgotten")
    return Record(
        attempt_id=record.attempt_id,
        epoch=record.epoch,
        fate=FORGOTTEN,
        at=now,
        job_id=record.job_id,
        namespace=record.namespace,
        kind=record.kind,
        name=record.name,
    )


def decide_settle(record: Record | None, outcomes: Mapping[int, Outcome]) -> Record | None:
    """Return the record with ends that were seen; an end that is known already stays as it is.

    The next rank of a service whose pods Kueue admits may end without a pod: none will come.
    """
    if record is None or record.fate != STARTED:
        return record
    next_rank = record.next_rank if record.by_pod and not record.is_deleted else None
    new = {
        str(rank): outcome
        for rank, outcome in outcomes.items()
        if (rank in record.ranks or rank == next_rank) and str(rank) not in record.outcomes
    }
    if not new:
        return record
    added = tuple(int(rank) for rank in new if int(rank) not in record.ranks)
    return msgspec.structs.replace(
        record,
        ranks=(*record.ranks, *added),
        next_rank=record.next_rank + len(added),
        outcomes={**record.outcomes, **new},
    )


def encode_record(record: Record, cluster_id: str, namespace: str) -> dict[str, Any]:
    """Return the ConfigMap that holds a record."""
    text = msgspec.json.encode(record).decode()
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": names.record_name(record.id),
            "namespace": namespace,
            "labels": {
                "app.kubernetes.io/managed-by": "gpuplane",
                names.RECORD: "attempt",
                names.CLUSTER: cluster_id,
                names.ATTEMPT_ID: record.attempt_id,
            },
        },
        "data": {KEY: text},
    }


def read_record(data: Mapping[str, str] | None) -> Record | None:
    """Return the record in a ConfigMap's data, None where there is none that can be read."""
    text = (data or {}).get(KEY)
    if text is None:
        return None
    try:
        record = msgspec.json.decode(text, type=Record)
        record.id  # noqa: B018 - a record whose id cannot be read is none
    except (msgspec.MsgspecError, ValueError):
        return None
    return record
