"""GPU models become flavors that match exactly their nodes."""

from gpuplane.kube.kueue.flavors import (
    FlavorSpec,
    LabelledGpus,
    flavor_object,
    plan_flavors,
    priority_class_objects,
    read_flavor,
    read_topology,
    resource_of,
    topology_object,
)
from gpuplane.kube.kueue.names import ApiVersion, choose_version

PRODUCT = "nvidia.com/gpu.product"


def test_each_model_gets_a_flavor_with_the_product_label_of_its_nodes() -> None:
    planned = plan_flavors(
        [
            LabelledGpus("nvidia-l4", {PRODUCT: "NVIDIA-L4"}),
            LabelledGpus("nvidia-a100-80gb", {PRODUCT: "NVIDIA-A100-SXM4-80GB", "zone": "a"}),
            LabelledGpus("nvidia-l4", {PRODUCT: "NVIDIA-L4"}),
        ]
    )
    assert planned == (
        FlavorSpec("nvidia-a100-80gb", {PRODUCT: "NVIDIA-A100-SXM4-80GB"}),
        FlavorSpec("nvidia-l4", {PRODUCT: "NVIDIA-L4"}),
    )


def test_a_model_under_two_product_names_gets_a_flavor_for_each() -> None:
    planned = plan_flavors(
        [
            LabelledGpus("nvidia-h100-80gb", {PRODUCT: "NVIDIA-H100-80GB-HBM3"}),
            LabelledGpus("nvidia-h100-80gb", {PRODUCT: "NVIDIA-H100-80GB"}),
        ]
    )
    assert [each.name for each in planned] == ["nvidia-h100-80gb", "nvidia-h100-80gb-2"]
    assert len({each.node_labels[PRODUCT] for each in planned}) == 2


def test_a_model_that_no_label_tells_apart_gets_no_flavor_beside_others() -> None:
    bare = LabelledGpus("intel-gaudi2", {})
    assert plan_flavors([bare]) == (FlavorSpec("intel-gaudi2"),)
    beside = plan_flavors([bare, LabelledGpus("nvidia-l4", {PRODUCT: "NVIDIA-L4"})])
    assert [each.name for each in beside] == ["nvidia-l4"]


def test_a_flavor_comes_back_as_it_went() -> None:
    spec = FlavorSpec(
        "spot",
        {"tier": "spot"},
        (("spot", "", "NoSchedule"), ("gpu", "yes", "NoExecute")),
        ({"key": "spot", "operator": "Exists", "effect": "NoSchedule"},),
        "racks",
    )
    for version in ApiVersion:
        assert read_flavor(flavor_object(spec, version)) == spec


def test_a_topology_comes_back_as_it_went() -> None:
    levels = ("block", "rack", "kubernetes.io/hostname")
    for version in ApiVersion:
        assert read_topology(topology_object("racks", levels, version)) == ("racks", levels)


def test_the_five_classes_have_the_values_of_the_specification() -> None:
    made = priority_class_objects(ApiVersion.V1BETA2)
    assert {each["metadata"]["name"]: each["value"] for each in made} == {
        "gpuplane-critical": 1000,
        "gpuplane-high": 100,
        "gpuplane-normal": 10,
        "gpuplane-low": 1,
        "gpuplane-spot": 0,
    }


def test_the_newest_version_that_both_know_is_spoken() -> None:
    assert choose_version("v1beta1", ("v1beta1", "v1beta2")) is ApiVersion.V1BETA2
    assert choose_version("v1beta1", ("v1beta1",)) is ApiVersion.V1BETA1
    assert choose_version("v2", ("v2",)) is None


def test_whole_devices_of_each_vendor_are_counted_in_its_own_resource() -> None:
    models = ("nvidia-l4", "intel-gaudi2", "habana-gaudi", "amd-mi300x", "intel-max-1550")
    assert [resource_of(each) for each in models] == [
        "nvidia.com/gpu",
        "habana.ai/gaudi",
        "habana.ai/gaudi",
        "amd.com/gpu",
        "gpu.intel.com/i915",
    ]
