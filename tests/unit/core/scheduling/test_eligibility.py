"""Which clusters a job may use: named, granted, required, preferred, excluded, dedicated."""

from __future__ import annotations

from typing import Any

import pytest

from gpuplane.core.ids import ClusterId, TenantId
from gpuplane.core.reasons import Word
from gpuplane.core.scheduling.eligibility import ClusterFacts, ClusterRequest, rank_clusters
from tests.builders import an_id

LAB, BANK = TenantId(an_id("lab")), TenantId(an_id("bank"))


def cid(name: str) -> ClusterId:
    return ClusterId(an_id(name))


def a_cluster(name: str, **facts: Any) -> ClusterFacts:
    return ClusterFacts(cid(name), name, **facts)


CLUSTERS = (
    a_cluster("beta"),
    a_cluster("alpha"),
    a_cluster("vault", dedicated_to=LAB),
    a_cluster("bank", dedicated_to=BANK),
    a_cluster("laptop", is_granted=False),
    a_cluster("toy", simulated=True),
)


def found(**request: Any) -> list[str]:
    names = {each.cluster_id: each.name for each in CLUSTERS}
    request.setdefault("tenant_id", LAB)
    return [names[each] for each in rank_clusters(ClusterRequest(**request), CLUSTERS)[0]]


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ({}, ["vault", "alpha", "beta"]),
        ({"preferred": frozenset({cid("beta")})}, ["beta", "vault", "alpha"]),
        ({"excluded": frozenset({cid("vault")})}, ["alpha", "beta"]),
        ({"required": frozenset({cid("alpha"), cid("laptop")})}, ["alpha"]),
        ({"named": cid("toy")}, ["toy"]),
        ({"named": cid("laptop")}, ["laptop"]),
        ({"named": cid("bank")}, []),
        ({"named": cid("alpha"), "excluded": frozenset({cid("alpha")})}, []),
        ({"named": cid("alpha"), "required": frozenset({cid("beta")})}, []),
        ({"named": cid("toy"), "required": frozenset({cid("beta")})}, ["toy"]),
        ({"tenant_id": BANK}, ["bank", "alpha", "beta"]),
    ],
)
def test_the_clusters_that_are_left_come_best_first(
    request_: dict[str, Any], expected: list[str]
) -> None:
    assert found(**request_) == expected


@pytest.mark.parametrize(
    ("classification", "expected"),
    [
        ("", ["vault", "alpha", "beta"]),
        ("confidential", ["vault", "alpha", "beta"]),
        ("restricted", ["vault"]),
        ("Restricted", ["vault"]),
    ],
)
def test_restricted_data_stays_on_clusters_dedicated_to_its_tenant(
    classification: str, expected: list[str]
) -> None:
    assert found(data_classification=classification) == expected


def test_restricted_data_may_be_tried_out_where_nothing_runs() -> None:
    assert found(data_classification="restricted", named=cid("toy")) == ["toy"]


def test_what_kept_the_last_clusters_away_is_told() -> None:
    def reason(**request: Any) -> tuple[Word, str]:
        answer = rank_clusters(ClusterRequest(**request), CLUSTERS)[1]
        return answer.word, answer.sentence

    nobody = TenantId(an_id("nobody"))
    word, sentence = reason(tenant_id=nobody, data_classification="restricted")
    assert word is Word.DEDICATED_CLUSTER
    assert "restricted" in sentence
    word, sentence = reason(tenant_id=LAB, named=cid("bank"))
    assert word is Word.DEDICATED_CLUSTER
    assert "other tenants" in sentence
    word, sentence = reason(tenant_id=LAB, required=frozenset({cid("absent")}))
    assert word is Word.NO_CLUSTER
    assert "requires" in sentence


def test_a_named_cluster_that_takes_no_work_is_told_by_its_own_sentence() -> None:
    clusters = (*CLUSTERS, a_cluster("away", closed="Cluster away has not answered."))
    ranked, reason = rank_clusters(ClusterRequest(LAB, named=cid("away")), clusters)
    assert ranked == ()
    assert reason.word is Word.CLUSTER_NOT_AVAILABLE
    assert reason.sentence == "Cluster away has not answered."
    assert "clusters health" in reason.fix


def test_a_cluster_that_takes_no_work_is_told_only_to_those_that_may_use_it() -> None:
    away = a_cluster("away", closed="Cluster away has not answered.", dedicated_to=BANK)
    reason = rank_clusters(ClusterRequest(LAB, named=cid("away")), (away,))[1]
    assert reason.word is Word.DEDICATED_CLUSTER
    assert "away" not in reason.sentence


@pytest.mark.parametrize(
    ("count", "told"),
    [
        (2, "Cluster c0 is away. Cluster c1 is away."),
        (9, "None of the clusters that it may use takes work now."),
    ],
)
def test_why_each_of_a_few_clusters_takes_no_work_is_told(count: int, told: str) -> None:
    clusters = [a_cluster(f"c{n}", closed=f"Cluster c{n} is away.") for n in range(count)]
    assert rank_clusters(ClusterRequest(LAB), clusters)[1].sentence == told


def test_the_order_of_the_input_is_irrelevant() -> None:
    request = ClusterRequest(LAB, preferred=frozenset({cid("beta")}))
    assert rank_clusters(request, CLUSTERS) == rank_clusters(request, CLUSTERS[::-1])
