"""The extender's answer is the core's decision, in whatever order the cluster was seen."""

import json
from itertools import accumulate
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gpuplane.core.fleet.columns import Fleet
from gpuplane.core.ids import ClusterId
from gpuplane.core.scheduling.bench import NOT_FIT, Bench
from gpuplane.core.scheduling.policy import Policy
from gpuplane.extender.holdings import assign
from gpuplane.extender.state import CLUSTER, SEED, typical_mix
from tests.unit.extender.objects import NOW, Asked, a_member, a_node, a_pod, a_record, facts

SHAPES = (
    (8, "nvswitch-8"),
    (8, "nvlink-cube-mesh-8"),
    (8, "pcie-dual-socket"),
    (4, "nvlink-4"),
    (2, ""),
    (0, ""),
)


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[Any], list[Any]]:
    """Return nodes, and pods bound to them that fit."""
    shapes = draw(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=6))
    nodes = [a_node(f"n{i}", gpus, topology=topology) for i, (gpus, topology) in enumerate(shapes)]
    pods = []
    for i, (gpus, _) in enumerate(shapes):
        sizes = draw(st.lists(st.integers(1, 4), max_size=4))
        for j, total in enumerate(accumulate(sizes)):
            if total > gpus:
                break
            start = total - sizes[j]
            is_told = draw(st.booleans())
            ids = ",".join(str(gpu) for gpu in range(start, total)) if is_told else ""
            created = draw(st.integers(0, 59))
            pods.append(a_pod(f"p{i}-{j}", sizes[j], node=f"n{i}", ids=ids, created=created))
    return nodes, pods


QUESTIONS = st.builds(
    lambda gpus, links, required: a_pod(
        "new",
        gpus,
        annotations={"gpuplane.io/links": links, "gpuplane.io/links-required": required},
    ),
    st.sampled_from((1, 2, 3, 4, 8)),
    st.sampled_from(("none", "nvlink", "same_numa", "same_pcie")),
    st.sampled_from(("true", "false")),
)


@given(clusters(), QUESTIONS)
def test_the_answer_is_the_core_decision(cluster: tuple[list[Any], list[Any]], pod: Any) -> None:
    nodes, pods = cluster
    asked = Asked(*nodes)
    asked.put(*pods)
    answer, points = asked.filter(pod), asked.prioritize(pod)
    records = {record.facts.name: record for record in map(a_record, nodes)}
    fleet = Fleet(ClusterId(CLUSTER), [record.facts for record in records.values()])
    for index, node in enumerate(fleet.nodes):
        bound = [facts(each) for each in pods if each["spec"]["nodeName"] == node.name]
        for takes in assign(index, records[node.name], bound, ()).takes.values():
            for take in takes:
                fleet.allocate(take)
    row = Bench(fleet, Policy(), typical_mix(), NOW, SEED).row(facts(pod).workload)
    fitting = [node.name for node, rank in zip(fleet.nodes, row.ranks, strict=True) if rank >= 0]
    assert sorted(answer["NodeNames"]) == sorted(fitting)
    best = row.find_best()
    tops = [name for name, score in points.items() if score == 10]
    assert tops == ([] if best is None else [fleet.nodes[best[0]].name])
    ranked = {node.name: int(rank) for node, rank in zip(fleet.nodes, row.ranks, strict=True)}
    for one in fitting:
        for other in fitting:
            assert not (ranked[one] >> 16 > ranked[other] >> 16 and points[one] < points[other])
    refused = {**answer["FailedNodes"], **answer["FailedAndUnresolvableNodes"]}
    assert set(refused) == {name for name, rank in ranked.items() if rank == NOT_FIT}


@given(clusters(), QUESTIONS, st.randoms(use_true_random=False), st.data())
def test_replicas_that_saw_the_cluster_in_another_order_answer_the_same(
    cluster: tuple[list[Any], list[Any]], pod: Any, chance: Any, data: st.DataObject
) -> None:
    nodes, pods = cluster
    pods = pods + [a_member("g", rank, 3, 4, created=rank) for rank in range(3)]
    one = Asked(*nodes)
    one.put(*pods)
    shuffled, others = list(nodes), list(pods)
    chance.shuffle(shuffled)
    chance.shuffle(others)
    two = Asked(*shuffled)
    two.names = one.names
    for each in others:
        gone = a_pod(f"gone-{each['metadata']['name']}", 1, node=one.names[0])
        two.put(gone)
        two.put(each)
        if data.draw(st.booleans()):
            two.filter(pod)
        two.answerer.drop_pod(gone["metadata"]["uid"])
    for question in (pod, pods[-1]):
        first, second = one.filter(question), two.filter(question)
        assert json.dumps(first) == json.dumps(second)
        assert one.prioritize(question) == two.prioritize(question)


CHANGES = st.tuples(
    st.sampled_from(("put", "put", "put", "drop")),
    st.integers(0, 5),  # the pod
    st.integers(0, 1),  # its node
    st.integers(1, 3),  # GPUs
    st.one_of(st.none(), st.integers(0, 6)),  # the first that its annotation names, if any
    st.integers(0, 3),  # when it was made
)


@given(st.lists(CHANGES, min_size=1, max_size=12), QUESTIONS, st.booleans())
def test_looking_at_what_changed_comes_to_the_same_as_looking_at_all(
    changes: list[tuple[str, int, int, int, int | None, int]], pod: Any, has_small: Any
) -> None:
    nodes = [a_node("n0", 8), a_node("n1", 4 if has_small else 8, topology="")]
    long_lived = Asked(*nodes)
    there: dict[str, Any] = {}
    for act, number, node, gpus, first, created in changes:
        name = f"p{number}-n{node}"  # a pod never leaves its node
        if act == "drop":
            there.pop(name, None)
            long_lived.answerer.drop_pod(f"uid-{name}")
        else:
            ids = "" if first is None else ",".join(str(first + each) for each in range(gpus))
            there[name] = a_pod(name, gpus, node=f"n{node}", ids=ids, created=created)
            long_lived.put(there[name])
        fresh = Asked(*nodes)
        fresh.put(*there.values())
        assert long_lived.filter(pod) == fresh.filter(pod)
        assert long_lived.prioritize(pod) == fresh.prioritize(pod)
        assert long_lived.state.disputes == fresh.state.disputes
        for place in range(2):
            mine, theirs = long_lived.state.fleet, fresh.state.fleet
            assert mine.gpu_free_mask[place] == theirs.gpu_free_mask[place]
            assert mine.cpu_free[place] == theirs.cpu_free[place]
