"""Services that scale: the places of their ranks, and the number that their Deployment asks for.

    1  the record has the ranks                         (compare and swap: an eviction may be first)
    2  the Deployment has their places                  (this uid at this resourceVersion)
    3  the settler lets the pods go that wait for them

Owns both calls; never which replicas there are to be. A crash between any two is made good by the
next call, and an older one changes nothing.
"""

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from gpuplane.backends.interface import AttemptPlan, ScalerDecides, Unavailable
from gpuplane.backends.kubernetes import names
from gpuplane.backends.kubernetes.annotations import read_number
from gpuplane.backends.kubernetes.fencing import RecordStore
from gpuplane.backends.kubernetes.manifests.pods import placements_of
from gpuplane.backends.kubernetes.manifests.workloads import encode_manifest
from gpuplane.backends.kubernetes.records import Record, decide_scale, decide_told
from gpuplane.backends.kubernetes.shapes import Main
from gpuplane.backends.kubernetes.sights import DELETED
from gpuplane.backends.kubernetes.views import ClusterView
from gpuplane.core.reasons import Word
from gpuplane.kit.failpoints import failpoint
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.errors import Conflict, Forbidden, NotThere
from gpuplane.kube.kinds import DEPLOYMENT, HORIZONTAL_POD_AUTOSCALER, POD, SCALED_OBJECT, Kind

TRIES = 8
"""Tries of one change of a Deployment: its controller and a scaler write it too."""
SCALER_DECIDES = "ScalerDecides"


async def scale(
    client: KubeClient,
    records: RecordStore,
    view: ClusterView,
    plan: AttemptPlan,
    keep: int,
    grace_s: float,
) -> None:
    """Give a started service the ranks of a plan and their places.

    Where Kueue admits each pod, ranks are given as pods are bound: those that ended are forgotten,
    and the pods of those that are to leave are deleted, for which its Deployment makes others.

    Args:
        client: The cluster.
        records: Of its attempts.
        view: What is seen of it.
        plan: The replicas that the service has.
        keep: How many pods whose ranks were forgotten are remembered, where Kueue admits.
        grace_s: How long the pods of those that are to leave may take, where Kueue admits.

    Raises:
        Tombstoned: If it was evicted: nothing more of it may start.
        StaleEpoch: If a newer epoch is known.
        KubeError: What the cluster refused.
    """
    known = view.record(plan.ref.attempt_id)
    if known is not None and known.by_pod:
        record = await _forget_ends(records, view, plan, keep)
        if record is not None and plan.leaving:
            await _end_leaving(client, record, plan, grace_s)
        return
    found = await _find(client, known)
    if found is not None:
        # What was asked of the cluster since the watch was heard last must not look like less.
        view.take_main(msgspec.convert(found, Main, strict=False))
    ranks = [each.rank for each in plan.replicas]
    record = await records.change(
        plan.ref.attempt_id,
        lambda read: decide_scale(read, plan.ref, ranks, plan.scale_number),
    )
    failpoint("kubernetes.scale.recorded")
    for _ in range(TRIES):
        main = await _find(client, record)
        if main is None or _number_of(main) >= plan.scale_number:
            return
        metadata = main["metadata"]
        patch = {
            "metadata": {
                "uid": metadata["uid"],
                "resourceVersion": metadata["resourceVersion"],
                "annotations": {
                    names.PLACEMENTS: json.dumps(placements_of(plan), sort_keys=True),
                    names.MANIFEST: encode_manifest(plan),
                    names.SCALE: str(plan.scale_number),
                },
            }
        }
        try:
            made = await client.patch(DEPLOYMENT, metadata["name"], patch, metadata["namespace"])
        except Conflict:
            continue
        except NotThere:
            return
        view.take_main(msgspec.convert(made, Main, strict=False))
        failpoint("kubernetes.scale.placed")
        return
    raise Conflict(409, "Conflict", "the Deployment changes all the time")


async def _forget_ends(
    records: RecordStore, view: ClusterView, plan: AttemptPlan, keep: int
) -> Record | None:
    """Forget how ranks ended that the control plane has done with; return the record then."""
    ranks = [*(each.rank for each in plan.replicas), *plan.leaving]
    present = {pod.metadata.uid for pod in view.pods(plan.ref.attempt_id)}
    record = await records.change(
        plan.ref.attempt_id,
        lambda read: decide_told(read, plan.ref, ranks, plan.next_rank, present, keep),
    )
    failpoint("kubernetes.scale.told")
    return record


async def _end_leaving(
    client: KubeClient, record: Record, plan: AttemptPlan, grace_s: float
) -> None:
    """Delete the pods of ranks that are to leave; those of others stay."""
    given = {record.pods[str(rank)].uid for rank in plan.leaving if str(rank) in record.pods}
    labels = {names.ATTEMPT_ID: record.attempt_id}
    for found in await client.list(POD, record.namespace, labels):
        metadata = found["metadata"]
        if metadata["uid"] in given and not metadata.get("deletionTimestamp"):
            name, uid = metadata["name"], metadata["uid"]
            await client.delete(POD, name, record.namespace, uid=uid, grace_s=round(grace_s))
            failpoint("kubernetes.scale.sent_away")


async def set_wanted(client: KubeClient, record: Record, wanted: int, *, has_keda: bool) -> None:
    """Have the Deployment of a service ask for so many replicas.

    Raises:
        ScalerDecides: If an autoscaler holds that number.
        Unavailable: If somebody deleted the Deployment; its job is soon told so.
        KubeError: What the cluster refused.
    """
    if record.most is None:
        raise ScalerDecides(SCALER_DECIDES, "on its cluster the number of its replicas is fixed")
    kinds = (HORIZONTAL_POD_AUTOSCALER, *((SCALED_OBJECT,) if has_keda else ()))
    for kind in kinds:
        name = await _find_scaler(client, kind, record)
        if name is not None:
            raise ScalerDecides(SCALER_DECIDES, f"{kind.kind} {name} decides how many there are")
    try:
        await client.patch(
            DEPLOYMENT, record.name, {"spec": {"replicas": wanted}}, record.namespace
        )
    except NotThere as error:
        raise Unavailable(str(Word.DELETED), DELETED) from error


async def _find_scaler(client: KubeClient, kind: Kind, record: Record) -> str | None:
    """Return the autoscaler that holds the number of a Deployment, made by us or by others."""
    try:
        found = await client.list(kind, record.namespace)
    except (NotThere, Forbidden):
        return None  # not served, or none that we could have made
    for each in found:
        if each["spec"].get("scaleTargetRef", {}).get("name") == record.name:
            return str(each["metadata"]["name"])
    return None


async def _find(client: KubeClient, record: Record | None) -> dict[str, Any] | None:
    if record is None or not record.name:
        return None
    return await client.find(DEPLOYMENT, record.name, record.namespace)


def _number_of(main: Mapping[str, Any]) -> int:
    return read_number((main["metadata"].get("annotations") or {}).get(names.SCALE)) or 0
