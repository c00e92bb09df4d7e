"""What a pod asks for."""

import pytest

from gpuplane.core.topology.matrix import LinkPreference
from gpuplane.extender.pods import MAX_RESOURCES_BYTES, BadPod
from tests.unit.extender.objects import a_pod, facts


def container(cpu: str, gpus: int = 0, **more: object) -> dict[str, object]:
    limits = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    return {"resources": {"requests": {"cpu": cpu}, "limits": limits}, **more}


def test_containers_add_up_and_limits_stand_for_requests() -> None:
    pod = a_pod("x")
    pod["spec"]["containers"] = [container("500m", 1), container("1500m", 2)]
    found = facts(pod)
    assert (found.gpus, found.cpu_milli, found.resource) == (3, 2000, "nvidia.com/gpu")


def test_init_containers_count_where_they_take_more_and_sidecars_always() -> None:
    pod = a_pod("x")
    pod["spec"]["containers"] = [container("1", 2)]
    pod["spec"]["initContainers"] = [
        container("500m", restartPolicy="Always"),
        container("4", 1),
    ]
    found = facts(pod)
    assert (found.gpus, found.cpu_milli) == (2, 4500)


def test_overhead_and_requests_of_the_whole_pod_count() -> None:
    pod = a_pod("x", overhead={"cpu": "250m", "memory": "64Mi"})
    pod["spec"]["resources"] = {"requests": {"cpu": "3"}}
    found = facts(pod)
    assert (found.cpu_milli, found.memory_mib) == (3250, 1088)


def test_what_is_not_whole_is_rounded_up_as_kube_scheduler_does() -> None:
    pod = a_pod("x")
    pod["spec"]["containers"] = [{"resources": {"requests": {"cpu": "1u", "memory": "1"}}}]
    found = facts(pod)
    assert (found.cpu_milli, found.memory_mib) == (1, 1)


def test_pods_of_one_class_share_it() -> None:
    one, other = facts(a_pod("a", 4)), facts(a_pod("b", 4))
    assert one.workload is other.workload
    assert facts(a_pod("c", 2)).workload is not one.workload


def test_preferences_are_read_from_annotations() -> None:
    said = {"gpuplane.io/links": "same_numa", "gpuplane.io/gpu-memory-mib": "70000"}
    workload = facts(a_pod("x", annotations=said)).workload
    assert workload.placement.links is LinkPreference.SAME_NUMA
    assert not workload.placement.links_required
    assert workload.resources.gpu_memory_mib == 70000


@pytest.mark.parametrize("size", ["0", "1", "-2", "many", "99999999", ""])
def test_a_gang_size_that_is_none_makes_no_gang(size: str) -> None:
    pod = a_pod("x", labels={"gpuplane.io/gang": "g"})
    pod["metadata"]["annotations"]["gpuplane.io/gang-size"] = size
    assert facts(pod).gang == ""


def test_more_than_one_mig_instance_is_left_to_kube_scheduler() -> None:
    assert facts(a_pod("x", 1, resource="nvidia.com/mig-1g.10gb")).is_judged
    assert not facts(a_pod("x", 2, resource="nvidia.com/mig-1g.10gb")).is_judged
    assert not facts(a_pod("x", 0)).is_judged


def test_a_quantity_that_is_none_is_named() -> None:
    pod = a_pod("x", cpu="a lot")
    with pytest.raises(BadPod, match="cpu"):
        facts(pod)


def test_resources_that_are_none_are_refused() -> None:
    for resources in (5, "much", {"requests": ["cpu"]}):
        with pytest.raises(BadPod, match="resources"):
            facts(a_pod("x", containers=[{"name": "main", "resources": resources}]))


def test_resources_too_long_to_be_remembered_count_alike() -> None:
    others = {
        f"example.org/{'x' * 50}-{number}": "1" for number in range(MAX_RESOURCES_BYTES // 50)
    }
    asked = {"cpu": "2", "memory": "1Gi", "nvidia.com/gpu": "4"}
    short = facts(a_pod("x", containers=[{"resources": {"requests": asked}}]))
    long = facts(a_pod("x", containers=[{"resources": {"requests": {**others, **asked}}}]))
    assert long == short
    assert (long.gpus, long.cpu_milli, long.memory_mib) == (4, 2_000, 1_024)


def test_a_container_without_resources_asks_for_nothing() -> None:
    for container_of_none in ({"name": "main"}, {"name": "main", "resources": None}):
        pod = facts(a_pod("x", containers=[container_of_none]))
        assert (pod.gpus, pod.cpu_milli) == (0, 0)
