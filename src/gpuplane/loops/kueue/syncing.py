"""Writes what is declared to a cluster, and never over what others changed there.

An object is applied only where it says something else than the cluster has. Where another manager
owns a field of it, the declaration is refused as a conflict that names both, unless nobody has
changed the object since it was last written or adopted here.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpuplane.core.ids import ClusterId
from gpuplane.domains.queues import service as queues
from gpuplane.domains.queues.service import Conflict, Seen, SeenKind
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.errors import FieldConflict, KubeError, NotThere
from gpuplane.kube.kinds import (
    ADMISSION_CHECK,
    CLUSTER_QUEUE,
    COHORT,
    LOCAL_QUEUE,
    RESOURCE_FLAVOR,
    TOPOLOGY,
    WORKLOAD_PRIORITY_CLASS,
    Kind,
)
from gpuplane.kube.kueue.multikueue import CHECK
from gpuplane.kube.kueue.names import HOLD_CHECK, ApiVersion
from gpuplane.kube.kueue.queues import read_cluster_queue, read_cohort, read_local_queue
from gpuplane.kube.tenancy import CLUSTER_LABEL
from gpuplane.loops.kueue.namespaces import Spaces

Object = dict[str, Any]
Key = tuple[str, str, str]

KINDS: dict[SeenKind, Kind] = {
    SeenKind.PRIORITY_CLASS: WORKLOAD_PRIORITY_CLASS,
    SeenKind.CHECK: ADMISSION_CHECK,
    SeenKind.TOPOLOGY: TOPOLOGY,
    SeenKind.FLAVOR: RESOURCE_FLAVOR,
    SeenKind.COHORT: COHORT,
    SeenKind.CLUSTER_QUEUE: CLUSTER_QUEUE,
    SeenKind.LOCAL_QUEUE: LOCAL_QUEUE,
}
"""What is followed, in the order in which it is written."""
_WITHDRAWN = (
    SeenKind.LOCAL_QUEUE,
    SeenKind.CLUSTER_QUEUE,
    SeenKind.COHORT,
    SeenKind.TOPOLOGY,
)
"""What is deleted when it is declared no more, in that order; flavors stay for who uses them."""
_READERS = {
    "ClusterQueue": read_cluster_queue,
    "Cohort": read_cohort,
    "LocalQueue": read_local_queue,
}


@dataclass(frozen=True, slots=True)
class Written:
    """What became of one declared object: as the cluster has it now, or why it was not written."""

    live: Object | None
    applied: Mapping[str, Any] | None
    conflict: Conflict | None = None


def key_of(obj: Mapping[str, Any]) -> Key:
    """Return (kind, namespace, name) of an object."""
    metadata = obj["metadata"]
    return obj["kind"], metadata.get("namespace", ""), metadata["name"]


async def load_live(client: KubeClient, version: ApiVersion) -> dict[Key, Object]:
    """Return every object of Kueue on a cluster that is followed."""
    found: dict[Key, Object] = {}
    for kind in KINDS.values():
        try:
            listed = await client.list(kind.at(str(version)))
        except NotThere:
            continue  # older versions of Kueue have no Cohort or Topology in this version
        found.update((key_of(each), each) for each in listed)
    return found


async def sync(
    client: KubeClient,
    version: ApiVersion,
    cluster_id: ClusterId,
    wanted: Sequence[Object],
    known: Mapping[Key, Seen],
    now: int,
    spaces: Spaces | None = None,
    former: Collection[str] = (),
) -> list[Seen]:
    """Bring a cluster to what is declared, and return everything that it shows then.

    Args:
        client: The cluster.
        version: Of Kueue's API.
        cluster_id: The cluster as it is known here; the label of all that we make.
        wanted: Every declared object, in the order in which it is to be made.
        known: What was seen before.
        now: The instant.
        spaces: What became of namespaces; nothing is written into a closed one.
        former: Ids that the cluster had before a lost database was rebuilt: what has one of them
            is ours to write over, and stays until it is declared anew and withdrawn.
    """
    ids = (str(cluster_id), *former)
    spaces = spaces or Spaces()
    live = await load_live(client, version)
    outcomes: dict[Key, Written] = {}
    missed = {key for key, each in known.items() if each.applied is not None} - live.keys()
    for each in wanted:
        key = key_of(each)
        labels = {**each["metadata"].get("labels", {}), CLUSTER_LABEL: str(cluster_id)}
        made = {**each, "metadata": {**each["metadata"], "labels": labels}}
        stuck = spaces.conflicts.get(key[1])
        if key[1] in spaces.closed:
            before = known.get(key)
            outcome = Written(live.get(key), None if before is None else before.applied, stuck)
        else:
            outcome = await _write(client, made, live.get(key), known.get(key), ids)
            outcome = replace(outcome, conflict=outcome.conflict or stuck)
        outcomes[key] = outcome
        if outcome.live is not None:
            live[key] = outcome.live
    stays = await _withdraw(client, version, cluster_id, live, set(outcomes))
    seen = [queues.seen_of(each, ids, now) for each in live.values()]
    shown = {each.key: _with(each, outcomes.get(each.key), known.get(each.key)) for each in seen}
    for key in missed & shown.keys():
        shown[key] = replace(shown[key], made_again=shown[key].conflict is None)
    shown |= {key: replace(shown[key], conflict=stays[key]) for key in stays if key in shown}
    for key, outcome in outcomes.items():
        if key not in shown and outcome.conflict is not None:
            kind, namespace, name = key
            shown[key] = Seen(
                SeenKind(kind), namespace, name, True, {}, conflict=outcome.conflict, seen_at=now
            )
    return [shown[key] for key in sorted(shown)]


def _with(seen: Seen, outcome: Written | None, before: Seen | None) -> Seen:
    if outcome is None:
        return replace(seen, applied=None if before is None else before.applied)
    return replace(seen, applied=outcome.applied, conflict=outcome.conflict)


async def _write(
    client: KubeClient,
    made: Object,
    live: Object | None,
    before: Seen | None,
    ids: Collection[str],
) -> Written:
    """Apply one object where it says something new."""
    applied = None if before is None or before.applied is None else dict(before.applied)
    is_as_left = False
    if live is not None:
        made = keep_of_others(made, live)
        if says_same(made, live) and _checks(live) <= _checks(made):
            return Written(live, made)
        is_ours = live["metadata"].get("labels", {}).get(CLUSTER_LABEL) in ids
        is_as_left = applied is not None and says_same(_without_labels(applied), live)
        if not is_ours and not is_as_left and not says_same(_without_labels(made), live):
            said = "Somebody else made it; adopt it to take it over as it is."
            return Written(live, applied, Conflict("NotOurs", said))
    try:
        return Written(await client.apply(made), made)
    except FieldConflict as error:
        if live is not None and is_as_left:
            # Nobody has changed it since we wrote or adopted it: a co-owner is no conflict.
            return Written(await client.apply(made, force=True), made)
        owners = tuple((each.field, each.manager) for each in error.owners)
        who = ", ".join(error.managers) or "somebody else"
        fields = ", ".join(sorted({each.field for each in error.owners}))
        said = f"{who} set {fields} on the cluster; what is declared here was not written over it."
        return Written(live, applied, Conflict("FieldConflict", said, owners))
    except KubeError as error:
        return Written(live, applied, Conflict(error.reason or "Refused", error.message))


async def _withdraw(
    client: KubeClient,
    version: ApiVersion,
    cluster_id: ClusterId,
    live: dict[Key, Object],
    wanted: set[Key],
) -> dict[Key, Conflict]:
    """Delete what we made and nobody declares any more; return why some of it stays."""
    stays: dict[Key, Conflict] = {}
    for kind in _WITHDRAWN:
        for key, each in list(live.items()):
            metadata = each["metadata"]
            is_ours = metadata.get("labels", {}).get(CLUSTER_LABEL) == str(cluster_id)
            if key[0] != str(kind) or key in wanted or not is_ours:
                continue
            try:
                await client.delete(
                    KINDS[kind].at(str(version)),
                    metadata["name"],
                    metadata.get("namespace"),
                    uid=metadata.get("uid"),
                )
            except KubeError as error:
                stays[key] = Conflict(error.reason or "Refused", error.message)
                continue
            if not metadata.get("finalizers"):
                del live[key]
    return stays


def says_same(wanted: Mapping[str, Any], live: Mapping[str, Any]) -> bool:
    """Return whether a cluster has all that an object says; what it does not say may be anything.

    Queues are compared as they read, because the API server writes quantities and defaults its
    own way.
    """
    for part in ("labels", "annotations"):
        told = wanted["metadata"].get(part) or {}
        if not _covers(told, live["metadata"].get(part) or {}):
            return False
    reader = _READERS.get(wanted["kind"])
    if reader is None:
        rest = {name: each for name, each in wanted.items() if name != "metadata"}
        return _covers(rest, live)
    checks = _checks(wanted)
    try:
        same = _spec_of(reader(wanted)) == _spec_of(reader(live))
    except (KeyError, ValueError):
        return False
    return same and checks <= _checks(live)


def _spec_of(reading: Any) -> Any:
    return getattr(reading, "spec", reading)


def _checks(obj: Mapping[str, Any]) -> set[str]:
    strategy = (obj.get("spec") or {}).get("admissionChecksStrategy") or {}
    ours = (HOLD_CHECK, CHECK)
    return {each["name"] for each in strategy.get("admissionChecks") or () if each["name"] in ours}


def _covers(told: Any, live: Any) -> bool:
    if isinstance(told, Mapping):
        return isinstance(live, Mapping) and all(
            _covers(each, live.get(name)) for name, each in told.items()
        )
    if isinstance(told, list):
        return (
            isinstance(live, list)
            and len(told) == len(live)
            and all(_covers(one, other) for one, other in zip(told, live, strict=True))
        )
    return bool(told == live) or (not told and live is None)


def keep_of_others(made: Object, live: Object) -> Object:
    """Return the object with what of a live queue is set and not ours to say.

    In v1beta1 the AdmissionChecks of a queue are one field, so ours cannot be said without those of
    others; and the older list of names, which Kueue takes beside no strategy, becomes part of it.
    """
    if made["kind"] != "ClusterQueue":
        return made
    spec, theirs = dict(made["spec"]), live.get("spec") or {}
    if theirs.get("namespaceSelector") is not None:
        spec["namespaceSelector"] = theirs["namespaceSelector"]
    if made["apiVersion"] == ApiVersion.V1BETA1.group_version:
        rules = (theirs.get("admissionChecksStrategy") or {}).get("admissionChecks") or ()
        listed = [{"name": name} for name in theirs.get("admissionChecks") or ()]
        others = [each for each in (*rules, *listed) if each["name"] not in (HOLD_CHECK, CHECK)]
        ours = (spec.get("admissionChecksStrategy") or {}).get("admissionChecks") or []
        checks = sorted([*ours, *others], key=lambda each: each["name"])
        spec["admissionChecksStrategy"] = {"admissionChecks": checks}
        if listed:
            spec["admissionChecks"] = []
    return {**made, "spec": spec}


def _without_labels(made: Object) -> Object:
    metadata = {name: each for name, each in made["metadata"].items() if name != "labels"}
    spec = {
        name: each
        for name, each in made.get("spec", {}).items()
        if name != "admissionChecksStrategy"
    }  # fmt: skip - one thought
    bare = {**made, "metadata": metadata}
    return {**bare, "spec": spec} if "spec" in made else bare
