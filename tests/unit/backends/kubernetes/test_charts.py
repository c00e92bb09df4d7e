"""What becomes of a chart's objects, and which charts are refused with field, reason and fix."""

from __future__ import annotations

import json
import tarfile
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuplane.backends.interface import AttemptPlan, BackendError, Phase, ReplicaPlan
from gpuplane.backends.kubernetes import names
from gpuplane.backends.kubernetes.chartplaces import ChartTools, find_chart
from gpuplane.backends.kubernetes.manifests.charts import (
    Release,
    compute_release,
    rendered_name,
    values_of,
    wrap_chart,
)
from gpuplane.backends.kubernetes.observing import observe_attempt
from gpuplane.backends.kubernetes.outcomes import compute_outcomes
from gpuplane.backends.kubernetes.placing import plan_places
from gpuplane.backends.kubernetes.settings import KubernetesSettings
from gpuplane.backends.kubernetes.shapes import Gate, Main, Meta, Pod
from gpuplane.core.ids import GpuId, ReplicaId
from gpuplane.core.reasons import Word
from gpuplane.core.workloads import ChartRequest, JobType, ResourceRequest
from tests.contract.builders import a_plan
from tests.unit.backends.kubernetes.builders import a_pod, a_record, a_sight, ended, running

GPU = {"resources": {"limits": {"nvidia.com/gpu": 1}}}


def a_release_plan(*nodes: str, gpus: int = 0, **chart: Any) -> AttemptPlan:
    """Return the plan of a chart with a replica on each node."""
    plan = a_plan(
        job_type=JobType.SERVICE,
        resources=ResourceRequest(gpu_count=gpus, cpu_milli=1000, memory_mib=1024),
        command=(),
    )
    replicas = tuple(
        ReplicaPlan(ReplicaId(uuid.uuid4()), rank, node, (GpuId(f"{node}/0"),) * gpus)
        for rank, node in enumerate(nodes or ("node-1",))
    )
    asked = ChartRequest(**{"name": "shop", **chart})
    execution = replace(plan.execution, chart=asked)
    return replace(plan, replicas=replicas, execution=execution)


def an_object(kind: str = "Deployment", name: str = "web", **more: Any) -> dict[str, Any]:
    """Return an object of a chart; `container`, `pod` and `spec` add to what it has."""
    container = {"name": "c", "image": "i", **more.pop("container", {})}
    pod = {"containers": [container], **more.pop("pod", {})}
    spec: dict[str, Any] = {"template": {"metadata": {"labels": {"a": "b"}}, "spec": pod}}
    if kind == "Pod":
        spec = pod
    api = {"Pod": "v1", "Job": "batch/v1"}.get(kind, "apps/v1")
    return {
        "apiVersion": more.pop("api", api),
        "kind": kind,
        "metadata": {"name": name, **more.pop("metadata", {})},
        "spec": {**spec, **more.pop("spec", {})},
    }


def computed(plan: AttemptPlan, *objects: object) -> Release:
    """Return the release of a plan."""
    return compute_release(plan, KubernetesSettings(), "cluster", list(objects))


def a_gated(name: str, part: str, **labels: str) -> Pod:
    """Return a pod of a chart that waits for its place."""
    pod = a_pod(phase="Pending", uid=name, name=name, labels={names.PART: part, **labels})
    pod.spec.node_name = ""
    pod.spec.scheduling_gates = [Gate(names.PLACEMENT_GATE)]
    return pod


def test_every_object_carries_its_owner_and_every_pod_waits_behind_the_gate() -> None:
    plan = a_release_plan()
    hook = {"annotations": {"helm.sh/hook": "pre-install"}}
    release = computed(
        plan,
        an_object(),
        None,
        an_object("Job", "setup", metadata=hook),
        an_object("Pod", "check", metadata={"annotations": {"helm.sh/hook": "test"}}),
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
         "spec": {"ports": [{"port": 80}]}},
    )  # fmt: skip
    assert [each["kind"] for each in release.objects] == ["Deployment", "Job", "Service"]
    for each in release.objects:
        assert each["metadata"]["labels"][names.ATTEMPT_ID] == str(plan.ref.attempt_id)
        assert each["metadata"]["labels"][names.TENANT_ID] == str(plan.tenant_id)
    deployment, job, _ = release.objects
    for each, part in ((deployment, "replica"), (job, "helper")):
        template = each["spec"]["template"]
        assert template["spec"]["schedulingGates"] == [{"name": names.PLACEMENT_GATE}]
        assert template["metadata"]["labels"][names.PART] == part
        assert template["metadata"]["labels"]["a"] == "b"
    assert (release.service, release.port) == ("web", 80)


def test_what_is_installed_is_what_was_checked_and_belongs_to_the_anchor() -> None:
    plan = a_release_plan()
    text = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "t"},
            "data": {"a": "{{ .Values.x }}"}}  # fmt: skip
    files = wrap_chart(
        computed(plan, text, an_object()), {"name": "shop", "version": "1.2.3"}, "uid-1"
    )
    assert json.loads(files["Chart.yaml"])["version"] == "1.2.3"
    assert files["templates/objects.yaml"] == '{{ .Files.Get "objects.yaml" }}\n'
    [written, _] = [json.loads(part) for part in files["objects.yaml"].split("---\n") if part]
    assert written["data"] == text["data"]
    [owner] = written["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("ConfigMap", "uid-1")


def test_claims_outlive_the_release_under_names_that_the_next_attempt_finds() -> None:
    plan = a_release_plan()
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"},
             "spec": {"resources": {}}}  # fmt: skip
    stateful = an_object("StatefulSet", "db", spec={
        "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {}}]})  # fmt: skip
    release = computed(plan, claim, stateful)
    assert release.claims == (("data", {"resources": {}}),)
    [kept] = release.objects[0]["spec"]["volumeClaimTemplates"]
    assert kept["metadata"]["labels"][names.JOB_ID] == str(plan.job_id)
    assert names.ATTEMPT_ID not in kept["metadata"]["labels"]
    again = replace(plan, ref=replace(plan.ref, attempt_id=uuid.uuid4()), attempt_number=2)
    assert rendered_name(again) == rendered_name(plan)


def test_a_value_may_name_the_secret_of_its_job() -> None:
    plan = a_release_plan(values={"auth": {"existing": ["$(GPUPLANE_SECRET)"]}, "n": 1})
    name = names.workload_name(plan.job_name, plan.ref.attempt_id)
    assert values_of(plan) == {"auth": {"existing": [name]}, "n": 1}


@pytest.mark.parametrize(
    ("objects", "gpus", "field", "why"),
    [
        ([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n"}}], 0, "spec.chart",
         "Namespace n, which is not in a namespace"),
        ([an_object(metadata={"namespace": "kube-system"})], 0, "spec.chart", "kube-system"),
        ([an_object("DaemonSet")], 0, "spec.chart", "every node"),
        ([{"apiVersion": "x.io/v1", "kind": "Thing", "metadata": {"name": "t"}}], 0, "spec.chart",
         "nothing here knows"),
        ([an_object(api="other.io/v1")], 0, "spec.chart", "nothing here knows"),
        ([an_object(pod={"hostNetwork": True})], 0, "spec.chart", "hostNetwork"),
        ([an_object(pod={"volumes": [{"hostPath": {"path": "/etc"}}]})], 0, "spec.chart", "/etc"),
        ([an_object(container={"securityContext": {"privileged": True}})], 0, "spec.chart",
         "privileged"),
        ([an_object(pod={"nodeName": "n"})], 0, "spec.chart", "names its node"),
        ([an_object(pod={"priorityClassName": "high"})], 0, "spec.chart", "priority class"),
        ([an_object(pod={"schedulerName": "mine"})], 0, "spec.chart", "scheduler of its own"),
        ([{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"},
           "spec": {"externalIPs": ["1.1.1.1"]}}], 0, "spec.chart", "addresses of others"),
        ([an_object(container=GPU)], 0, "gpu_count", "the job for no GPU"),
        ([an_object(container=GPU)], 2, "gpu_count", "1 nvidia.com/gpu, and a replica of the job"),
        ([an_object()], 1, "replicas.count", "0 pods of the chart ask for GPUs"),
        ([an_object(container=GPU, spec={"replicas": 3})], 1, "replicas.count", "3 pods"),
        ([an_object("Job", container=GPU)], 1, "spec.chart", "ends by itself"),
        ([an_object(container={"resources": {"requests": {"cpu": "1500m"}}})], 0, "cpu_cores",
         "1500m of CPU"),
        ([an_object(container={"resources": {"limits": {"memory": "1Gi"}}}, spec={"replicas": 2})],
         0, "memory_gb", "2048 MiB"),
        ([an_object(container={"resources": {"requests": {"cpu": "much"}}})], 0, "spec.chart",
         "cannot be read"),
        ([an_object(container={"resources": {"requests": {"cpu": -1}}})], 0, "spec.chart",
         "Deployment web, container c: resources.requests.cpu is negative: -1"),
        ([an_object(), an_object("Job", container={"resources": {"limits": {"memory": "-1Gi"}}})],
         0, "spec.chart", "resources.limits.memory is negative"),
        ([an_object(pod={"initContainers": [{"name": "i", "resources": {"limits": {"x": "G"}}}]})],
         0, "spec.chart", "container i: resources.limits.x cannot be read"),
        ([an_object(container=GPU | {"resources": {"limits": {"nvidia.com/gpu": -1}}})], 1,
         "spec.chart", "resources.limits.nvidia.com/gpu is negative"),
        ([an_object(container={"resources": {"requests": "much"}})], 0, "spec.chart",
         "resources.requests cannot be read"),
        ([an_object(spec={"replicas": -1})], 0, "spec.chart", "Deployment web has replicas: -1"),
        ([["no object"]], 0, "spec.chart", "no object"),
        ([None], 0, "spec.chart", "makes nothing"),
    ],
)  # fmt: skip
def test_a_chart_that_does_not_fit_is_refused_by_field_and_reason(
    objects: list[Any], gpus: int, field: str, why: str
) -> None:
    with pytest.raises(BackendError) as refused:
        computed(a_release_plan(gpus=gpus), *objects)
    assert refused.value.message.startswith(f"{field}: ")
    assert why in refused.value.message
    assert refused.value.word == Word.START_REFUSED


def cpus(count: object) -> dict[str, Any]:
    """Return what asks for so many cores."""
    return {"resources": {"requests": {"cpu": count}}}


def hook(*events: str) -> dict[str, Any]:
    """Return the metadata of a hook."""
    return {"annotations": {"helm.sh/hook": ",".join(events)}}


CLAIM = {"volumeClaimTemplate": {"spec": {"resources": {"requests": {"storage": "1Gi"}}}}}
VOLUMES: list[dict[str, Any]] = [
    {"configMap": {"name": "c"}}, {"secret": {"secretName": "s"}}, {"emptyDir": {}},
    {"persistentVolumeClaim": {"claimName": "data"}}, {"downwardAPI": {"items": []}},
    {"ephemeral": CLAIM}, {"image": {"reference": "models:1"}}, {"emptyDir": {}, "nfs": None},
    {"projected": {"sources": [{"configMap": {"name": "c"}}, {"secret": {"name": "s"}},
                               {"downwardAPI": {}}]}},
]  # fmt: skip
"""What charts may mount."""


@pytest.mark.parametrize(
    ("volume", "why"),
    [
        ({"hostPath": {"path": "/etc"}}, "mounts the host's path /etc"),
        ({"nfs": {"server": "10.0.0.2", "path": "/exports/other"}}, "of the kind nfs"),
        ({"iscsi": {"targetPortal": "10.0.0.2"}}, "of the kind iscsi"),
        ({"csi": {"driver": "nfs.csi.k8s.io"}}, "of the kind csi"),
        ({"cephfs": {"monitors": []}}, "of the kind cephfs"),
        ({"rbd": {}}, "of the kind rbd"),
        ({"glusterfs": {"path": "a"}}, "of the kind glusterfs"),
        ({"fc": {"lun": 0}}, "of the kind fc"),
        ({"flexVolume": {"driver": "x"}}, "of the kind flexVolume"),
        ({"gitRepo": {"repository": "x"}}, "of the kind gitRepo"),
        ({"local": {"path": "/"}}, "of the kind local"),
        ({"awsElasticBlockStore": {"volumeID": "v"}}, "of the kind awsElasticBlockStore"),
        ({"madeUpLater": {}}, "of the kind madeUpLater"),
        ({"emptyDir": {}, "nfs": {"server": "s"}}, "of the kind nfs"),
        ({"projected": {"sources": [{"configMap": {}}, {"serviceAccountToken": {"path": "t"}}]}},
         "Deployment web, volume v: projected.sources.serviceAccountToken"),
        ({"projected": {"sources": [{"clusterTrustBundle": {}}]}}, "sources.clusterTrustBundle"),
    ],
)  # fmt: skip
def test_a_volume_that_reaches_beyond_the_tenant_is_refused(
    volume: dict[str, Any], why: str
) -> None:
    with pytest.raises(BackendError) as refused:
        computed(a_release_plan(), an_object(pod={"volumes": [{"name": "v", **volume}]}))
    assert refused.value.message.startswith("spec.chart: ")
    assert why in refused.value.message
    assert refused.value.word == Word.START_REFUSED


def test_volumes_of_the_tenants_own_are_mounted_as_the_chart_has_them() -> None:
    volumes = [{"name": f"v{at}", **each} for at, each in enumerate(VOLUMES)]
    [made] = computed(a_release_plan(), an_object(pod={"volumes": volumes})).objects
    assert made["spec"]["template"]["spec"]["volumes"] == volumes


@pytest.mark.parametrize(
    ("obj", "why"),
    [
        (an_object(pod={"automountServiceAccountToken": True}), "asks for a token"),
        (an_object("Job", pod={"automountServiceAccountToken": True, "serviceAccountName": "a"}),
         "asks for a token"),
        ({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "t"},
          "type": "kubernetes.io/service-account-token"}, "Secret t is to be filled"),
        ({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "other"},
          "spec": {"nfs": {"server": "s", "path": "/"}}}, "PersistentVolume other"),
    ],
)  # fmt: skip
def test_a_chart_that_takes_a_token_or_a_volume_of_the_cluster_is_refused(
    obj: dict[str, Any], why: str
) -> None:
    with pytest.raises(BackendError) as refused:
        computed(a_release_plan(), an_object(), obj)
    assert why in refused.value.message


def test_no_pod_of_a_chart_has_a_token_whatever_its_service_account_says() -> None:
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "a"}}
    for told in ({}, {"automountServiceAccountToken": True}):
        made = computed(
            a_release_plan(),
            {**account, **told},
            an_object(pod={"serviceAccountName": "a"}),
            an_object("Pod", "p", pod={"automountServiceAccountToken": None}),
        )
        written, deployment, pod = made.objects
        assert written["automountServiceAccountToken"] is False
        assert deployment["spec"]["template"]["spec"]["automountServiceAccountToken"] is False
        assert pod["spec"]["automountServiceAccountToken"] is False


FORBID = {"concurrencyPolicy": "Forbid"}


def a_cron_job(parallelism: object, **spec: Any) -> dict[str, Any]:
    """Return a CronJob whose pods ask for half a core."""
    job = an_object("Job", container=cpus("500m"), spec={"parallelism": parallelism})
    made = {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "nightly"}}
    return {**made, "spec": {"jobTemplate": {"spec": job["spec"]}, **spec}}


@pytest.mark.parametrize(
    ("more", "field", "why"),
    [
        ([an_object("Pod", "p", container=cpus(64))], "cpu_cores", "64000m"),
        ([an_object("Job", "j", container=cpus("250m"), spec={"parallelism": 5})], "cpu_cores",
         "1250m"),
        ([an_object("Job", "j", container=cpus("250m"), spec={"parallelism": 5.0})], "spec.chart",
         "Job j has parallelism: 5.0"),
        ([an_object("ReplicaSet", "r", spec={"replicas": 100.0})], "spec.chart",
         "ReplicaSet r has replicas: 100.0"),
        ([an_object(spec={"replicas": True})], "spec.chart", "has replicas: True"),
        ([a_cron_job(3, **FORBID)], "cpu_cores", "1500m"),
        ([a_cron_job(1.5, **FORBID)], "spec.chart", "CronJob nightly has parallelism: 1.5"),
        ([a_cron_job(1, concurrencyPolicy="Allow")], "spec.chart", "any number of runs"),
        ([an_object(pod={"initContainers": [{"name": "s", "restartPolicy": "Always"} | cpus(2)]})],
         "cpu_cores", "2000m"),
        ([an_object(pod={"initContainers": [{"name": "i"} | cpus(2)]})], "cpu_cores", "2000m"),
        ([an_object(pod={"initContainers": [
            {"name": "s", "restartPolicy": "Always"} | cpus("600m"),
            {"name": "i"} | cpus("600m")]})],
         "cpu_cores", "1200m"),
        ([an_object(pod=cpus(64))], "cpu_cores", "64000m"),
        ([an_object(pod={"resources": {"limits": {"memory": "64Gi"}}})], "memory_gb", "65536 MiB"),
        ([an_object(pod=cpus("much"))], "spec.chart",
         "Deployment web: resources.requests.cpu cannot be read"),
        ([an_object(pod={"resources": "much"})], "spec.chart", "it is no mapping"),
        ([an_object(pod={"overhead": {"cpu": 3}})], "cpu_cores", "3000m"),
        ([an_object(container={"resources": {"limits": {"cpu": 2}, "requests": {"cpu": None}}})],
         "cpu_cores", "2000m"),
        ([an_object("Job", "j", metadata=hook("pre-install"), container=cpus(2))], "cpu_cores",
         "2000m"),
        ([an_object(container=cpus(1)),
          an_object("Job", "j", metadata=hook("post-install"), container=cpus(1))], "cpu_cores",
         "2000m"),
        ([an_object(container=cpus(1)),
          an_object("ReplicaSet", "r", metadata=hook("pre-install"), container=cpus(1))],
         "cpu_cores", "2000m"),
    ],
)  # fmt: skip
def test_every_pod_that_a_chart_makes_counts_against_what_its_job_asks_for(
    more: list[Any], field: str, why: str
) -> None:
    with pytest.raises(BackendError) as refused:
        computed(a_release_plan(), an_object(name="other"), *more)
    assert refused.value.message.startswith(f"{field}: ")
    assert why in refused.value.message


def test_what_runs_one_after_another_is_counted_once() -> None:
    before = ("pre-install", "pre-upgrade")
    release = computed(
        a_release_plan(),
        an_object(container=cpus("600m"), pod={"initContainers": [{"name": "i"} | cpus(1)]}),
        an_object("Job", "first", metadata=hook(*before), container=cpus(1)),
        an_object("Pod", "second", metadata=hook("pre-install"), container=cpus(1)),
        an_object("Job", "third", container=cpus(0)),
    )
    assert len(release.objects) == 4


def test_runs_of_a_cron_job_never_overlap_unless_it_says_so_and_is_refused() -> None:
    for policy, written in ((None, "Forbid"), ("Forbid", "Forbid"), ("Replace", "Replace")):
        cron = a_cron_job(2, concurrencyPolicy=policy)
        _, made = computed(a_release_plan(), an_object(), cron).objects
        assert made["spec"]["concurrencyPolicy"] == written


def test_pods_with_gpus_get_a_rank_each_and_others_any_node_of_the_job() -> None:
    plan = a_release_plan("n1", "n2", gpus=1)
    release = computed(plan, an_object(container=GPU, spec={"replicas": 2}), an_object(name="db"))
    main = Main(Meta("m", annotations=release.anchor["metadata"]["annotations"]))
    pods = [a_gated(name, "device") for name in ("w1", "w2", "w3")]
    found = {
        pod.metadata.name: patch
        for pod, patch in plan_places(main, [*pods, a_gated("d", "helper")])
    }
    assert sorted(found) == ["d", "w1", "w2"]
    assert found["w2"]["metadata"]["labels"] == {names.RANK: "1"}
    assert found["w2"]["metadata"]["annotations"][names.GPU_IDS] == "n2/0"
    affinity = found["d"]["spec"]["affinity"]["nodeAffinity"]
    terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert [term["matchFields"][0]["values"] for term in terms] == [["n1"], ["n2"]]


def test_a_rank_is_free_again_once_its_pod_is_over() -> None:
    main = Main(Meta("m", annotations={names.PLACEMENTS: '{"0": {"node": "n1"}}'}))
    old = a_pod(labels={names.PART: "device", names.RANK: "0"})
    assert plan_places(main, [old, a_gated("new", "device")]) == []
    old.status.phase = "Failed"
    [(pod, _)] = plan_places(main, [old, a_gated("new", "device")])
    assert pod.metadata.name == "new"


def test_a_release_is_ready_when_all_its_pods_are_and_tells_what_keeps_one() -> None:
    first = a_pod(state=running(), labels={names.PART: "device", names.RANK: "0"})
    other = a_pod(
        1, phase="Pending", labels={names.PART: "helper"},
        state={"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}},
    )  # fmt: skip
    other.status.container_statuses[0].ready = False
    sight = a_sight(first, other, record=a_record(kind="ConfigMap"))
    [seen] = observe_attempt(sight)
    assert (seen.phase, seen.ready) == (Phase.RUNNING, False)
    assert seen.message == "j-1: ImagePullBackOff: no such image"
    other.status.container_statuses[0].ready = True
    other.status.container_statuses[0].state.waiting = None
    [seen] = observe_attempt(sight)
    assert (seen.ready, seen.message) == (True, "")


def test_a_release_is_over_only_when_its_anchor_and_all_its_pods_are_gone() -> None:
    record = a_record(kind="ConfigMap", evict_reason="Cancelled", evict_at=30)
    rank = a_pod(phase="Failed", state=ended(143), labels={names.PART: "device", names.RANK: "0"})
    helper = a_pod(1, state=running(), labels={names.PART: "helper"})
    assert compute_outcomes(a_sight(rank, helper, record=record), 99) == {}
    sight = replace(a_sight(rank, helper, record=record), main=None)
    assert compute_outcomes(sight, 99) == {}
    helper.status.phase = "Failed"
    assert compute_outcomes(sight, 99)[0].reason == "Cancelled"


def test_charts_come_from_the_servers_folder_and_from_places_that_are_allowed(
    tmp_path: Path,
) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "Chart.yaml").write_text("{}")
    (tmp_path / "shop-1.0.0.tgz").write_text("")
    tools = ChartTools("helm", str(tmp_path), ("https://charts.example.com/a", "oci://hub/team"))
    for asked, ref, repo in (
        ({}, str(tmp_path / "shop"), None),
        ({"version": "1.0.0"}, str(tmp_path / "shop-1.0.0.tgz"), None),
        ({"name": "q/shop", "repo": "https://charts.example.com/a/", "version": "1"}, "shop",
         "https://charts.example.com/a/"),
        ({"name": "oci://hub/team/shop", "version": "1"}, "oci://hub/team/shop", None),
    ):  # fmt: skip
        with find_chart(tools, a_release_plan(**asked)) as chart:
            assert (chart.ref, chart.repo) == (ref, repo)
    for asked, field in (
        ({"name": "other"}, "spec.chart.name"),
        ({"version": "2.0.0"}, "spec.chart.name"),
        ({"repo": "https://charts.example.com/ab", "version": "1"}, "spec.chart.repo"),
        ({"repo": "https://charts.example.com/a"}, "spec.chart.version"),
        ({"name": "oci://hub/teams/shop", "version": "1"}, "spec.chart.name"),
        ({"name": "./charts/shop"}, "spec.workspace_digest"),
    ):
        with pytest.raises(BackendError, match=field), find_chart(tools, a_release_plan(**asked)):
            raise AssertionError("it was taken")


def test_a_chart_of_the_working_directory_is_unpacked_without_links_that_lead_out(
    tmp_path: Path,
) -> None:
    source = tmp_path / "work" / "deploy"
    source.mkdir(parents=True)
    (source / "Chart.yaml").write_text("name: it")
    (source / "leak").symlink_to("/etc/passwd")
    archive = tmp_path / "work.tgz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(tmp_path / "work", ".")
    plan = replace(a_release_plan(name="./deploy"), workspace_archive=str(archive))
    with find_chart(ChartTools("helm"), plan) as chart:
        folder = Path(chart.ref)
        assert [each.name for each in folder.iterdir()] == ["Chart.yaml"]
    assert not folder.exists()
    wrong = replace(a_release_plan(name="./other"), workspace_archive=str(archive))
    with pytest.raises(BackendError, match="holds no Chart"), find_chart(ChartTools(), wrong):
        raise AssertionError("it was taken")
