"""Objects of ours that nothing needs any more: decided here, pure; deleted by the settler.

A workload without a record is an orphan: whoever made it lost the race against an eviction and
died before it could clean up, or its record was deleted by hand. A claim with checkpoints outlives
its job by some days, counted from when it was first seen unused, and only a job's own: the named
volumes of a tenant are its data.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gpuplane.backends.kubernetes import names
from gpuplane.backends.kubernetes.annotations import read_number
from gpuplane.backends.kubernetes.records import FORGOTTEN, LASTING, NEVER, STARTED, Record
from gpuplane.backends.kubernetes.settings import KubernetesSettings
from gpuplane.backends.kubernetes.shapes import Main, instant_ms
from gpuplane.core.ids import AttemptId
from gpuplane.core.reasons import Word
from gpuplane.kube.kueue.keeping import ARCHIVED

UNUSED_SINCE = f"{names.PREFIX}unused-since"
"""Annotation of a claim: since when no attempt of its job needs it, ms since the epoch."""

COMES_BACK = frozenset(
    map(
        str,
        (
            Word.SUSPENDED,
            Word.PREEMPTED,
            Word.PREEMPTED_BY_HAND,
            Word.DRAINED,
            Word.WINDOW_CLOSED,
            Word.BUDGET_EXCEEDED,
        ),
    )
)
"""Evictions after which a job goes on from its checkpoint, however much later."""

WITHDRAWN = "Withdrawn"
"""The reason with which an offer is taken back that another cluster bound, or none needs."""

DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class ClaimPlan:
    """What becomes of claims, each by (namespace, name, uid)."""

    mark: tuple[tuple[str, str, str], ...] = ()
    unmark: tuple[tuple[str, str, str], ...] = ()
    delete: tuple[tuple[str, str, str], ...] = ()


def is_overdue(
    record: Record, settings: KubernetesSettings, now: int, *, has_workload: bool
) -> bool:
    """Return whether the workload of an attempt, or else its record, has been kept long enough.

    Args:
        now: In ms; kept times count from the end of the last rank.
        has_workload: Whether the workload, and so its pods, are still there.
    """
    if record.fate == FORGOTTEN:
        return has_workload or now - record.at > settings.forgotten_s * 1000
    if not record.is_over or not has_workload or record.is_dispatched:
        return False
    if record.fate != STARTED or record.evict_reason or record.kind in LASTING:
        return True
    kept_s = settings.failed_ttl_s if record.failed else settings.finished_ttl_s
    kept_s = max(kept_s, settings.debug_ttl_s) if record.keeps_longer else kept_s
    return now - record.over_at > kept_s * 1000


def find_orphans(
    mains: Iterable[Main], records: Mapping[AttemptId, Record], now: int, orphan_s: int
) -> list[Main]:
    """Return the workloads that no record knows, too old to be a start that is under way."""
    found = [
        main
        for main in _list_unknown(mains, records, now, orphan_s)
        # Its manager's Kueue takes it away, and would make it again.
        if names.DISPATCHED not in main.metadata.labels
    ]
    return sorted(found, key=lambda main: (main.metadata.namespace, main.metadata.name))


def find_unread(
    mains: Iterable[Main], records: Mapping[AttemptId, Record], now: int, orphan_s: int
) -> list[Main]:
    """Return what was dispatched here, is over, and is kept for readers that never come."""
    return [main for main in _list_unknown(mains, records, now, orphan_s) if is_kept(main)]


def is_kept(main: Main) -> bool:
    """Return whether a Job that was dispatched here is over and waits to be read."""
    if names.DISPATCHED not in main.metadata.labels or ARCHIVED in main.metadata.annotations:
        return False
    told = main.status.conditions
    return any(each.type in ("Complete", "Failed") and each.status == "True" for each in told)


def _list_unknown(
    mains: Iterable[Main], records: Mapping[AttemptId, Record], now: int, orphan_s: int
) -> list[Main]:
    found = []
    for main in mains:
        attempt_id = names.find_id(main.metadata.labels, names.ATTEMPT_ID)
        made = instant_ms(main.metadata.creation_timestamp)
        if attempt_id is None or made is None or now - made < orphan_s * 1000:
            continue
        if AttemptId(attempt_id) not in records:
            found.append(main)
    return found


def find_withdrawn(records: Iterable[Record], now: int, forgotten_s: int) -> list[Record]:
    """Return the records that nobody else has forgotten, once they are old: of withdrawn offers.

    Of all others retention says how long their output is kept. What comes back holds the
    checkpoints of its job.
    """
    found = [
        record
        for record in records
        if record.fate == NEVER or (record.evict_reason == WITHDRAWN and record.is_over)
        if record.fate != FORGOTTEN and record.evict_reason not in COMES_BACK
        if now - max(record.at, record.over_at) > forgotten_s * 1000
    ]
    return sorted(found, key=lambda record: record.attempt_id)


def plan_claims(
    claims: Iterable[Mapping[str, Any]], records: Iterable[Record], now: int, days: int
) -> ClaimPlan:
    """Return what becomes of the claims with checkpoints.

    Args:
        claims: PersistentVolumeClaims with our label.
        records: Every record that is known.
        days: How long a claim is kept after its job's last attempt.
    """
    needed = {
        record.job_id
        for record in records
        if record.fate != FORGOTTEN and (not record.is_over or record.evict_reason in COMES_BACK)
    }
    mark, unmark, delete = [], [], []
    for claim in claims:
        metadata = claim["metadata"]
        job_id = (metadata.get("labels") or {}).get(names.JOB_ID, "")
        if not job_id or metadata.get("deletionTimestamp"):
            continue
        key = (metadata["namespace"], metadata["name"], metadata["uid"])
        text = (metadata.get("annotations") or {}).get(UNUSED_SINCE, "")
        since = read_number(text)
        if job_id in needed:
            if text:
                unmark.append(key)
        elif since is None:
            mark.append(key)
        elif now - since >= days * DAY_MS:
            delete.append(key)
    return ClaimPlan(tuple(sorted(mark)), tuple(sorted(unmark)), tuple(sorted(delete)))
