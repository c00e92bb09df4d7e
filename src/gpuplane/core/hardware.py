"""GPU models: one canonical name each, the names others call it, and what it is.

Owns names and facts of hardware that the decision core compares (memory, capability, MIG, links).
Never measures anything: what a node really has is told by its agent, this table only names it.

Sources, by the word used in `GpuModel.sources`:
    cuda-gpus   developer.nvidia.com/cuda-gpus, the table of compute capabilities.
    nvidia-smi  Public `nvidia-smi` listings: the total memory that NVML reports. It is what a
                workload can get; the number in the product name is larger or in another unit.
    mig-guide   NVIDIA MIG user guide r580, "Supported GPUs" and "Supported MIG Profiles".
    datasheet   The maker's data sheet or white paper of the product.
    fgd         hkust-adsl/kubernetes-scheduler-simulator, pkg/type/open-gpu-share/utils/const.go.
    hl-smi      Public `hl-smi` listings of Gaudi machines.
    rocm-smi    Public `rocm-smi --showmeminfo vram` listings.
"""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class GpuModel:
    """One GPU model as the scheduler knows it.

    Attributes:
        name: The canonical name, lower case, words joined by `-`.
        family: The marketing word that several models share, such as `A100`.
        vendor: `nvidia`, `amd`, `intel`, or `unknown` for a trace's anonymous models.
        memory_mib: Total memory in MiB as the driver reports it, ECC on where it is the default.
        compute_capability: CUDA (major, minor), or None where there is none or it is not known.
        architecture: The maker's architecture word in lower case.
        mig_slices: Compute slices that MIG can make, 0 where MIG is not supported.
        nvlink_generation: Generation of the NVLink it has or takes as a bridge, 0 for none;
            which links a node really has is told by its link matrix.
        aliases: Other names: GPU feature discovery, NVML, clouds, trace files.
        sources: Where the facts come from, in the words of the module docstring.
    """

    name: str
    family: str
    vendor: str
    memory_mib: int
    compute_capability: tuple[int, int] | None
    architecture: str
    mig_slices: int
    nvlink_generation: int
    aliases: tuple[str, ...]
    sources: tuple[str, ...]

    @property
    def supports_mig(self) -> bool:
        """Return whether the model can be cut into MIG instances."""
        return self.mig_slices > 0


_SMI = ("cuda-gpus", "nvidia-smi", "datasheet")
_MIG = ("cuda-gpus", "nvidia-smi", "datasheet", "mig-guide")


def _nvidia(
    name: str,
    family: str,
    memory_mib: int,
    architecture: str,
    capability: tuple[int, int],
    aliases: tuple[str, ...],
    *,
    mig_slices: int = 0,
    nvlink: int = 0,
) -> GpuModel:
    """Return an NVIDIA model; `nvlink` is the generation."""
    return GpuModel(
        name=name,
        family=family,
        vendor="nvidia",
        memory_mib=memory_mib,
        compute_capability=capability,
        architecture=architecture,
        mig_slices=mig_slices,
        nvlink_generation=nvlink,
        aliases=aliases,
        sources=_MIG if mig_slices else _SMI,
    )


# fmt: off  (one model reads as one entry, not as a column of words)
# Within a family the first model is the one that the bare family word means.
_MODELS = (
    _nvidia(
        "nvidia-v100-16gb",
        "V100",
        16160,
        "volta",
        (7, 0),
        ("Tesla V100-SXM2-16GB", "V100M16", "V100-SXM2-16GB", "V100-16GB"),
        nvlink=2,
    ),
    _nvidia(
        "nvidia-v100-32gb",
        "V100",
        32510,
        "volta",
        (7, 0),
        ("Tesla V100-SXM2-32GB", "Tesla V100-SXM3-32GB", "Tesla V100-SXM2-32GB-LS", "V100M32"),
        nvlink=2,
    ),
    _nvidia(
        "nvidia-v100-16gb-pcie",
        "V100",
        16160,
        "volta",
        (7, 0),
        ("Tesla V100-PCIE-16GB", "V100-PCIE"),
    ),
    _nvidia(
        "nvidia-v100-32gb-pcie",
        "V100",
        32510,
        "volta",
        (7, 0),
        ("Tesla V100-PCIE-32GB", "Tesla V100S-PCIE-32GB", "V100S"),
    ),
    _nvidia(
        "nvidia-p100-16gb",
        "P100",
        16280,
        "pascal",
        (6, 0),
        ("Tesla P100-PCIE-16GB", "P100-PCIE-16GB", "nvidia-tesla-p100"),
    ),
    _nvidia(
        "nvidia-t4",
        "T4",
        15360,
        "turing",
        (7, 5),
        ("Tesla T4", "nvidia-tesla-t4", "T4-16GB"),
    ),
    _nvidia("nvidia-a10", "A10", 23028, "ampere", (8, 6), ("A10-24GB", "A10-PCIE-24GB")),
    _nvidia("nvidia-a10g", "A10G", 23028, "ampere", (8, 6), ("A10G-24GB",)),
    _nvidia(
        "nvidia-a30",
        "A30",
        24576,
        "ampere",
        (8, 0),
        ("A30-24GB", "A30-PCIE"),
        mig_slices=4,
        nvlink=3,
    ),
    _nvidia("nvidia-a40", "A40", 46068, "ampere", (8, 6), ("A40-48GB", "A40-PCIE"), nvlink=3),
    _nvidia(
        "nvidia-a100-80gb",
        "A100",
        81920,
        "ampere",
        (8, 0),
        ("A100-SXM4-80GB", "A100-SXM-80GB", "A100-SXM", "A100-SXM4"),
        mig_slices=7,
        nvlink=3,
    ),
    _nvidia(
        "nvidia-a100-80gb-pcie",
        "A100",
        81920,
        "ampere",
        (8, 0),
        ("A100-PCIE-80GB", "NVIDIA A100 80GB PCIe", "A100-PCIE"),
        mig_slices=7,
        nvlink=3,
    ),
    _nvidia(
        "nvidia-a100-40gb",
        "A100",
        40960,
        "ampere",
        (8, 0),
        ("A100-SXM4-40GB", "A100-SXM-40GB"),
        mig_slices=7,
        nvlink=3,
    ),
    _nvidia(
        "nvidia-a100-40gb-pcie",
        "A100",
        40960,
        "ampere",
        (8, 0),
        ("A100-PCIE-40GB", "NVIDIA A100-PCIE-40GB"),
        mig_slices=7,
        nvlink=3,
    ),
    _nvidia("nvidia-l4", "L4", 23034, "ada", (8, 9), ("L4-24GB",)),
    _nvidia("nvidia-l40", "L40", 46068, "ada", (8, 9), ("L40-48GB",)),
    _nvidia("nvidia-l40s", "L40S", 46068, "ada", (8, 9), ("L40S-48GB",)),
    _nvidia(
        "nvidia-rtx-3090",
        "RTX3090",
        24576,
        "ampere",
        (8, 6),
        ("NVIDIA GeForce RTX 3090", "RTX3090", "3090"),
        nvlink=3,
    ),
    _nvidia(
        "nvidia-rtx-4090",
        "RTX4090",
        24564,
        "ada",
        (8, 9),
        ("NVIDIA GeForce RTX 4090", "RTX4090", "4090", "RTX-4090-24GB"),
    ),
    _nvidia(
        "nvidia-rtx-a6000", "RTXA6000", 49140, "ampere", (8, 6), ("RTX A6000", "A6000"), nvlink=3
    ),
    _nvidia(
        "nvidia-rtx-6000-ada",
        "RTX6000ADA",
        49140,
        "ada",
        (8, 9),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada", "6000 Ada"),
    ),
    _nvidia(
        "nvidia-rtx-pro-6000",
        "RTXPRO6000",
        97887,
        "blackwell",
        (12, 0),
        (
            "NVIDIA RTX PRO 6000 Blackwell Server Edition",
            "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
            "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
            "RTX-PRO-6000-96GB",
            "RTX PRO 6000 Blackwell",
            "PRO 6000",
        ),
        mig_slices=4,
    ),
    _nvidia(
        "nvidia-h100-80gb",
        "H100",
        81559,
        "hopper",
        (9, 0),
        (
            "NVIDIA H100 80GB HBM3",
            "H100-SXM",
            "H100-SXM5",
            "H100-SXM5-80GB",
            "H100-SXM-80GB",
            "nvidia-h100-sxm",
            "nvidia-h100-mega-80gb",
        ),
        mig_slices=7,
        nvlink=4,
    ),
    _nvidia(
        "nvidia-h100-80gb-pcie",
        "H100",
        81559,
        "hopper",
        (9, 0),
        ("NVIDIA H100 PCIe", "H100-PCIE-80GB", "H100 80GB PCIe"),
        mig_slices=7,
        nvlink=4,
    ),
    _nvidia(
        "nvidia-h100-94gb-nvl",
        "H100",
        95830,
        "hopper",
        (9, 0),
        ("NVIDIA H100 NVL", "H100-94GB", "H100-NVL-94GB"),
        mig_slices=7,
        nvlink=4,
    ),
    _nvidia(
        "nvidia-h200-141gb",
        "H200",
        143771,
        "hopper",
        (9, 0),
        ("NVIDIA H200", "H200-SXM", "H200-SXM5-141GB", "H200 NVL"),
        mig_slices=7,
        nvlink=4,
    ),
    _nvidia(
        # The GPU inside has 96 GB; 120GB and 480GB in the NVML name are the CPU's own memory.
        "nvidia-gh200-96gb",
        "GH200",
        97871,
        "hopper",
        (9, 0),
        ("NVIDIA GH200 480GB", "NVIDIA GH200 120GB", "GH200 480GB", "GH200-96GB"),
        mig_slices=7,
        nvlink=4,
    ),
    _nvidia(
        "nvidia-h20-96gb",
        "H20",
        97871,
        "hopper",
        (9, 0),
        ("NVIDIA H20", "H20-SXM"),
        mig_slices=7,
        nvlink=4,
    ),
    _nvidia(
        # NVIDIA's list of MIG products names the H20 with 96 GB and not this one.
        "nvidia-h20-141gb",
        "H20",
        143771,
        "hopper",
        (9, 0),
        ("NVIDIA H20-3e", "H20-3e"),
        nvlink=4,
    ),
    _nvidia(
        "nvidia-b200",
        "B200",
        183359,
        "blackwell",
        (10, 0),
        ("B200-180GB", "B200-SXM", "B200-192GB"),
        mig_slices=7,
        nvlink=5,
    ),
    _nvidia(
        "nvidia-gb200",
        "GB200",
        189471,
        "blackwell",
        (10, 0),
        ("GB200-186GB", "GB200 NVL72"),
        mig_slices=7,
        nvlink=5,
    ),
    GpuModel(
        "intel-gaudi2",
        "GAUDI2",
        "intel",
        98304,
        None,
        "gaudi2",
        0,
        0,
        ("Gaudi 2", "HL-225", "HL-225B", "HL-225H", "habana-gaudi2"),
        ("hl-smi", "datasheet"),
    ),
    GpuModel(
        "intel-gaudi3",
        "GAUDI3",
        "intel",
        131072,
        None,
        "gaudi3",
        0,
        0,
        ("Gaudi 3", "HL-325", "HL-325L", "HL-328", "habana-gaudi3"),
        ("hl-smi", "datasheet"),
    ),
    GpuModel(
        # One module is two devices of 64 GiB to its driver; this is the module.
        "amd-mi250x",
        "MI250X",
        "amd",
        131072,
        None,
        "cdna2",
        0,
        0,
        ("AMD Instinct MI250X", "Instinct MI250X"),
        ("datasheet",),
    ),
    GpuModel(
        "amd-mi300x",
        "MI300X",
        "amd",
        196592,
        None,
        "cdna3",
        0,
        0,
        ("AMD Instinct MI300X", "Instinct MI300X", "AMD-Instinct-MI300X-OAM", "MI300X OAM"),
        ("rocm-smi", "datasheet"),
    ),
    # Alibaba's 2023 trace hides two models behind letters; its authors' simulator gives a size.
    GpuModel("openb-g2", "G2", "unknown", 20000, None, "unknown", 0, 0, ("G2",), ("fgd",)),
    GpuModel("openb-g3", "G3", "unknown", 30000, None, "unknown", 0, 0, ("G3",), ("fgd",)),
)
# fmt: on

# Words that say who made or sells a GPU and never which one it is.
_NOISE = frozenset({"nvidia", "tesla", "geforce", "quadro", "amd", "intel", "habana", "instinct"})
# GPU feature discovery appends these to the product of a node that shares or cuts its GPUs.
_SUFFIX = re.compile(r"-(?:SHARED|MIG-\d+(?:c\.\d+)?g\.\d+gb\S*)$", re.IGNORECASE)


def find_model(name: str) -> GpuModel | None:
    """Return the model that a name means in any spelling, or None.

    Case, blanks, `-`, `_` and the maker's word do not matter. A family word such as `A100`
    means the first model of its family; `find_models` returns all of them.
    """
    models = find_models(name)
    return models[0] if models else None


def find_models(name: str) -> tuple[GpuModel, ...]:
    """Return every model that satisfies a name: one for a model's name, all for a family's."""
    key = _normalise(name)
    exact = _BY_KEY.get(key)
    if exact is not None:
        return (exact,)
    return _BY_FAMILY.get(key, ())


def nearest_models(name: str, limit: int = 3) -> list[str]:
    """Return the canonical names most like a name that was not found, best first.

    Args:
        name: What the user wrote.
        limit: The most names to return, at least 1.
    """
    close = difflib.get_close_matches(_normalise(name), _CANDIDATES, n=limit * 8, cutoff=0.0)
    names: dict[str, None] = {}
    for key in close:
        names.setdefault(_CANDIDATES[key])
    return list(names)[:limit]


def _normalise(name: str) -> str:
    """Return a name without case, separators, sharing suffixes and makers' words."""
    words = re.split(r"[^a-z0-9]+", _SUFFIX.sub("", name.strip()).lower())
    return "".join(word for word in words if word not in _NOISE)


def _by_key() -> dict[str, GpuModel]:
    """Return each spelling's model; a spelling that two models claim is a mistake in the table."""
    table: dict[str, GpuModel] = {}
    for model in _MODELS:
        for alias in (model.name, *model.aliases):
            key = _normalise(alias)
            if table.setdefault(key, model) is not model:
                raise ValueError(f"{alias!r} names {table[key].name} and {model.name}")
    return table


def _by_family() -> dict[str, tuple[GpuModel, ...]]:
    table: dict[str, tuple[GpuModel, ...]] = {}
    for model in _MODELS:
        key = _normalise(model.family)
        table[key] = (*table.get(key, ()), model)
    return table


KNOWN_MODELS: Mapping[str, GpuModel] = MappingProxyType({model.name: model for model in _MODELS})
"""Every model by its canonical name, in the order of the table."""

_BY_FAMILY = _by_family()
_BY_KEY = _by_key()
_CANDIDATES: Mapping[str, str] = MappingProxyType(
    {key: models[0].name for key, models in _BY_FAMILY.items()}
    | {key: model.name for key, model in _BY_KEY.items()}
)
