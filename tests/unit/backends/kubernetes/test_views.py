"""What is known of a cluster: which object is the workload of an attempt."""

from __future__ import annotations

import json

import msgspec
import pytest

from gpuplane.backends.kubernetes.names import GPU_IDS, PLACEMENTS
from gpuplane.backends.kubernetes.shapes import Main
from gpuplane.backends.kubernetes.views import ClusterView
from tests.unit.backends.kubernetes.builders import (
    ID,
    a_main,
    a_pod,
    a_record,
    another_attempt,
    broken,
    ended,
    running,
)


def the_set_and_its_job() -> tuple[Main, Main]:
    """Return a JobSet and the Job that its controller made, with the labels of its template."""
    whole, part = a_main("JobSet"), a_main()
    reference = {"kind": "JobSet", "name": "j", "uid": whole.metadata.uid}
    told = {"name": "j-r-0", "namespace": "tenant-t", "uid": "part", "labels": part.metadata.labels}
    part.metadata = msgspec.convert(
        {**told, "ownerReferences": [reference]}, type=type(part.metadata)
    )
    return whole, part


@pytest.mark.parametrize("first", ["JobSet", "Job"])
def test_the_job_of_a_set_never_stands_for_the_set(first: str) -> None:
    view = ClusterView()
    for main in sorted(the_set_and_its_job(), key=lambda each: each.kind != first):
        view.take_main(main)
    found = view.main(ID)
    assert found is not None
    assert (found.kind, [each.metadata.name for each in view.mains()]) == ("JobSet", ["j"])


def test_the_end_of_the_job_of_a_set_is_not_the_end_of_the_set() -> None:
    view = ClusterView()
    whole, part = the_set_and_its_job()
    view.take_main(whole)
    view.drop_main(part)
    assert view.main(ID) == whole


def test_what_ended_the_ranks_of_a_set_is_told_by_its_job_until_that_goes() -> None:
    view = ClusterView()
    whole, part = the_set_and_its_job()
    view.take_record(a_record(), 1)
    for main in (whole, part):
        view.take_main(main)
    sight = view.sight(ID)
    assert sight is not None
    assert (sight.main, sight.part) == (whole, part)
    view.drop_main(part)
    assert (sight := view.sight(ID)) is not None
    assert sight.part is None


def test_a_workload_or_a_pod_is_known_by_its_uid_as_what_an_attempt_has() -> None:
    view = ClusterView()
    main, pod = a_main(), a_pod(0)
    view.take_main(main)
    assert view.find_owner(main.metadata.uid) == ID
    view.drop_main(main)
    view.take_pod(pod)
    assert (view.find_owner(pod.metadata.uid), view.find_owner("another")) == (ID, None)
    assert view.find_owner(main.metadata.uid) is None


@pytest.mark.parametrize("place", [{"namespace": "tenant-x"}, {"name": "another"}])
@pytest.mark.parametrize("is_known", [True, False])
def test_a_workload_elsewhere_with_the_labels_of_an_attempt_never_replaces_its_own(
    place: dict[str, str], is_known: bool
) -> None:
    view = ClusterView()
    forged, own = a_main(), a_main()
    told = {"name": "j", "namespace": "tenant-t", "labels": own.metadata.labels, **place}
    forged.metadata = msgspec.convert({**told, "uid": "forged"}, type=type(own.metadata))
    forged.metadata.annotations = {PLACEMENTS: json.dumps({"0": {"node": "n", "annotations": {
        GPU_IDS: "GPU-1"}}})}  # fmt: skip
    if is_known:
        view.take_record(a_record(), 1)
    view.take_main(own)
    view.take_main(forged)
    view.take_record(a_record(), 2)
    assert (view.main(ID), view.mains()) == (own, [own])
    assert view.find_owner("forged") is None
    assert view.held_gpus() == set()
    view.drop_main(own)
    assert view.main(ID) is None


def test_a_workload_made_anew_under_its_name_replaces_the_one_before_it() -> None:
    view = ClusterView()
    view.take_record(a_record(), 1)
    old, new = a_main(), a_main()
    new.metadata.uid = "new"
    view.take_main(old)
    view.take_main(new)
    view.drop_main(old)
    assert view.main(ID) == new


def test_a_pod_elsewhere_with_the_labels_of_an_attempt_never_stands_for_a_rank() -> None:
    view = ClusterView()
    own = a_pod(0, state=running(), uid="own")
    forged = a_pod(0, phase="Failed", state=ended(7), namespace="tenant-x", uid="forged",
                   annotations={GPU_IDS: "GPU-1"},
                   creationTimestamp="2027-01-02T03:04:05Z")  # fmt: skip
    view.take_pod(own)
    view.take_pod(forged)
    view.take_record(a_record(), 1)
    view.take_main(a_main())
    view.take_node("node-1", None)
    assert view.pods(ID) == [own]
    assert (sight := view.sight(ID)) is not None
    assert sight.pods == (own,)
    assert [each.exit_code for each in view.observe()] == [None]
    assert (view.find_owner("forged"), view.held_gpus()) == (None, set())
    view.drop_pod(forged)
    assert (sight := view.sight(ID)) is not None
    assert sight.pods == (own,)


def test_pods_that_go_elsewhere_make_no_end_of_an_attempt_forgotten() -> None:
    view = ClusterView()
    view.take_record(a_record(), 1)
    view.drop_pod(a_pod(0, phase="Failed", state=ended(7), uid="own"))
    for number in range(9):
        made = f"2027-01-02T03:04:0{number}Z"
        view.drop_pod(a_pod(0, namespace="tenant-x", uid=str(number), creationTimestamp=made))
    assert (sight := view.sight(ID)) is not None
    assert [pod.metadata.uid for pod in sight.pods] == ["own"]


def test_a_route_elsewhere_is_not_the_address_of_a_service() -> None:
    view = ClusterView()
    view.take_record(a_record(), 1)
    view.take_route(ID, "tenant-t", "https://own", "")
    view.take_route(ID, "tenant-x", "https://forged", "")
    assert (sight := view.sight(ID)) is not None
    assert sight.route == ("https://own", "")
    view.take_route(ID, "tenant-t", "", "")
    assert (sight := view.sight(ID)) is not None
    assert sight.route == ("", "")


def test_one_attempt_that_cannot_be_looked_at_hides_no_other_and_is_told_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    view = ClusterView()
    other, record, pod = another_attempt()
    view.take_record(a_record(), 1)
    view.take_record(record, 1)
    view.take_pod(broken(a_pod()))
    view.take_pod(pod)
    for _ in range(3):
        view.take_pod(broken(a_pod()))
        assert [each.ref.attempt_id for each in view.observe()] == [other]
        assert [key[0] for key in view.reporting_pods()] == [other]
    told = [each.getMessage() for each in caplog.records]
    assert len(told) == len(set(told)) == 2
    assert all(str(ID) in each for each in told)
