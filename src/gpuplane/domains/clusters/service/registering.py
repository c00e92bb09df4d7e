"""The life of a registered cluster: stored with its run, looked at, changed, failed, taken away.

The runs that register and delete do the work outside; each step ends in one function here.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from gpuplane.core.ids import ClusterId
from gpuplane.core.runs.plans import RunPlan
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.domains.clusters import repository
from gpuplane.domains.clusters.errors import ClusterBusy, ClusterExists
from gpuplane.domains.clusters.rules import (
    ADDONS,
    DELETED_MARK,
    HELD_STATES,
    VERSION_CHARS,
    WAS_AVAILABLE,
    AddonStatus,
    Cluster,
    ClusterKey,
    ClusterState,
    ContactPolicy,
    Credential,
    HealthCheck,
    cut_versions,
    decide_reached,
    decide_unreached,
    find_changes,
)
from gpuplane.domains.clusters.service.operating import (
    announce,
    get_cluster,
    get_live_cluster,
    store_changes,
)
from gpuplane.domains.runs import service as runs
from gpuplane.domains.runs.service import Run, RunPolicy

CountOffers = Callable[[ReadSession, ClusterId], int]
"""Says how many jobs are in a cluster's hands; jobs know, and are told of by the root."""
CountReservations = Callable[[ReadSession, ClusterId], int]
"""Says how many reservations of a cluster are active or to come, as `CountOffers` does."""
CarryOver = Callable[[WriteSession, ClusterId, ClusterId, str, int], object]
"""Lets what was said of a deleted cluster hold for the one of its name: old id, new, who, when."""
KUBERNETES = "kubernetes"
MAX_NAME_CHARS = 63
METRICS_STATUS_CHARS = 50
MAX_FORMER_IDS = 50
"""Ids of one cluster that was deleted and registered again and again: each is in every watch."""


@dataclass(frozen=True, slots=True)
class Registration:
    """What is stored when a cluster is registered."""

    cluster: Cluster
    credential: Credential
    key: ClusterKey
    plan: RunPlan


def register(
    session: WriteSession,
    asked: Registration,
    policy: RunPolicy,
    now: int,
    carry_over: CarryOver | None = None,
) -> tuple[Cluster, Run]:
    """Store a cluster in REGISTERING with its credentials, its key and the run that goes on.

    Args:
        session: Of the database.
        asked: What is registered.
        policy: Of runs.
        now: The instant.
        carry_over: Called where a cluster of that name was deleted, with the one deleted last.

    Raises:
        ClusterExists: If one of that name is there, or the same cluster under another.
    """
    cluster = asked.cluster
    found = repository.find_cluster(session, cluster.name)
    if found is not None:
        raise ClusterExists(
            f"There is a cluster {cluster.name!r} already ({found.state}).",
            field="name",
            fix="Choose another name, or replace the credentials of that one.",
        )
    uid = cluster.config.get("uid")
    for each in repository.list_clusters(session):
        if uid and each.config.get("uid") == uid:
            raise ClusterExists(
                f"It is registered already, as {each.name!r}.",
                field="kubeconfig",
                fix=f"Use {each.name}, or replace its credentials.",
            )
    run = runs.start_run(session, asked.plan, now, policy)
    cluster = _with_former(session, _with_run(cluster, run.id))
    repository.insert_cluster(session, cluster)
    repository.store_credential(session, asked.credential)
    repository.insert_key(session, asked.key)
    actor = asked.credential.stored_by
    said = f"{actor} registers cluster {cluster.name} at {cluster.server_url}."
    announce(session, cluster, "cluster.registering", said, now, actor, {"run_id": str(run.id)})
    former = _find_deleted(session, cluster.name)
    if carry_over is not None and former is not None:
        carry_over(session, former.id, cluster.id, actor, now)
    return get_cluster(session, cluster.id), run


def _find_deleted(session: ReadSession, name: str) -> Cluster | None:
    """Return the cluster that had a name and was deleted, of several the one deleted last."""
    gone = (e for e in repository.list_deleted(session) if e.name == _deleted_name(name, e.id))
    return max(gone, key=lambda each: (each.deleted_at or 0, each.id), default=None)


def _with_run(cluster: Cluster, run_id: UUID) -> Cluster:
    values = cut_versions({name: getattr(cluster, name) for name in cluster.__slots__})
    return Cluster(**{**values, "run_id": run_id})


def _with_former(session: ReadSession, cluster: Cluster) -> Cluster:
    """Return a cluster with the ids under which it was registered here and deleted before.

    It is the same where its `kube-system` has the same uid: what those ids label is ours.
    """
    uid = cluster.config.get("uid")
    former = {
        known
        for each in repository.list_deleted(session)
        if uid and each.config.get("uid") == uid
        for known in each.known_ids
    }
    if not former:
        return cluster
    # Ids are ordered by when they were made: the newest are the ones that may label anything yet.
    kept = sorted(former)[-MAX_FORMER_IDS:]
    return replace(cluster, config={**cluster.config, "former_ids": kept})


def find_run(session: ReadSession, cluster: Cluster) -> Run | None:
    """Return the run that registers or deletes a cluster, while it is kept."""
    return None if cluster.run_id is None else runs.find_run(session, cluster.run_id)


def change(
    session: WriteSession,
    key: UUID | str,
    wanted: Mapping[str, Any],
    actor: str,
    now: int,
    count_offers: CountOffers | None = None,
    count_reservations: CountReservations | None = None,
) -> Cluster:
    """Change what people say of a cluster: role, ingress, attributes, masters, admission.

    Raises:
        ClusterBusy: If it is to admit by itself no more while jobs wait in its hands, or to admit
            by itself while GPUs of it are reserved.
    """
    cluster = get_live_cluster(session, key)
    changes = find_changes(cluster, wanted)
    if not changes:
        return cluster
    if count_offers is not None and _stops_admitting(cluster, changes):
        _refuse_offered(cluster, count_offers(session, cluster.id))
    if count_reservations is not None and _begins_admitting(cluster, changes):
        _refuse_reserved(cluster, count_reservations(session, cluster.id))
    store_changes(session, cluster, now, **changes)
    said = f"{actor} changed {', '.join(sorted(changes))}."
    announce(session, cluster, "cluster.changed", said, now, actor, {"fields": sorted(changes)})
    session.wake("inventory")
    return get_cluster(session, cluster.id)


def _stops_admitting(cluster: Cluster, changes: Mapping[str, Any]) -> bool:
    after = changes.get("config", cluster.config)
    return bool(cluster.config.get("admission") == "kueue" != after.get("admission"))


def _begins_admitting(cluster: Cluster, changes: Mapping[str, Any]) -> bool:
    after = changes.get("config", cluster.config)
    return bool(after.get("admission") == "kueue" != cluster.config.get("admission"))


def _refuse_reserved(cluster: Cluster, reservations: int) -> None:
    if not reservations:
        return
    which = "1 reservation is" if reservations == 1 else f"{reservations} reservations are"
    raise ClusterBusy(
        f"{which} active or to come on {cluster.name}, and its Kueue would not keep them.",
        field="admission",
        fix="Cancel them or let them end; give each project a ClusterQueue of its own instead.",
    )


def _refuse_offered(cluster: Cluster, offers: int) -> None:
    if not offers:
        return
    who = "1 job was" if offers == 1 else f"{offers} jobs were"
    raise ClusterBusy(
        f"{who} handed to the Kueue of {cluster.name} and would wait there for ever.",
        field="admission",
        fix="Freeze the cluster, so that it gets no more; cancel those or let them start first.",
    )


def note_looked_at(
    session: WriteSession, cluster_id: ClusterId, seen: Mapping[str, Any], now: int
) -> Cluster:
    """Store what a look found out: version, distribution, platform, host."""
    cluster = get_cluster(session, cluster_id)
    changes = find_changes(cluster, cut_versions(seen))
    if changes:
        store_changes(session, cluster, now, **changes)
    return get_cluster(session, cluster_id)


def make_available(session: WriteSession, cluster_id: ClusterId, now: int) -> Cluster:
    """Let a cluster that is being registered take work; in every other state change nothing.

    A run that brings add-ons in may end while its cluster is drained: that goes on.
    """
    cluster = get_cluster(session, cluster_id)
    if cluster.state is not ClusterState.REGISTERING:
        return cluster
    _move(session, cluster, ClusterState.AVAILABLE, "", now, not_available_since=None, failures=0,
          failed_at=[], next_try_at=None,
          config={**cluster.config, WAS_AVAILABLE: True})  # fmt: skip
    return get_cluster(session, cluster_id)


def fail_run(
    session: WriteSession, cluster_id: ClusterId, run_id: UUID | None, reason: str, now: int
) -> Cluster:
    """Say that a registration or a deletion came to nothing.

    Nothing is said where another run took its place since it was judged.
    The cluster stays ERROR until it is registered again or deleted.
    """
    cluster = get_cluster(session, cluster_id)
    if cluster.state in HELD_STATES and cluster.run_id == run_id:
        _move(session, cluster, ClusterState.ERROR, reason, now, not_available_since=None)
    return get_cluster(session, cluster_id)


def register_again(
    session: WriteSession,
    key: UUID | str,
    plan: RunPlan,
    policy: RunPolicy,
    now: int,
    *,
    addons: Sequence[str] | None = None,
) -> tuple[Cluster, Run]:
    """Start the registration of a cluster once more: after a failure, or to bring add-ons in.

    Args:
        session: Of the database.
        key: Id or name of the cluster.
        plan: The run that does it.
        policy: Of runs.
        now: The instant.
        addons: What is asked for from now on; None where it stays what was asked for.

    Raises:
        ClusterBusy: If it is being registered, drained or deleted.
    """
    cluster = get_cluster(session, key)
    free = (ClusterState.ERROR, ClusterState.AVAILABLE, ClusterState.NOT_AVAILABLE)
    if cluster.kind != KUBERNETES or cluster.state not in free:
        raise _busy(cluster, "registered again")
    run = runs.start_run(session, plan, now, policy)
    changes: dict[str, Any] = {"run_id": run.id}
    if addons is not None:
        changes["config"] = {**cluster.config, ADDONS: sorted(set(addons))}
    if cluster.state is ClusterState.ERROR:
        changes |= {"state": ClusterState.REGISTERING, "state_reason": "", "failures": 0,
                    "failed_at": [], "next_try_at": None, "not_available_since": None}  # fmt: skip
    store_changes(session, cluster, now, **changes)
    return get_cluster(session, cluster.id), run


def note_contact(
    session: WriteSession,
    cluster_id: ClusterId,
    failure: str | None,
    policy: ContactPolicy,
    now: int,
) -> Cluster:
    """Store whether a cluster answered; None says that it did.

    A state changes only where a look may change it; a change is an event and wakes the scheduler.
    """
    cluster = get_cluster(session, cluster_id)
    if failure is None:
        changes = decide_reached(cluster)
    else:
        changes = decide_unreached(cluster, failure, now, policy)
    state = changes.pop("state", cluster.state)
    reason = changes.pop("state_reason", cluster.state_reason)
    if state is not cluster.state:
        _move(session, cluster, state, reason, now, **changes)
    elif changes or reason != cluster.state_reason:
        store_changes(session, cluster, now, state_reason=reason, **changes)
    return get_cluster(session, cluster_id)


def note_look(
    session: WriteSession,
    cluster_id: ClusterId,
    failure: str | None,
    checks: tuple[HealthCheck, ...],
    policy: ContactPolicy,
    now: int,
) -> None:
    """Store what a look found: whether it answered, and each check; changes are events."""
    cluster = note_contact(session, cluster_id, failure, policy, now)
    before = {check.kind: check.verdict for check in cluster.health}
    rows = [[c.kind, c.verdict, c.message, c.checked_at] for c in checks]
    store_changes(session, cluster, now, health=rows)
    for check in checks:
        if before.get(check.kind, check.verdict) != check.verdict:
            said = f"{check.kind} of {cluster.name} is {check.verdict}. {check.message}".strip()
            data = {"kind": check.kind, "verdict": check.verdict, "before": before[check.kind]}
            announce(session, cluster, "cluster.health_changed", said, now, data=data)


def note_metrics(
    session: WriteSession, cluster_id: ClusterId, status: str, now: int | None
) -> None:
    """Store what became of collecting a cluster's metrics; None for an instant: none came."""
    repository.set_metrics(session, cluster_id, status[:METRICS_STATUS_CHARS], now)


def note_addon(session: WriteSession, status: AddonStatus) -> None:
    """Store what became of an add-on; an event where that is new."""
    status = replace(status, chart_version=status.chart_version[:VERSION_CHARS])
    known = {each.name: each for each in repository.list_addons(session, status.cluster_id)}
    before = known.get(status.name)
    repository.store_addon(session, status)
    if before is None or (before.state, before.message) != (status.state, status.message):
        cluster = get_cluster(session, status.cluster_id)
        said = f"Add-on {status.name} on {cluster.name}: {status.state}. {status.message}".strip()
        data = {"addon": status.name, "state": status.state, "version": status.chart_version}
        announce(session, cluster, "cluster.addon", said, status.updated_at, data=data)


def list_addons(session: ReadSession, key: UUID | str) -> tuple[AddonStatus, ...]:
    """Return what became of each add-on, by name."""
    return repository.list_addons(session, get_cluster(session, key).id)


def start_adoption(
    session: WriteSession, key: UUID | str, plan: RunPlan, policy: RunPolicy, now: int
) -> tuple[Cluster, Run]:
    """Have a run take over an add-on.

    Raises:
        ClusterBusy: If the cluster is being registered, drained or deleted.
    """
    cluster = get_cluster(session, key)
    if cluster.kind != KUBERNETES or cluster.state in HELD_STATES:
        raise _busy(cluster, "changed")
    return cluster, runs.start_run(session, plan, now, policy)


def start_deletion(
    session: WriteSession,
    key: UUID | str,
    plan: RunPlan,
    policy: RunPolicy,
    actor: str,
    now: int,
) -> tuple[Cluster, Run]:
    """Let nothing new start on a cluster and have a run drain and remove it.

    Raises:
        ClusterBusy: If it is being deleted already, or is none that was registered.
    """
    cluster = get_cluster(session, key)
    if cluster.kind != KUBERNETES or cluster.state is ClusterState.DELETING:
        raise _busy(cluster, "deleted")
    if cluster.run_id is not None and runs.find_run(session, cluster.run_id) is not None:
        runs.cancel_run(session, cluster.run_id, now, actor=actor, policy=policy)
    run = runs.start_run(session, plan, now, policy)
    said = f"{actor} deletes it."
    _move(session, cluster, ClusterState.DRAINING, said, now, actor=actor, run_id=run.id)
    return get_cluster(session, cluster.id), run


def begin_removal(session: WriteSession, cluster_id: ClusterId, now: int) -> Cluster:
    """Say that a cluster is empty and is being removed; again, changes nothing."""
    cluster = get_cluster(session, cluster_id)
    if cluster.state is ClusterState.DRAINING:
        _move(session, cluster, ClusterState.DELETING, "Nothing of ours runs there any more.", now)
    return get_cluster(session, cluster_id)


def remove(session: WriteSession, cluster_id: ClusterId, now: int) -> None:
    """Delete a cluster's credentials, keys and add-ons; its row stays for what it did.

    Its name is free again at once; jobs and the ledger keep telling of it by its id.
    """
    cluster = get_cluster(session, cluster_id)
    if cluster.deleted_at is not None:
        return
    repository.delete_credential(session, cluster_id)
    repository.revoke_keys(session, cluster_id, now)
    repository.delete_addons(session, cluster_id)
    name = _deleted_name(cluster.name, cluster.id)
    store_changes(session, cluster, now, name=name, deleted_at=now, gpu_shapes={}, health=[])
    announce(session, cluster, "cluster.deleted", f"Cluster {cluster.name} was deleted.", now)


def _deleted_name(name: str, cluster_id: ClusterId) -> str:
    tail = f"{DELETED_MARK}{cluster_id.hex[-8:]}"
    return name[: MAX_NAME_CHARS - len(tail)] + tail


def _busy(cluster: Cluster, verb: str) -> ClusterBusy:
    if cluster.kind != KUBERNETES:
        return ClusterBusy(
            f"{cluster.name} is a {cluster.kind} cluster, which was not registered.",
            fix="Freeze it to let nothing start there.",
        )
    return ClusterBusy(
        f"{cluster.name} is {cluster.state} and cannot be {verb} now.",
        fix="Wait for its run to end, or look at it: gpuplane clusters show.",
    )


def _move(
    session: WriteSession,
    cluster: Cluster,
    state: ClusterState,
    reason: str,
    now: int,
    actor: str = "system",
    **changes: Any,
) -> None:
    store_changes(session, cluster, now, state=str(state), state_reason=reason, **changes)
    said = f"{cluster.name} is {state}{': ' + reason if reason else ''}"
    data = {"from": str(cluster.state), "to": str(state)}
    announce(session, cluster, f"cluster.{state.lower()}", said, now, actor, data)
    session.wake("scheduler")
    session.wake("inventory")
