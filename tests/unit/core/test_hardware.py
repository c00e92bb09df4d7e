"""Names of GPU models: every spelling in use finds its model, and only its model."""

import pytest

from gpuplane.core.hardware import KNOWN_MODELS, find_model, find_models, nearest_models


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("A100-80GB", "nvidia-a100-80gb"),
        ("nvidia_a100_80gb", "nvidia-a100-80gb"),
        ("NVIDIA-A100-SXM4-80GB", "nvidia-a100-80gb"),
        ("NVIDIA A100-SXM4-80GB", "nvidia-a100-80gb"),
        ("NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", "nvidia-a100-80gb"),
        ("NVIDIA A100 80GB PCIe", "nvidia-a100-80gb-pcie"),
        ("A100-40GB", "nvidia-a100-40gb"),
        ("H100", "nvidia-h100-80gb"),
        ("NVIDIA-H100-80GB-HBM3", "nvidia-h100-80gb"),
        ("NVIDIA H100 NVL", "nvidia-h100-94gb-nvl"),
        ("NVIDIA H200", "nvidia-h200-141gb"),
        ("NVIDIA GH200 480GB", "nvidia-gh200-96gb"),
        ("Tesla-T4-SHARED", "nvidia-t4"),
        ("V100M16", "nvidia-v100-16gb"),
        ("V100M32", "nvidia-v100-32gb"),
        ("P100", "nvidia-p100-16gb"),
        ("G2", "openb-g2"),
        ("RTX-4090", "nvidia-rtx-4090"),
        ("NVIDIA GeForce RTX 3090", "nvidia-rtx-3090"),
        ("NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition", "nvidia-rtx-pro-6000"),
        ("Gaudi2", "intel-gaudi2"),
        ("AMD Instinct MI300X", "amd-mi300x"),
    ],
)
def test_a_spelling_finds_its_model(spelling: str, name: str) -> None:
    model = find_model(spelling)
    assert model is not None
    assert model.name == name


def test_every_name_and_alias_finds_the_model_that_states_it() -> None:
    for model in KNOWN_MODELS.values():
        for spelling in (model.name, *model.aliases):
            assert find_models(spelling) == (model,), spelling


def test_a_family_word_stands_for_every_model_of_the_family() -> None:
    assert [model.name for model in find_models("a100")] == [
        "nvidia-a100-80gb",
        "nvidia-a100-80gb-pcie",
        "nvidia-a100-40gb",
        "nvidia-a100-40gb-pcie",
    ]
    first = find_model("A100")
    assert first is not None
    assert first.name == "nvidia-a100-80gb"


@pytest.mark.parametrize("name", ["", "   ", "RTX6000X", "A100-12GB", "gpu", "nvidia"])
def test_an_unknown_name_finds_nothing(name: str) -> None:
    assert find_model(name) is None
    assert find_models(name) == ()


def test_the_nearest_names_are_offered_best_first() -> None:
    assert nearest_models("H1OO")[0] == "nvidia-h100-80gb"
    assert nearest_models("A100-8GB")[0] == "nvidia-a100-80gb"
    assert len(nearest_models("something else", limit=2)) == 2


def test_each_model_states_its_facts_and_where_they_come_from() -> None:
    for name, model in KNOWN_MODELS.items():
        assert model.name == name
        assert 8 * 1024 <= model.memory_mib <= 512 * 1024, name
        assert model.sources, name
        assert model.supports_mig == (model.mig_slices > 0)
        if model.vendor == "nvidia":
            assert model.compute_capability is not None, name
        if model.supports_mig:
            assert "mig-guide" in model.sources, name
