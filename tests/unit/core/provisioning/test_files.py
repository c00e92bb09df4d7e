"""The configuration of each cloud: reviewed bytes, the provider's own names, closed by default."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from gpuplane.core.provisioning.files import MAIN, plan_files
from gpuplane.core.provisioning.specs import ClusterSpec, NodePool, Platform
from tests.unit.core.provisioning.specifications import GOLDEN, HERE, of_clouds, specs
from tools.make_provisioning_files import made_files

CLOUDS = of_clouds()
MADE = made_files()
TABLE = json.loads((HERE / "provider_attributes.json").read_text())
META = ("depends_on", "lifecycle")
REFERENCE = re.compile(r"\$\{(data\.)?(\w+)\.(\w+)[.}]")


def configuration(spec: ClusterSpec) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(plan_files(spec)[MAIN])
    return found


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from strings(each)
    elif isinstance(value, list):
        for each in value:
            yield from strings(each)


def undeclared(block: dict[str, Any], known: dict[str, Any], place: str) -> Iterator[str]:
    """Yield what a block has that the provider's table does not, and what it lacks."""
    for name, value in block.items():
        if name in META and "." not in place:
            continue
        declared = known.get(name)
        if declared is None or not fits(value, declared["type"]):
            yield f"{place}.{name}: {value!r} is not declared as {declared}"
        elif "block" in declared:
            for each in value if isinstance(value, list) else [value]:
                yield from undeclared(each, declared["block"], f"{place}.{name}")
    for name, declared in known.items():
        if declared["required"] and name not in block:
            yield f"{place}.{name} is missing"


def fits(value: Any, declared: str) -> bool:
    plain: dict[str, type | tuple[type, ...]] = {
        "string": str, "boolean": bool, "number": int, "string[]": list,
        "string map": dict, "list": list, "one": (list, dict),
    }  # fmt: skip
    if isinstance(value, str) and value.startswith("${"):
        return declared in ("string", "number", "boolean")
    if declared == "one" and isinstance(value, list) and len(value) != 1:
        return False
    return isinstance(value, plain[declared]) and (declared != "number" or value is not True)


@pytest.mark.parametrize("name", sorted(MADE))
def test_what_is_made_is_what_was_reviewed(name: str) -> None:
    assert (GOLDEN / name).read_bytes() == MADE[name]


def test_the_same_specification_makes_the_same_bytes() -> None:
    assert made_files() == MADE


def test_nothing_is_reviewed_that_is_not_made() -> None:
    assert {each.name for each in GOLDEN.iterdir()} == set(MADE)


@pytest.mark.parametrize("name", sorted(CLOUDS))
def test_a_configuration_uses_what_its_provider_declares_and_leaves_out_nothing_required(
    name: str,
) -> None:
    document = configuration(CLOUDS[name])
    ((provider, block),) = document["provider"].items()
    found = list(undeclared(block, TABLE["provider"][provider], "provider"))
    found += [
        problem
        for group in ("resource", "data")
        for kind, blocks in document.get(group, {}).items()
        for block in blocks.values()
        for problem in undeclared(block, TABLE[group][kind], kind)
    ]
    assert found == []


def test_an_attribute_of_another_name_or_kind_would_be_noticed() -> None:
    known = TABLE["resource"]["aws_subnet"]
    assert list(undeclared({"vpc_id": "v", "cidr": "10.0.0.0/8"}, known, "aws_subnet"))
    assert list(undeclared({"cidr_block": "10.0.0.0/8"}, known, "aws_subnet"))
    assert list(undeclared({"vpc_id": ["v"]}, known, "aws_subnet"))


@pytest.mark.parametrize("name", sorted(CLOUDS))
def test_the_pinned_provider_is_the_one_whose_attributes_were_looked_up(name: str) -> None:
    ((_, wanted),) = configuration(CLOUDS[name])["terraform"]["required_providers"].items()
    assert TABLE["sources"][wanted["source"]].startswith(wanted["version"] + ", ")


@pytest.mark.parametrize("name", sorted(CLOUDS))
def test_every_reference_leads_to_something_that_is_declared(name: str) -> None:
    document = configuration(CLOUDS[name])
    lost = []
    for text in strings(document):
        for data, kind, word in REFERENCE.findall(text):
            if word not in document["data" if data else "resource"].get(kind, {}):
                lost.append(text)
    named = [
        address
        for kinds in document["resource"].values()
        for block in kinds.values()
        for address in block.get("depends_on", [])
    ]
    for address in named:
        kind, _, word = address.partition(".")
        if word not in document["resource"].get(kind, {}):
            lost.append(address)
    assert lost == []


def open_places(document: dict[str, Any]) -> list[Any]:
    """What lets the internet at the API server, by the words of each cloud."""
    found: list[Any] = []
    for cluster in document["resource"].get("aws_eks_cluster", {}).values():
        found += [each for each in cluster["vpc_config"] if each["endpoint_public_access"]]
    for cluster in document["resource"].get("azurerm_kubernetes_cluster", {}).values():
        found += [] if cluster["private_cluster_enabled"] else [cluster]
    for cluster in document["resource"].get("google_container_cluster", {}).values():
        config = cluster["private_cluster_config"][0]
        found += [] if config["enable_private_endpoint"] else [config]
    return found


@pytest.mark.parametrize("name", sorted(CLOUDS))
def test_the_api_server_is_open_only_to_networks_that_are_named(name: str) -> None:
    spec, document = CLOUDS[name], configuration(CLOUDS[name])
    assert bool(open_places(document)) is bool(spec.public_cidrs)
    text = json.dumps(document)
    assert all(cidr in text for cidr in spec.public_cidrs)


def pools_of(document: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for kind in ("aws_eks_node_group", "azurerm_kubernetes_cluster_node_pool",
                 "google_container_node_pool"):  # fmt: skip
        found |= document["resource"].get(kind, {})
    return found


@pytest.mark.parametrize("name", sorted(CLOUDS))
def test_gpu_nodes_keep_other_work_off_and_have_the_image_with_the_driver(name: str) -> None:
    spec, made = CLOUDS[name], pools_of(configuration(CLOUDS[name]))
    for pool in spec.pools:
        if pool is spec.system_pool and spec.platform is Platform.AKS:
            continue
        text = json.dumps(made[pool.name.replace("-", "_")])
        assert ("nvidia.com/gpu" in text) is bool(pool.gpu_count)
        driver = {
            Platform.EKS: "AL2023_x86_64_NVIDIA",
            Platform.AKS: '"gpu_driver": "Install"',
            Platform.GKE: "gpu_driver_installation_config",
        }[spec.platform]
        assert (driver in text) is bool(pool.gpu_count)


def test_every_disk_that_is_made_is_encrypted_and_every_key_turns() -> None:
    document = configuration(CLOUDS["train-eu"])
    for template in document["resource"]["aws_launch_template"].values():
        for disk in template["block_device_mappings"]:
            assert disk["ebs"][0]["encrypted"] == "true"
        assert template["metadata_options"][0]["http_tokens"] == "required"
    assert document["resource"]["aws_kms_key"]["cluster"]["enable_key_rotation"] is True
    cluster = document["resource"]["aws_eks_cluster"]["cluster"]
    assert cluster["encryption_config"][0]["resources"] == ["secrets"]


def test_the_fabric_talks_to_itself_alone() -> None:
    resources = configuration(CLOUDS["train-eu"])["resource"]
    for way in ("ingress", "egress"):
        rule = resources[f"aws_vpc_security_group_{way}_rule"]["efa"]
        assert rule["referenced_security_group_id"] == rule["security_group_id"]
    interfaces = resources["aws_launch_template"]["h100"]["network_interfaces"]
    assert len(interfaces) == 32
    assert [each["network_card_index"] for each in interfaces] == list(range(32))


@pytest.mark.parametrize(
    ("instance", "image"),
    [
        ("m6i.large", "AL2023_x86_64_STANDARD"),
        ("m7g.large", "AL2023_ARM_64_STANDARD"),
        ("im4gn.large", "AL2023_ARM_64_STANDARD"),
        ("g4dn.xlarge", "AL2023_x86_64_NVIDIA"),
        ("c5n.large", "AL2023_x86_64_STANDARD"),
    ],
)
def test_the_image_of_an_aws_node_is_that_of_its_processor(instance: str, image: str) -> None:
    base = CLOUDS["train-eu"]
    gpus = 1 if instance.startswith("g4dn") else 0
    model = "nvidia-t4" if gpus else None
    pools = (base.system_pool, NodePool("extra", instance, model, gpus))
    made = configuration(
        ClusterSpec("c", Platform.EKS, "1.33", "eu-west-1", base.zones, pools=pools)
    )
    assert made["resource"]["aws_eks_node_group"]["extra"]["ami_type"] == image


def test_an_output_that_holds_a_credential_is_marked_as_secret() -> None:
    for spec in CLOUDS.values():
        for name, output in configuration(spec)["output"].items():
            if name in ("token", "client_key_data", "client_certificate_data"):
                assert output["sensitive"] is True


def test_no_configuration_is_made_of_machines_that_are_there() -> None:
    with pytest.raises(ValueError, match="joined by scripts"):
        plan_files(specs()["lab"])
