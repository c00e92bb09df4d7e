"""From a plan to objects: equal bytes for equal plans, and what each kind of job becomes."""

from __future__ import annotations

import json
import re
import uuid
from dataclasses import replace
from typing import Any

import pytest

from gpuplane.backends.interface import (
    AttemptPlan,
    AttemptRef,
    BackendError,
    ReplicaPlan,
    Unfit,
)
from gpuplane.backends.kubernetes import names
from gpuplane.backends.kubernetes.manifests import jobs
from gpuplane.backends.kubernetes.manifests.workloads import (
    Workload,
    compute_workload,
    owned_by,
    secret_of,
)
from gpuplane.backends.kubernetes.served import Served, read_classes
from gpuplane.backends.kubernetes.settings import KubernetesSettings, VolumeSource
from gpuplane.core.ids import AttemptId, GpuId, JobId, ReplicaId, TenantId
from gpuplane.core.workloads import (
    DeploymentType,
    Execution,
    HealthCheck,
    JobSpec,
    JobType,
    Mount,
    PlacementRequest,
    ReplicaRequest,
    ResourceRequest,
    ScaleTrigger,
    Toleration,
)

SETTINGS = KubernetesSettings()
BARE = Served()


def a_plan(*nodes: str, job_type: JobType = JobType.BATCH, **changes: Any) -> AttemptPlan:
    """Return a plan with a replica on each of these nodes, one by default."""
    spec = JobSpec(name="train it", job_type=job_type, deployment_type=DeploymentType.DOCKER)
    plan = AttemptPlan(
        ref=AttemptRef(AttemptId(uuid.UUID("01890000-0000-7000-8000-00000000abcd")), 1),
        job_id=JobId(uuid.UUID(int=1)),
        job_name="Train it!",
        tenant_id=TenantId(uuid.UUID(int=2)),
        tenant_name="acme",
        project_name="p",
        attempt_number=1,
        job_type=job_type,
        execution=Execution(image="img:1", command=("run",), env={"A": "1"}),
        resources=ResourceRequest(cpu_milli=500, memory_mib=256, ephemeral_mib=0),
        replicas=tuple(
            ReplicaPlan(ReplicaId(uuid.UUID(int=9 + rank)), rank, node)
            for rank, node in enumerate(nodes or ("n1",))
        ),
        spec=spec,
    )
    return replace(plan, **changes)


def compute(
    plan: AttemptPlan, settings: KubernetesSettings = SETTINGS, served: Served = BARE
) -> Workload:
    """Return the objects of a plan without secrets."""
    return compute_workload(plan, settings, "c1", (), served)


def pod_of(workload: Workload) -> dict[str, Any]:
    """Return the pod's spec in the main object."""
    spec: dict[str, Any] = workload.main["spec"]["template"]["spec"]
    return spec


def test_a_batch_job_is_a_suspended_job_in_the_tenants_namespace() -> None:
    workload = compute(a_plan())
    main = workload.main
    assert (main["kind"], main["metadata"]["name"]) == ("Job", "train-it-00000000abcd")
    assert main["metadata"]["namespace"] == "tenant-acme"
    assert (main["spec"]["suspend"], main["spec"]["backoffLimit"]) == (True, 0)
    assert workload.release == {"spec": {"suspend": False}}


def test_equal_plans_give_equal_bytes() -> None:
    first, second = (compute(a_plan("n1", "n2")) for _ in range(2))
    assert json.dumps(first.main) == json.dumps(second.main)
    assert first == second


def test_every_object_is_known_as_ours() -> None:
    workload = compute(a_plan("n1", "n2"))
    labels = workload.main["metadata"]["labels"]
    assert labels == {
        "app.kubernetes.io/managed-by": "gpuplane",
        "gpuplane.io/cluster-id": "c1",
        "gpuplane.io/tenant-id": str(uuid.UUID(int=2)),
        "gpuplane.io/job-id": str(uuid.UUID(int=1)),
        "gpuplane.io/attempt-id": "01890000-0000-7000-8000-00000000abcd",
        "gpuplane.io/attempt": "1",
        "gpuplane.io/epoch": "1",
    }
    assert all(each["metadata"]["labels"] == labels for each in workload.owned)


def test_a_pod_has_what_the_baseline_of_pod_security_asks_and_no_token() -> None:
    pod = pod_of(compute(a_plan()))
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"] == {"seccompProfile": {"type": "RuntimeDefault"}}
    assert pod["containers"][0]["securityContext"] == {"allowPrivilegeEscalation": False}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)


def test_a_pod_is_pinned_by_affinity_and_never_bound() -> None:
    pod = pod_of(compute(a_plan("n7")))
    [term] = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert term == {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n7"]}]}
    assert "nodeName" not in pod


def test_replicas_of_several_places_wait_to_be_told_theirs() -> None:
    workload = compute(a_plan("n1", "n2"))
    assert pod_of(workload)["schedulingGates"] == [{"name": "gpuplane.io/placement"}]
    places = json.loads(workload.main["metadata"]["annotations"]["gpuplane.io/placements"])
    assert [places[rank]["node"] for rank in ("0", "1")] == ["n1", "n2"]


def test_replicas_of_one_place_need_no_gate() -> None:
    assert "schedulingGates" not in pod_of(compute(a_plan("n1", "n1")))


def test_a_gang_is_indexed_with_a_name_for_each_rank() -> None:
    workload = compute(a_plan("n1", "n2"))
    assert workload.main["spec"]["completionMode"] == "Indexed"
    [headless] = workload.owned
    assert headless["spec"]["clusterIP"] == "None"
    assert pod_of(workload)["subdomain"] == headless["metadata"]["name"]
    env = {each["name"]: each for each in pod_of(workload)["containers"][0]["env"]}
    assert env["WORLD_SIZE"]["value"] == "2"
    assert env["MASTER_ADDR"]["value"] == "train-it-00000000abcd-0.train-it-00000000abcd"


def test_a_training_on_several_nodes_is_a_jobset_where_there_are_jobsets() -> None:
    plan = a_plan("n1", "n2", job_type=JobType.TRAINING)
    workload = compute(plan, served=Served(jobsets=True))
    assert workload.main["kind"] == "JobSet"
    assert workload.owned == ()
    [group] = workload.main["spec"]["replicatedJobs"]
    assert group["template"]["spec"]["completions"] == 2
    assert "suspend" not in group["template"]["spec"]
    assert compute(plan).main["kind"] == "Job"
    offered = replace(a_plan("", "", job_type=JobType.TRAINING), local_queue="main")
    assert compute(offered, served=Served(jobsets=True)).main["kind"] == "JobSet"


def test_a_service_and_a_jobset_can_have_the_name_of_every_workload() -> None:
    for job_name in ("7b", "7b-of-a-team-with-very-long-names-of-jobs", "Ünï", "train", "x" * 60):
        name = names.workload_name(job_name, AttemptId(uuid.uuid4()))
        assert re.fullmatch("[a-z]([-a-z0-9]*[a-z0-9])?", name), name  # RFC 1035, as both want it
        assert len(f"{name}-{jobs.RANKS}-0-9999-abcde") <= 63
    assert names.workload_name("7b", AttemptId(uuid.uuid4())).startswith("j-7b-")


def test_a_service_is_a_deployment_with_probes_and_begins_with_no_replica() -> None:
    execution = Execution(image="i", port=9000, health=HealthCheck(path="/ok", interval_s=2))
    plan = a_plan(job_type=JobType.SERVICE, execution=execution)
    workload = compute(plan)
    assert (workload.main["kind"], workload.main["spec"]["replicas"]) == ("Deployment", 0)
    assert workload.release == {"spec": {"replicas": 1}}
    container = pod_of(workload)["containers"][0]
    assert container["readinessProbe"]["httpGet"] == {"path": "/ok", "port": 9000}
    assert container["startupProbe"]["failureThreshold"] == 150
    [service] = workload.owned
    assert service["spec"]["ports"][0]["port"] == 9000
    assert workload.scaling == ()


def test_a_service_goes_to_none_by_a_trigger_that_is_not_what_its_pods_use() -> None:
    plan = a_plan(job_type=JobType.SERVICE, scales=(0, 4))
    asked = ScaleTrigger("cron", (("desiredReplicas", "2"), ("timezone", "UTC")))
    assert plan.spec is not None
    spec = replace(plan.spec, replicas=ReplicaRequest(1, 1, 4, triggers=(asked,)))
    plan = replace(plan, spec=spec)
    [scaler] = compute(plan, served=Served(keda=True)).scaling
    assert scaler["spec"]["minReplicaCount"] == 0
    metadata = {"desiredReplicas": "2", "timezone": "UTC"}
    assert scaler["spec"]["triggers"] == [{"type": "cron", "metadata": metadata}]
    by_use = replace(spec, replicas=ReplicaRequest(triggers=(ScaleTrigger("memory"),)))
    [scaler] = compute(replace(plan, spec=by_use), served=Served(keda=True)).scaling
    assert scaler["spec"]["minReplicaCount"] == 1
    with pytest.raises(Unfit, match="the cluster has no KEDA"):
        compute(plan)


@pytest.mark.parametrize(
    ("served", "kind", "least"),
    [
        (BARE, "HorizontalPodAutoscaler", ("minReplicas", 1)),
        (Served(keda=True), "ScaledObject", ("minReplicaCount", 1)),
    ],
)
def test_a_service_is_scaled_by_what_the_cluster_has_where_each_pod_waits_for_its_place(
    served: Served, kind: str, least: tuple[str, int]
) -> None:
    plan = a_plan(job_type=JobType.SERVICE, scales=(0, 4))
    workload = compute(plan, served=served)
    [scaler] = workload.scaling
    assert scaler["kind"] == kind
    assert scaler["spec"][least[0]] == least[1]
    assert pod_of(workload)["schedulingGates"] == [{"name": "gpuplane.io/placement"}]
    assert "gpuplane.io/rank" not in workload.main["spec"]["template"]["metadata"]["labels"]
    queued = compute(replace(plan, local_queue="q"), served=served)
    assert queued.scaling == workload.scaling
    gates = [{"name": "kueue.x-k8s.io/admission"}]
    assert pod_of(queued)["schedulingGates"] == gates, "nothing starts unasked, whatever is down"
    assert "gpuplane.io/rank" not in queued.main["spec"]["template"]["metadata"]["labels"]
    told = {each["name"]: each.get("value") for each in pod_of(queued)["containers"][0]["env"]}
    own = (str(plan.ref.attempt_id), "c1")
    assert (told["GPUPLANE_ATTEMPT_ID"], told["GPUPLANE_CLUSTER_ID"]) == own
    assert "GPUPLANE_RANK" not in told, "a pod has its rank only once its kubelet has it"
    [rank] = [
        each for each in pod_of(workload)["containers"][0]["env"] if each["name"] == "GPUPLANE_RANK"
    ]
    path = "metadata.labels['gpuplane.io/rank']"  # given in the patch that lifts the gate
    assert rank["valueFrom"]["fieldRef"]["fieldPath"] == path


def test_where_kueue_admits_the_queue_is_the_release_and_nothing_is_pinned() -> None:
    plan = a_plan(
        "", "", local_queue="team", priority_class="high", node_affinity=(("gpu", ("a", "b")),)
    )
    workload = compute(plan)
    labels = {"kueue.x-k8s.io/queue-name": "team", "kueue.x-k8s.io/priority-class": "high"}
    assert workload.release == {"metadata": {"labels": labels}}
    assert "schedulingGates" not in pod_of(workload)
    terms = pod_of(workload)["affinity"]["nodeAffinity"]
    assert "matchExpressions" in str(terms)
    assert "metadata.name" not in str(terms)


def test_a_share_is_placed_by_the_scheduler_that_counts_shares() -> None:
    asked = ResourceRequest(gpu_count=1, gpu_milli=500)
    plan = a_plan(resources=asked)
    replica = replace(plan.replicas[0], gpu_ids=(GpuId("GPU-a"),))
    workload = compute(replace(plan, replicas=(replica,)))
    assert pod_of(workload)["schedulerName"] == "hami-scheduler"
    hints = workload.main["spec"]["template"]["metadata"]["annotations"]
    assert hints == {"gpuplane.io/gpu-ids": "GPU-a", "nvidia.com/use-gpuuuid": "GPU-a"}


def test_tolerations_and_selector_of_the_job_reach_the_pod() -> None:
    plan = a_plan()
    assert plan.spec is not None
    asked = PlacementRequest(
        node_selector={"b": "2"}, tolerations=(Toleration("gpu", "Exists", "", "NoSchedule"),)
    )
    pod = pod_of(compute(replace(plan, spec=replace(plan.spec, placement=asked))))
    assert pod["nodeSelector"] == {"b": "2"}
    assert pod["tolerations"] == [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}]


@pytest.mark.parametrize(
    ("source", "part"),
    [
        (
            VolumeSource("nfs", server="s", path="/x"),
            {"nfs": {"server": "s", "path": "/x", "readOnly": False}},
        ),
        (
            VolumeSource("memory", size_mib=64),
            {"emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}},
        ),
        (
            VolumeSource(claim="there"),
            {"persistentVolumeClaim": {"claimName": "there", "readOnly": False}},
        ),
    ],
)  # fmt: skip - a table
def test_the_cluster_says_what_the_name_of_a_volume_is(
    source: VolumeSource, part: dict[str, Any]
) -> None:
    plan = a_plan(execution=Execution(image="i", mounts=(Mount("data", "/data"),)))
    workload = compute(plan, KubernetesSettings(volumes={"data": source}))
    assert pod_of(workload)["volumes"][0] == {"name": "volume-data", **part}
    assert workload.claims == ()


def test_a_local_disk_is_a_volume_of_the_pods_own() -> None:
    plan = a_plan(execution=Execution(image="i", mounts=(Mount("nvme", "/s"),)))
    source = VolumeSource("local_ssd", storage_class="local", size_mib=100)
    volume, *_ = pod_of(compute(plan, KubernetesSettings(volumes={"nvme": source})))["volumes"]
    assert volume["ephemeral"]["volumeClaimTemplate"]["spec"]["storageClassName"] == "local"


def test_a_volume_that_nobody_described_is_a_claim_of_the_tenants() -> None:
    plan = a_plan(execution=Execution(image="i", mounts=(Mount("data", "/data"),)))
    [(name, spec)] = compute(plan).claims
    assert (name, spec["accessModes"]) == ("volume-data", ["ReadWriteOnce"])


@pytest.mark.parametrize(
    ("served", "named"),
    [
        (Served(storage_classes=frozenset({"standard"})), "standard"),
        (Served(storage_classes=frozenset({"fast"}), default_class="fast"), None),
    ],
)
def test_checkpoints_use_the_class_that_was_asked_or_the_clusters_own(
    served: Served, named: str | None
) -> None:
    [(_, spec)] = compute(a_plan("n1", "n2", checkpoint_path="/c"), served=served).claims
    assert spec.get("storageClassName") == named
    assert spec["accessModes"] == ["ReadWriteMany"]


def test_a_cluster_without_storage_keeps_checkpoints_with_the_pod() -> None:
    workload = compute(a_plan(checkpoint_path="/c"))
    assert workload.claims == ()
    assert "emptyDir" in pod_of(workload)["volumes"][0]


def test_the_default_class_is_found_by_its_annotation() -> None:
    mark = {"storageclass.kubernetes.io/is-default-class": "true"}
    classes = [{"metadata": {"name": "a"}}, {"metadata": {"name": "b", "annotations": mark}}]
    assert read_classes(classes) == (frozenset({"a", "b"}), "b")


def test_secrets_are_named_in_the_pod_and_kept_in_an_immutable_object() -> None:
    plan = a_plan()
    workload = compute_workload(plan, SETTINGS, "c1", ("TOKEN",), BARE)
    assert "hidden" not in json.dumps(workload.main)
    env = {each["name"]: each for each in pod_of(workload)["containers"][0]["env"]}
    name = workload.main["metadata"]["name"]
    assert env["TOKEN"]["valueFrom"]["secretKeyRef"] == {"name": name, "key": "TOKEN"}
    made = {**workload.main, "metadata": {**workload.main["metadata"], "uid": "u"}}
    secret = owned_by(secret_of(plan, "c1", "tenant-acme", {"TOKEN": "hidden"}), made)
    assert secret["immutable"]
    assert secret["metadata"]["ownerReferences"][0]["uid"] == "u"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"execution": Execution(command=("x",))}, "needs an image"),
        ({"replicas": ()}, "no replica"),
    ],
)
def test_what_cannot_run_there_is_refused_with_a_sentence(
    changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(BackendError, match=said):
        compute(a_plan(**changes))


def test_a_job_that_is_dispatched_says_its_exit_code_where_only_its_conditions_are_read() -> None:
    plan = a_plan("", local_queue="team", dispatches=True)
    [rule] = compute(plan).main["spec"]["podFailurePolicy"]["rules"]
    assert (rule["action"], rule["onExitCodes"]["values"]) == ("FailJob", [0])
    assert "podFailurePolicy" not in compute(replace(plan, dispatches=False)).main["spec"]
