"""Attempts that a MultiKueue manager dispatches: what each of its two clusters does for them.

On the manager only the Job is made; Kueue copies it to a worker, and nothing that it needs. Here
the worker gets that: a record, by which it is followed and forbidden there, and the Secret, claims
and Services of the attempt. Owns both halves; who is asked when is decided by the loops.

Source: kubernetes-sigs/kueue v0.15.0, pkg/controller/jobs/job/job_multikueue_adapter.go and
pkg/controller/admissionchecks/multikueue/workload.go.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from gpuplane.backends.interface import (
    AttemptPlan,
    AttemptRef,
    BackendError,
    ReplicaObservation,
    Unavailable,
)
from gpuplane.backends.kubernetes import names
from gpuplane.backends.kubernetes.fencing import RecordStore
from gpuplane.backends.kubernetes.manifests.pods import ranks_of
from gpuplane.backends.kubernetes.manifests.workloads import Workload, compute_workload
from gpuplane.backends.kubernetes.manifests.workspaces import load_workspace
from gpuplane.backends.kubernetes.names import checkpoint_claim_name
from gpuplane.backends.kubernetes.observing import observe_attempt
from gpuplane.backends.kubernetes.outcomes import compute_outcomes
from gpuplane.backends.kubernetes.records import (
    ACCEPTED,
    STARTED,
    decide_accept,
    decide_settle,
    decide_start,
)
from gpuplane.backends.kubernetes.served import Served
from gpuplane.backends.kubernetes.settings import KubernetesSettings
from gpuplane.backends.kubernetes.shapes import Main
from gpuplane.backends.kubernetes.sights import Sight
from gpuplane.backends.kubernetes.starting import make_owned
from gpuplane.core.reasons import Word
from gpuplane.kit.failpoints import failpoint
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.kinds import JOB, PERSISTENT_VOLUME_CLAIM

NOT_HERE_YET = "NotHereYet"


async def take(
    client: KubeClient,
    records: RecordStore,
    plan: AttemptPlan,
    secrets: Mapping[str, str],
    settings: KubernetesSettings,
    cluster_id: str,
    served: Served,
    now_ms: Callable[[], int],
) -> None:
    """Keep a record of an attempt that was dispatched here, and make what its pods need.

    Raises:
        Tombstoned: If it was evicted first.
        StaleEpoch: If a newer epoch is known.
        Unavailable: While its Job is not here.
        BackendError: If it cannot be said in objects.
        KubeError: What the cluster refused.
    """
    workspace = await asyncio.to_thread(load_workspace, plan, settings)
    workload = compute_workload(
        plan, settings, cluster_id, tuple(sorted(secrets)), served, workspace
    )
    name = workload.main["metadata"]["name"]
    record = await records.change(
        plan.ref.attempt_id,
        lambda found: decide_accept(
            found,
            plan.ref,
            now_ms(),
            namespace=workload.namespace,
            kind=JOB.kind,
            name=name,
            ranks=ranks_of(plan),
            job_id=str(plan.job_id),
            is_dispatched=True,
        ),
    )
    failpoint("kubernetes.take.accepted")
    if record is None or record.fate != ACCEPTED or record.evict_reason:
        return
    main = await client.find(JOB, name, workload.namespace)
    labels = {} if main is None else main["metadata"].get("labels") or {}
    if main is None or labels.get(names.ATTEMPT_ID) != str(plan.ref.attempt_id):
        raise Unavailable(NOT_HERE_YET, f"Job {name} was not dispatched here yet")
    await _check_claims(client, plan, workload, main, served)
    await make_owned(client, plan, workload, secrets, cluster_id, main)
    failpoint("kubernetes.take.made")
    await records.change(plan.ref.attempt_id, lambda found: decide_start(found, plan.ref, now_ms()))


async def _check_claims(
    client: KubeClient,
    plan: AttemptPlan,
    workload: Workload,
    main: Mapping[str, Any],
    served: Served,
) -> None:
    """Refuse a Job whose volumes will never be here: its manager has written what it mounts.

    Raises:
        BackendError: With the field, the reason and what to do.
    """
    volumes = main["spec"]["template"]["spec"].get("volumes") or ()
    claims = [each.get("persistentVolumeClaim") or {} for each in volumes]
    made = {name for name, _ in workload.claims}
    kept = checkpoint_claim_name(plan.job_id)
    for name in sorted(each["claimName"] for each in claims if each):
        has_class = name != kept or bool(served.default_class) or _has_asked_class(plan, served)
        if name in made and has_class:
            continue
        if await client.find(PERSISTENT_VOLUME_CLAIM, name, workload.namespace) is not None:
            continue
        what = (
            "spec.checkpoint: the cluster it was dispatched to has no StorageClass for it. Name "
            "one of that cluster's, give the cluster a default one, or turn checkpoints off."
            if name == kept
            else f"spec.mounts: the cluster it was dispatched to has no claim {name}, which its "
            "manager's settings name. Give both clusters the same volumes."
        )
        raise BackendError(Word.START_FAILED, what)


def _has_asked_class(plan: AttemptPlan, served: Served) -> bool:
    asked = plan.spec.checkpoint if plan.spec is not None else None
    return asked is not None and asked.storage_class in served.storage_classes


async def read_end(
    client: KubeClient, records: RecordStore, ref: AttemptRef, now: int
) -> tuple[ReplicaObservation, ...]:
    """Return how an attempt ended by what its manager's Job says; nothing while it does not.

    The worker's Job and pods go as soon as Kueue has told their end to the manager.

    Raises:
        KubeError: If the cluster cannot be asked.
    """
    record, _ = await records.load(ref.attempt_id)
    if record is None or record.fate != STARTED or record.evict_reason:
        return ()
    if not record.is_over:
        found = await client.find(JOB, record.name, record.namespace)
        if found is None:
            return ()
        outcomes = compute_outcomes(Sight(record, main=_read_main(found)), now)
        record = await records.change(ref.attempt_id, lambda known: decide_settle(known, outcomes))
    if record is None or not record.is_over or record.evict_reason:
        return ()
    return observe_attempt(Sight(record))


def _read_main(found: Mapping[str, Any]) -> Main:
    main: Main = msgspec.convert(found, Main)
    main.kind = JOB.kind
    return main
