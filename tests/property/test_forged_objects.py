"""Whatever tenants write on objects in their namespaces, the cluster of all others is seen."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from gpuplane.backends.kubernetes import names
from gpuplane.backends.kubernetes.placing import plan_places
from gpuplane.backends.kubernetes.records import NEVER
from gpuplane.backends.kubernetes.shapes import Gate
from gpuplane.backends.kubernetes.sights import rank_of
from gpuplane.backends.kubernetes.sweeping import DAY_MS, UNUSED_SINCE, plan_claims
from gpuplane.backends.kubernetes.views import ClusterView
from tests.unit.backends.kubernetes.builders import ID, a_main, a_pod, a_record, ended, running

NOW = 10 * DAY_MS
LONG = "1" * 5_000
DEEP = '{"0":' + "[" * 5_000
HALF = '{"0": {"node": "\\ud800"}}'


class Listener(logging.Handler):
    """Writes down what is logged."""

    def __init__(self, heard: list[str]) -> None:
        super().__init__()
        self.heard = heard

    def emit(self, record: logging.LogRecord) -> None:
        self.heard.append(record.getMessage())


@contextmanager
def nothing_failing() -> Iterator[None]:
    """See that no exception was kept from others: each should be read without one."""
    heard: list[str] = []
    listener = Listener(heard)
    log = logging.getLogger("gpuplane.kubernetes")
    log.addHandler(listener)
    try:
        yield
    finally:
        log.removeHandler(listener)
    assert heard == []


texts = st.text() | st.from_regex(r"\d+") | st.sampled_from(["²", LONG, DEEP, HALF, "{}"])
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
places = st.dictionaries(
    st.sampled_from(["0", "1", "01", "²"]) | st.text(),
    values | st.fixed_dictionaries({"node": values, "annotations": values}),
    max_size=4,
).map(json.dumps)
replicas = st.lists(values | st.fixed_dictionaries({"mig_device": values}), max_size=3)
manifests = st.builds(
    lambda told: '{"x":"\\"mig_device\\":\\"","replicas":' + json.dumps(told) + "}",
    values | replicas,
)
ranks = st.one_of(st.none(), texts, st.sampled_from(["0", "1", "2", "01"]))


@given(texts)
@example("²")
@example(LONG)
def test_a_claim_is_planned_for_whatever_its_annotation_says(text: str) -> None:
    metadata = {"namespace": "t", "name": "c", "uid": "u", "labels": {names.JOB_ID: "j"}}
    claim: dict[str, Any] = {"metadata": {**metadata, "annotations": {UNUSED_SINCE: text}}}
    other = {"metadata": {**metadata, "uid": "w", "annotations": {UNUSED_SINCE: "0"}}}
    plan = plan_claims([claim, other], [], NOW, 7)
    assert ("t", "c", "w") in plan.delete
    assert len(plan.mark) + len([key for key in plan.delete if key[2] == "u"]) <= 1


@given(texts | places, st.lists(st.tuples(ranks, ranks, ranks, st.booleans()), max_size=4))
@example("²", [(None, "²", None, False), (None, None, LONG, True)])
@example('{"²": {"node": "n"}, "0": {}, "1": 1}', [("0", None, None, True)])
@example('{"0": {"node": "n"}}', [("0", None, None, True), (None, "0", None, True)])
def test_places_are_planned_whatever_is_written_and_none_is_given_twice(
    text: str, written: list[tuple[str | None, str | None, str | None, bool]]
) -> None:
    main = a_main()
    main.metadata.annotations = {names.PLACEMENTS: text}
    pods = []
    for number, (rank, index, annotation, waits) in enumerate(written):
        told = {names.RANK: rank, names.INDEX: index}
        pod = a_pod(number, labels={key: each for key, each in told.items() if each is not None})
        pod.metadata.annotations = {names.INDEX: annotation} if annotation is not None else {}
        pod.spec.scheduling_gates = [Gate(names.PLACEMENT_GATE)] if waits else []
        pods.append(pod)
    found = plan_places(main, pods)
    given_ranks = [
        rank_of(pod) if rank_of(pod) is not None else patch["metadata"]["labels"][names.RANK]
        for pod, patch in found
    ]
    assert len(set(map(str, given_ranks))) == len(given_ranks)


@given(texts | places, texts | manifests, texts, st.sampled_from([names.RANK, names.INDEX]), texts)
@example('{"0": 1}', '{"mig_device":""', LONG, names.INDEX, DEEP)
@example("²", '{"mig_device":"","replicas":[1]}', "²", names.RANK, HALF)
@example("[]", '["mig_device":"x"]', "²", names.INDEX, '{"a": "\\ud800"}')
def test_a_cluster_is_seen_whatever_is_written_on_its_objects(
    placements: str, manifest: str, rank: str, key: str, outputs: str
) -> None:
    view = ClusterView()
    view.take_record(a_record(), 1)
    main = a_main()
    main.metadata.annotations = {names.PLACEMENTS: placements, names.MANIFEST: manifest}
    view.take_main(main)
    told = {names.ATTEMPT_ID: str(ID), names.RANK: "0"}
    view.take_pod(a_pod(phase="Succeeded", state=ended(0, message=outputs), uid="over"))
    view.take_pod(a_pod(state=running(), labels={**told, key: rank}, uid="runs"))
    view.take_pod(a_pod(state=running(), labels={names.ATTEMPT_ID: str(ID)},
                        annotations={names.INDEX: rank}, uid="marked"))  # fmt: skip
    with nothing_failing():
        seen = view.observe()
        view.held_gpus()
        view.held_instances()
        view.reporting_pods()
        view.note_vanished(NOW)
    assert [each.rank for each in seen if each.rank == 0] == [0]
    msgspec.json.encode([each.outputs for each in seen])


@given(st.text(), st.text())
def test_what_lies_elsewhere_is_never_the_workload_of_an_attempt(space: str, name: str) -> None:
    view = ClusterView()
    view.take_record(a_record(), 1)
    main = a_main()
    main.metadata.namespace, main.metadata.name = space, name
    view.take_main(main)
    assert (view.main(ID) is None) == ((space, name) != ("tenant-t", "j"))
    view.take_record(a_record(fate=NEVER, namespace="", name=""), 2)
    assert view.main(ID) == main  # it was evicted before anybody knew where it would lie
