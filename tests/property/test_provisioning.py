"""Specifications of any shape: read back as written, made into the same declared, closed files."""

from __future__ import annotations

import json
import re
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from gpuplane.core.provisioning.files import MAIN, plan_files
from gpuplane.core.provisioning.problems import BadSpec, Problem
from gpuplane.core.provisioning.reading import parse_cluster_spec
from gpuplane.core.provisioning.specs import document_of
from tests.unit.core.provisioning.specifications import documents, gpus_of
from tests.unit.core.provisioning.test_files import TABLE, undeclared

LABEL = st.text("abcz019.-_", min_size=0, max_size=8).filter(
    lambda text: not text or (text[0].isalnum() and text[-1].isalnum())
)
KEYS = st.sampled_from(["pool", "example.com/pool", "a.b"])
TYPES = {
    "eks": ["m6i.large", "p5.48xlarge", "g6.12xlarge", "m7g.large"],
    "aks": ["Standard_D4s_v5", "Standard_NC24ads_A100_v4", "Standard_ND96isr_H100_v5"],
    "gke": ["e2-standard-4", "a3-highgpu-8g", "g2-standard-48", "a4-highgpu-8g"],
}
ZONES = {
    "eks": ["eu-west-1a", "eu-west-1b", "eu-west-1c"],
    "aks": ["westeurope-1", "westeurope-2"],
    "gke": ["us-central1-a", "us-central1-b"],
}
REFERENCE = re.compile(r"\$\{[a-z_]+(\.[a-z_0-9]+)+(\[0\])?[a-z_0-9.\[\]]*\}")


@st.composite
def pools(draw: st.DrawFn, platform: str, number: int) -> dict[str, Any]:
    least = draw(st.integers(0, 5))
    one_zone = draw(st.booleans())
    instance = draw(st.sampled_from(TYPES[platform]))
    found: dict[str, Any] = {
        "name": f"pool{number}",
        "instanceType": instance,
        "min": least,
        "max": least + draw(st.integers(1, 5)),
        "diskGiB": draw(st.integers(20, 2_000)),
        "spot": draw(st.booleans()),
        "labels": draw(st.dictionaries(KEYS, LABEL, max_size=2)),
        "taints": draw(
            st.lists(
                st.fixed_dictionaries(
                    {"key": KEYS, "value": LABEL, "effect": st.sampled_from(
                        ["NoSchedule", "PreferNoSchedule", "NoExecute"])}
                ),
                max_size=2,
            )
        ),
    }  # fmt: skip
    if one_zone:
        found["zones"] = [draw(st.sampled_from(ZONES[platform]))]
        found["placementGroup"] = draw(st.booleans())
        found["efa"] = instance == "p5.48xlarge" and draw(st.booleans())
    return found


@st.composite
def specifications(draw: st.DrawFn) -> dict[str, Any]:
    platform = draw(st.sampled_from(["eks", "aks", "gke"]))
    extra = [draw(pools(platform, number)) for number in range(draw(st.integers(0, 4)))]
    system = {"name": "system", "instanceType": TYPES[platform][0], "min": 1, "max": 2}
    spec: dict[str, Any] = {
        "platform": platform,
        "region": {"eks": "eu-west-1", "aks": "westeurope", "gke": "us-central1"}[platform],
        "zones": ZONES[platform],
        "kubernetesVersion": draw(st.sampled_from(["1.31", "1.33"])),
        "nodePools": draw(st.permutations([system, *extra])),
        "tags": draw(st.dictionaries(st.sampled_from(["team", "cost"]),
                                     st.text("ab-_9", max_size=5), max_size=2)),
    }  # fmt: skip
    if draw(st.booleans()):
        spec["endpoint"] = {"publicCidrs": ["203.0.113.0/24"]}
    if platform == "gke":
        spec["project"] = "acme-ml-prod"
    return {"apiVersion": "gpuplane.io/v1", "kind": "ClusterSpecification",
            "metadata": {"name": "any"}, "spec": spec}  # fmt: skip


@given(specifications())
def test_a_specification_reads_back_as_written_and_makes_the_same_bytes(
    document: dict[str, Any],
) -> None:
    spec = parse_cluster_spec(document, gpus_of)
    again = parse_cluster_spec(json.loads(json.dumps(document_of(spec))), gpus_of)
    assert again == spec
    assert plan_files(again) == plan_files(spec)


@given(specifications())
def test_whatever_is_asked_only_declared_attributes_are_used(document: dict[str, Any]) -> None:
    made = json.loads(plan_files(parse_cluster_spec(document, gpus_of))[MAIN])
    found = [
        problem
        for kind, blocks in made["resource"].items()
        for block in blocks.values()
        for problem in undeclared(block, TABLE["resource"][kind], kind)
    ]
    assert found == []


@given(specifications())
def test_nothing_that_a_person_wrote_becomes_an_expression(document: dict[str, Any]) -> None:
    text = plan_files(parse_cluster_spec(document, gpus_of))[MAIN].decode()
    assert "$" not in REFERENCE.sub("", text)
    assert "%{" not in text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=5,
)


@example("hall-2", "machines", {})
@given(
    st.sampled_from(sorted(documents())),
    st.sampled_from(["region", "zones", "nodePools", "network", "endpoint", "tags", "machines",
                     "kubernetesVersion", "kmsKey", "adminGroups", "project", "owner"]),
    JSON,
)  # fmt: skip
def test_a_field_of_any_content_is_taken_or_refused_with_a_reason(
    name: str, field: str, value: Any
) -> None:
    document = json.loads(json.dumps(documents()[name]))
    document["spec"][field] = value
    spec, problems = None, tuple[Problem, ...]()
    try:
        spec = parse_cluster_spec(document, gpus_of)
    except BadSpec as refused:
        problems = refused.problems
    if spec is not None:
        assert parse_cluster_spec(document_of(spec), gpus_of) == spec
    else:
        assert problems
        assert all(each.field and each.reason and each.fix for each in problems)
