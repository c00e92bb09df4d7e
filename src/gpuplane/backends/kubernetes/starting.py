"""Starting an attempt in a cluster, step by step, so that it starts once or not at all.

    1  the record says `accepted`                       (compare and swap)
    2  claims, then the workload, held back             (server-side apply: again is the same)
    3  what it owns: Secret, Service
    4  the record says `started`                        (compare and swap: an eviction may be first)
    5  the workload is let go                           (only this uid at this resourceVersion)
    6  what scales it

A crash between any two is made good by the next call; an eviction that comes before 4 forbids the
start for ever, and one that comes after it finds the workload by its name.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

from gpuplane.backends.interface import (
    NOT_ADMITTING,
    NOT_DISPATCHING,
    AttemptPlan,
    BackendError,
    Tombstoned,
    Unavailable,
)
from gpuplane.backends.kubernetes import names
from gpuplane.backends.kubernetes.fencing import RecordStore
from gpuplane.backends.kubernetes.manifests.pods import is_by_pod, owner_labels, ranks_of
from gpuplane.backends.kubernetes.manifests.services import port_of
from gpuplane.backends.kubernetes.manifests.workloads import (
    QUEUE,
    Workload,
    claim_of,
    compute_workload,
    owned_by,
    secret_of,
)
from gpuplane.backends.kubernetes.manifests.workspaces import load_workspace
from gpuplane.backends.kubernetes.records import (
    ACCEPTED,
    decide_accept,
    decide_start,
)
from gpuplane.backends.kubernetes.served import Served
from gpuplane.backends.kubernetes.settings import KubernetesSettings
from gpuplane.backends.kubernetes.settling import KINDS
from gpuplane.core.reasons import Word
from gpuplane.core.workloads import JobType
from gpuplane.kit.failpoints import failpoint
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.errors import (
    AlreadyThere,
    Conflict,
    FieldConflict,
    Forbidden,
    Invalid,
    KubeError,
    NotThere,
    ServerTrouble,
    TooManyRequests,
    Unauthorized,
    Unreachable,
    Unreadable,
)
from gpuplane.kube.kinds import JOB, NAMESPACE, Kind
from gpuplane.kube.tenancy import Tenancy, namespace_object
from gpuplane.kube.webhooks import find_silent

RELEASED = names.RELEASED
"""Annotation of a workload that was let go; in the same patch that lets it go."""

Start = Callable[
    [
        KubeClient,
        RecordStore,
        AttemptPlan,
        Mapping[str, str],
        KubernetesSettings,
        str,
        Served,
        Callable[[], int],
    ],
    Awaitable[None],
]
"""How one cluster begins with an attempt: what `ensure_started` is given, and what `take` is."""

log = logging.getLogger("gpuplane.kubernetes")

_LATER = (Unreachable, TooManyRequests, ServerTrouble, Unauthorized, Unreadable, Conflict)
"""What says nothing of the attempt: the same may succeed at the next turn."""


def kind_named(kind: str) -> Kind:
    """Return the kind of a workload by its word in a record."""
    return KINDS[kind]


def backend_error(error: KubeError) -> BackendError:
    """Return what a cluster's refusal is to the control plane."""
    if isinstance(error, _LATER):
        silent = find_silent(error.message)
        text = str(error) if silent is None else silent.sentence
        return Unavailable(error.reason or "Unreachable", text)
    return BackendError(Word.START_FAILED, str(error))


@contextlib.contextmanager
def told() -> Iterator[None]:
    """Turn what a cluster refuses into what the contract raises."""
    try:
        yield
    except KubeError as error:
        raise backend_error(error) from error


@contextlib.contextmanager
def told_at_start() -> Iterator[None]:
    """Do as `told`, of a start: what the API server itself finds invalid is so the next time too.

    Not so what a webhook denies, whose rules may change, and what is still being taken away.
    """
    try:
        with told():
            yield
    except BackendError as error:
        cause = error.__cause__
        passing = ("denied the request", "field is immutable")
        if not isinstance(cause, Invalid) or any(each in cause.message for each in passing):
            raise
        raise BackendError(Word.START_REFUSED, error.message) from cause


async def ensure_namespace(client: KubeClient, made: Mapping[str, Any]) -> None:
    """Make a namespace unless it is there; one that is there is left as it is."""
    if await client.find(NAMESPACE, made["metadata"]["name"]) is not None:
        return
    with contextlib.suppress(AlreadyThere):
        await client.create(made)


async def ensure_started(
    client: KubeClient,
    records: RecordStore,
    plan: AttemptPlan,
    secrets: Mapping[str, str],
    settings: KubernetesSettings,
    cluster_id: str,
    served: Served,
    now_ms: Callable[[], int],
) -> None:
    """Start an attempt unless it was started or evicted before.

    Raises:
        Tombstoned: If it was evicted first, also while it was being started.
        StaleEpoch: If a newer epoch is known.
        BackendError: If it cannot be said in objects.
        KubeError: What the cluster refused; nothing is left half-started where it is final.
    """
    workspace = await asyncio.to_thread(load_workspace, plan, settings)
    workload = compute_workload(
        plan, settings, cluster_id, tuple(sorted(secrets)), served, workspace
    )
    labels = plan.spec.labels if plan.spec is not None else {}
    record = await records.change(
        plan.ref.attempt_id,
        lambda found: decide_accept(
            found,
            plan.ref,
            now_ms(),
            namespace=workload.namespace,
            kind=workload.main["kind"],
            name=workload.main["metadata"]["name"],
            ranks=ranks_of(plan),
            port=port_of(plan) if plan.job_type is JobType.SERVICE else None,
            keeps_longer=labels.get("debug") == "true",
            job_id=str(plan.job_id),
            most=plan.scales[1] if plan.scales is not None else None,
            by_pod=is_by_pod(plan),
        ),
    )
    failpoint("kubernetes.ensure.accepted")
    if record is None or record.is_over or record.evict_reason:
        return
    kind, name = kind_named(record.kind), record.name
    if record.fate == ACCEPTED:
        main = await make(client, records, plan, workload, secrets, cluster_id)
        failpoint("kubernetes.ensure.made")
        try:
            await records.change(
                plan.ref.attempt_id, lambda found: decide_start(found, plan.ref, now_ms())
            )
        except Tombstoned:
            await client.delete(kind, name, record.namespace, uid=main["metadata"]["uid"])
            raise
        failpoint("kubernetes.ensure.started")
    else:
        found = await client.find(kind, name, record.namespace)
        if found is None:
            return  # it was started, and what became of it is seen by observe
        main = found
    await release(client, workload, main)


async def make(
    client: KubeClient,
    records: RecordStore,
    plan: AttemptPlan,
    workload: Workload,
    secrets: Mapping[str, str],
    cluster_id: str,
) -> dict[str, Any]:
    """Make a workload and what it owns, held back; return it as the cluster has it."""
    await ensure_tenant(client, plan, cluster_id)
    if plan.dispatches:
        # What it needs is made where it is dispatched to: here no pod of it ever runs.
        await name_manager(client, workload, plan.local_queue)
        return await _apply_main(client, workload.main)
    if is_by_pod(plan):
        await require_admission(client, workload, plan.local_queue)
    await _make_claims(client, plan, workload, cluster_id)
    main = await _apply_main(client, workload.main)
    try:
        await _make_parts(client, plan, workload, secrets, cluster_id, main)
    except KubeError as error:
        if not isinstance(error, _LATER):
            await _take_back(client, records, plan, main)
        raise
    return main


async def _take_back(
    client: KubeClient, records: RecordStore, plan: AttemptPlan, main: Mapping[str, Any]
) -> None:
    """Delete a workload that cannot be made whole, this very one, unless it was let go meanwhile.

    Another process may start the same attempt when a lease goes over, and get what was refused
    here: what it let go runs, and the name alone does not tell the two apart.
    """
    record, _ = await records.load(plan.ref.attempt_id)
    if record is None or record.fate != ACCEPTED:
        return
    metadata = main["metadata"]
    await client.delete(
        kind_named(main["kind"]), metadata["name"], metadata["namespace"], uid=metadata["uid"]
    )


async def ensure_tenant(client: KubeClient, plan: AttemptPlan, cluster_id: str) -> None:
    """Make the namespace of a plan's tenant as onboarding does, unless it is there."""
    tenancy = Tenancy(plan.tenant_name, str(plan.tenant_id), cluster_id, {})
    await ensure_namespace(client, namespace_object(tenancy))


async def make_owned(
    client: KubeClient,
    plan: AttemptPlan,
    workload: Workload,
    secrets: Mapping[str, str],
    cluster_id: str,
    main: Mapping[str, Any],
) -> None:
    """Make what a workload needs that somebody else has made, and what goes with it."""
    await _make_claims(client, plan, workload, cluster_id)
    await _make_parts(client, plan, workload, secrets, cluster_id, main)


async def require_admission(client: KubeClient, workload: Workload, local_queue: str) -> None:
    """See that Kueue would admit the pods of a Deployment: it is asked, and nothing is written.

    Its webhook gives them the queue; where it looks at no Deployment nobody would let them go.

    Raises:
        Unavailable: If it does not.
        KubeError: What else the cluster refuses.
    """
    main = workload.main
    metadata = {**main["metadata"], "labels": {**main["metadata"]["labels"], QUEUE: local_queue}}
    try:
        found = await client.create({**main, "metadata": metadata}, dry_run=True)
    except AlreadyThere:
        return  # it was asked before this was made
    if QUEUE not in (found["spec"]["template"]["metadata"].get("labels") or {}):
        raise Unavailable(
            NOT_ADMITTING,
            "Kueue there does not admit the pods of Deployments: `deployment` (before v0.15 also "
            "`pod`) is missing among integrations.frameworks of its configuration.",
        )


async def name_manager(client: KubeClient, workload: Workload, local_queue: str) -> None:
    """Have a Job that is to be made name who manages it, as the manager's own webhook would.

    The webhook looks at a Job when it is made, and is told the queue of ours only afterwards; who
    manages it can never be changed. So it is asked what it would do, and nothing is written.

    Raises:
        Unavailable: If it hands no Job of this queue to MultiKueue.
        KubeError: What else the cluster refuses.
    """
    main = workload.main
    metadata = {**main["metadata"], "labels": {**main["metadata"]["labels"], QUEUE: local_queue}}
    found = await client.find(JOB, metadata["name"], workload.namespace)
    if found is None:
        found = await client.create({**main, "metadata": metadata}, dry_run=True)
    manager = found["spec"].get("managedBy")
    if not manager:
        raise Unavailable(
            NOT_DISPATCHING,
            f"Kueue there does not hand Jobs of LocalQueue {local_queue} to MultiKueue: it has not "
            "seen that its ClusterQueue dispatches yet, or its feature "
            "MultiKueueBatchJobWithManagedBy is off.",
        )
    main["spec"]["managedBy"] = manager


async def _make_claims(
    client: KubeClient, plan: AttemptPlan, workload: Workload, cluster_id: str
) -> None:
    labels = owner_labels(plan, cluster_id)
    kept = {k: v for k, v in labels.items() if k not in (names.ATTEMPT_ID, names.ATTEMPT)}
    kept.pop(names.EPOCH, None)
    for name, spec in workload.claims:
        # The claims of a chart are its job's own; the named volumes of a tenant are its data.
        is_chart = names.RELEASE in workload.main["metadata"]["labels"]
        own = is_chart or name == names.checkpoint_claim_name(plan.job_id)
        marks = {k: v for k, v in kept.items() if own or k != names.JOB_ID}
        # Made once and never changed: what a claim asks for cannot be.
        with contextlib.suppress(AlreadyThere):
            await client.create(claim_of(name, spec, workload.namespace, marks))


async def _make_parts(
    client: KubeClient,
    plan: AttemptPlan,
    workload: Workload,
    secrets: Mapping[str, str],
    cluster_id: str,
    main: Mapping[str, Any],
) -> None:
    """Make what belongs to a workload and goes with it."""
    if secrets:
        secret = secret_of(plan, cluster_id, workload.namespace, secrets)
        with contextlib.suppress(AlreadyThere):
            await client.create(owned_by(secret, main))
    await asyncio.gather(*(_apply(client, owned_by(dict(each), main)) for each in workload.owned))


async def _apply_main(client: KubeClient, main: Mapping[str, Any]) -> dict[str, Any]:
    """Apply a workload; one that was made before is taken as it is where it cannot be changed.

    A control plane that died may have had another address or version: its pods would differ.
    """
    try:
        return await _apply(client, main)
    except Invalid:
        metadata = main["metadata"]
        found = await client.find(kind_named(main["kind"]), metadata["name"], metadata["namespace"])
        labels = {} if found is None else found["metadata"].get("labels") or {}
        if found is None or labels.get(names.ATTEMPT_ID) != metadata["labels"][names.ATTEMPT_ID]:
            raise
        return found


async def _apply(client: KubeClient, obj: Mapping[str, Any]) -> dict[str, Any]:
    """Apply an object; once more where another of our processes applied it at the same moment."""
    try:
        return await client.apply(obj)
    except FieldConflict:
        raise
    except (Conflict, AlreadyThere):
        return await client.apply(obj)


async def release(client: KubeClient, workload: Workload, main: Mapping[str, Any]) -> None:
    """Let a workload go, this very object as it was read; look again where it changed."""
    kind = kind_named(main["kind"])
    name, namespace = main["metadata"]["name"], main["metadata"]["namespace"]
    current: Mapping[str, Any] | None = main
    while current is not None and current["metadata"]["uid"] == main["metadata"]["uid"]:
        metadata = current["metadata"]
        if (metadata.get("annotations") or {}).get(RELEASED) or metadata.get("deletionTimestamp"):
            break
        guard = {
            "uid": metadata["uid"],
            "resourceVersion": metadata["resourceVersion"],
            "annotations": {RELEASED: "true"},
        }
        patch = {**workload.release, "metadata": {**workload.release.get("metadata", {}), **guard}}
        try:
            await client.patch(kind, name, patch, namespace)
            break
        except Conflict:
            current = await client.find(kind, name, namespace)
        except NotThere:
            return
    failpoint("kubernetes.ensure.released")
    for each in workload.scaling:
        try:
            await _apply(client, owned_by(dict(each), main))
        except Forbidden:
            log.warning("%s may not be made: %s is scaled by hand alone", each["kind"], name)
