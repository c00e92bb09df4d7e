"""Charts under Kueue: the Job that stands in line for one, and what follows from its admission."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from gpuplane.backends.interface import BackendError
from gpuplane.backends.kubernetes import names
from gpuplane.backends.kubernetes.manifests.charts import wrap_chart
from gpuplane.backends.kubernetes.manifests.standins import compute_stand_in, let_go
from gpuplane.backends.kubernetes.observing import observe_attempt
from gpuplane.backends.kubernetes.records import STAND_IN, Record
from gpuplane.backends.kubernetes.settings import KubernetesSettings
from gpuplane.backends.kubernetes.shapes import Main, Pod
from gpuplane.backends.kubernetes.standing import Step, plan_step
from tests.unit.backends.kubernetes.builders import a_main, a_pod, a_record, a_sight, running
from tests.unit.backends.kubernetes.test_charts import (
    GPU,
    a_gated,
    a_release_plan,
    an_object,
    computed,
)


def queued(*nodes: str, gpus: int = 0) -> Any:
    """Return the plan of a chart that Kueue admits."""
    plan = a_release_plan(*nodes, gpus=gpus)
    return replace(plan, local_queue="main", priority_class="gpuplane-normal")


def stood_for(ranks: int = 1, **changes: Any) -> Record:
    """Return the record of a release that a Job stands in line for."""
    return msgspec.structs.replace(a_record(), kind=STAND_IN, ranks=tuple(range(ranks)), **changes)


def the_job(*, suspend: bool, active: int = 0, ready: int = 0, installed: bool = True) -> Main:
    """Return the Job of a release."""
    main = a_main(suspend=suspend)
    main.status.active, main.status.ready = active, ready
    main.metadata.annotations = {names.INSTALLED: "true"} if installed else {}
    return main


def of_part(pod: Pod, part: str = "device") -> Pod:
    """Return a pod as one of a chart."""
    pod.metadata.labels[names.PART] = part
    return pod


def test_one_job_asks_for_all_that_the_chart_may_have_and_owns_what_it_makes() -> None:
    plan = queued("a", "b", gpus=1)
    release = computed(plan, an_object(container=GPU, spec={"replicas": 2}))
    job = release.anchor
    assert job == compute_stand_in(plan, KubernetesSettings(), "cluster", release.namespace)
    assert (job["kind"], job["spec"]["suspend"], job["spec"]["parallelism"]) == ("Job", True, 2)
    assert job["spec"]["managedBy"] == "gpuplane.io/release"
    [container] = job["spec"]["template"]["spec"]["containers"]
    requests = container["resources"]["requests"]
    assert (requests["cpu"], requests["memory"]) == ("1000m", "1024Mi")
    assert requests["nvidia.com/gpu"] == "1"
    files = wrap_chart(release, {}, "uid-1")
    [made] = [json.loads(part) for part in files["objects.yaml"].split("---\n") if part]
    [owner] = made["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["apiVersion"]) == ("Job", "batch/v1")
    assert owner["controller"], "Kueue leaves alone what a Job with a queue controls"
    assert "kueue.x-k8s.io/queue-name" not in json.dumps(made)


@pytest.mark.parametrize(
    ("obj", "said"),
    [
        (an_object("CronJob", "nightly", api="batch/v1"), "stand in line by itself"),
        (
            an_object(metadata={"labels": {"kueue.x-k8s.io/queue-name": "theirs"}}),
            "names a queue of its own",
        ),
    ],
)
def test_what_would_stand_in_line_by_itself_is_refused_under_kueue_alone(
    obj: dict[str, Any], said: str
) -> None:
    pod = {"containers": [{"name": "c", "image": "i"}]}
    if obj["kind"] == "CronJob":
        obj["spec"] = {"jobTemplate": {"spec": {"template": {"spec": pod}}}}
    with pytest.raises(BackendError, match=said):
        computed(queued(), obj, an_object())
    assert computed(a_release_plan(), obj, an_object()).objects


def test_pods_go_when_the_job_is_admitted_each_replica_once_and_are_told_as_active() -> None:
    job = the_job(suspend=False, installed=False)
    pods = [a_gated("b", "device"), a_gated("a", "device"), a_gated("c", "device"),
            a_gated("h", "helper")]  # fmt: skip
    step = plan_step(stood_for(2), job, pods)
    assert step is not None
    assert step.counts == (2, 0)
    went = [(pod.metadata.name, rank) for pod, rank in step.starts]
    assert went == [("a", 0), ("b", 1), ("h", None)]


def test_pods_that_run_are_told_as_ready_and_nothing_is_written_twice() -> None:
    pod = of_part(a_pod(state=running()))
    assert plan_step(stood_for(), the_job(suspend=False, active=1), [pod]) == Step((1, 1))
    assert plan_step(stood_for(), the_job(suspend=False, active=1, ready=1), [pod]) is None


def test_a_job_that_is_suspended_loses_its_chart_and_then_says_that_nothing_runs() -> None:
    pod = of_part(a_pod(state=running()))
    record = stood_for()
    assert plan_step(record, the_job(suspend=True, active=1, ready=1), [pod]) == Step(
        withdraws=True
    )
    off = the_job(suspend=True, active=1, ready=1, installed=False)
    assert plan_step(record, off, [pod]) is None, "its pods are still ending"
    assert plan_step(record, off, []) == Step(counts=(0, 0))
    assert plan_step(record, the_job(suspend=True, installed=False), []) is None


def test_nothing_is_let_go_of_what_was_evicted_or_stands_in_line() -> None:
    pods = [a_gated("a", "device")]
    assert plan_step(stood_for(), the_job(suspend=True, installed=False), pods) is None
    evicted = stood_for(evict_reason="Cancelled", evict_at=1)
    assert plan_step(evicted, the_job(suspend=False), pods) is None
    [seen] = observe_attempt(a_sight(*pods, record=stood_for(), main=the_job(suspend=True)))
    assert (str(seen.phase), seen.node_name) == ("starting", "")


def test_a_pod_goes_to_the_nodes_of_its_quota_and_keeps_what_it_asked_for() -> None:
    asked = {
        "nodeSelector": {"example.com/model": "h100"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}]}}},
    }  # fmt: skip
    own = [{"key": "mine", "operator": "Exists"}]
    pod = {"metadata": {"uid": "u", "resourceVersion": "7"}, "spec": {"tolerations": own}}
    patch = let_go({"spec": {"template": {"spec": asked}}}, pod, 1)
    assert patch["metadata"]["labels"] == {names.RANK: "1"}
    assert patch["spec"]["schedulingGates"] is None
    assert patch["spec"]["tolerations"] == [*own, *asked["tolerations"]]
    affinity = patch["spec"]["affinity"]["nodeAffinity"]
    [term] = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term["matchExpressions"] == [
        {"key": "a", "operator": "Exists"},
        {"key": "example.com/model", "operator": "In", "values": ["h100"]},
    ]
    free = let_go({"spec": {"template": {"spec": {}}}}, pod, None)
    assert free == {"metadata": {"uid": "u", "resourceVersion": "7"},
                    "spec": {"schedulingGates": None}}  # fmt: skip
