"""What is known of a cluster: which object is the workload of an attempt."""

from __future__ import annotations

import msgspec
import pytest

from gpuplane.backends.kubernetes.shapes import Main
from gpuplane.backends.kubernetes.views import ClusterView
from tests.unit.backends.kubernetes.builders import ID, a_main, a_pod, a_record


def the_set_and_its_job() -> tuple[Main, Main]:
    """Return a JobSet and the Job that its controller made, with the labels of its template."""
    whole, part = a_main("JobSet"), a_main()
    reference = {"kind": "JobSet", "name": "j", "uid": whole.metadata.uid}
    told = {"name": "j-r-0", "uid": "part", "labels": part.metadata.labels}
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
