"""Which bound pods get GPUs from the extender: what the informer showed decides, never a clock."""

from typing import Any

from gpuplane.extender.newcomers import Newcomers
from tests.unit.extender.objects import a_pod, facts

LONG_AGO = "2020-01-01T00:00:00Z"


def a_bound_pod(phase: str, **more: Any) -> dict[str, Any]:
    """Return a pod that was bound years before anybody looked, by the clock of its server."""
    pod = a_pod("p", node="n", phase=phase, **more)
    condition = {"type": "PodScheduled", "status": "True", "lastTransitionTime": LONG_AGO}
    pod["status"]["conditions"] = [condition]
    return pod


def test_what_ran_when_the_cluster_was_first_read_keeps_what_it_has() -> None:
    known, pod = Newcomers(), facts(a_bound_pod("Running"))
    known.put(pod, None, in_first_list=True)
    assert not known.needs_devices(pod)
    known.put(pod, pod, in_first_list=False)
    assert not known.needs_devices(pod)


def test_what_is_first_seen_running_after_that_was_bound_since_whatever_its_instants_say() -> None:
    known, pod = Newcomers(), facts(a_bound_pod("Running"))
    known.put(pod, None, in_first_list=False)
    assert known.needs_devices(pod)


def test_a_pod_that_was_seen_waiting_is_served_once_it_is_bound_and_runs() -> None:
    known = Newcomers()
    waiting, running = facts(a_pod("p")), facts(a_bound_pod("Running"))
    known.put(waiting, None, in_first_list=True)
    assert not known.needs_devices(waiting)
    known.put(running, waiting, in_first_list=True)  # the first list was read again
    assert known.needs_devices(running)


def test_a_pod_that_starts_when_the_cluster_is_first_read_is_served_also_once_it_runs() -> None:
    known = Newcomers()
    starting, running = facts(a_bound_pod("Pending")), facts(a_bound_pod("Running"))
    known.put(starting, None, in_first_list=True)
    assert known.needs_devices(starting)
    known.put(running, starting, in_first_list=False)
    assert known.needs_devices(running)


def test_a_pod_of_the_same_name_is_another_pod() -> None:
    known, old = Newcomers(), facts(a_bound_pod("Running"))
    known.put(old, None, in_first_list=True)
    again = a_bound_pod("Running")
    again["metadata"]["uid"] = "another"
    new = facts(again)
    known.drop(old.uid)
    known.put(new, old, in_first_list=False)
    assert known.needs_devices(new)


def test_only_pods_without_gpus_of_the_schedulers_that_are_served_need_any() -> None:
    known = Newcomers(("ours",))
    mine = facts(a_bound_pod("Running", schedulerName="ours"))
    other = facts(a_bound_pod("Running", schedulerName="other"))
    served = facts(a_bound_pod("Running", schedulerName="ours", ids="GPU-1"))
    for pod in (mine, other, served):
        known.put(pod, None, in_first_list=False)
    assert [known.needs_devices(pod) for pod in (mine, other, served)] == [True, False, False]
