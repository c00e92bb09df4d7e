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
from functools import lru_cache
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


_VOLTA = ("volta", (7, 0))
_PASCAL = ("pascal", (6, 0))
_TURING = ("turing", (7, 5))
_GA100 = ("ampere", (8, 0))
_GA102 = ("ampere", (8, 6))
_ADA = ("ada", (8, 9))
_HOPPER = ("hopper", (9, 0))
_GB100 = ("blackwell", (10, 0))
_GB202 = ("blackwell", (12, 0))

# Names besides the canonical one, separated by `|`: NVML, GPU feature discovery (the same with
# dashes, so not repeated), clouds, trace files, this product's own documents.
_ALIASES = {
    "nvidia-v100-16gb": "Tesla V100-SXM2-16GB | V100M16 | V100-SXM2-16GB | V100-16GB",
    "nvidia-v100-32gb": (
        "Tesla V100-SXM2-32GB | Tesla V100-SXM3-32GB | Tesla V100-SXM2-32GB-LS | V100M32"
    ),
    "nvidia-v100-16gb-pcie": "Tesla V100-PCIE-16GB | V100-PCIE",
    "nvidia-v100-32gb-pcie": "Tesla V100-PCIE-32GB | Tesla V100S-PCIE-32GB | V100S",
    "nvidia-p100-16gb": "Tesla P100-PCIE-16GB | P100-PCIE-16GB | nvidia-tesla-p100",
    "nvidia-t4": "Tesla T4 | nvidia-tesla-t4 | T4-16GB",
    "nvidia-a10": "A10-24GB | A10-PCIE-24GB",
    "nvidia-a10g": "A10G-24GB",
    "nvidia-a30": "A30-24GB | A30-PCIE",
    "nvidia-a40": "A40-48GB | A40-PCIE",
    "nvidia-a100-80gb": "A100-SXM4-80GB | A100-SXM-80GB | A100-SXM | A100-SXM4",
    "nvidia-a100-80gb-pcie": "A100-PCIE-80GB | NVIDIA A100 80GB PCIe | A100-PCIE",
    "nvidia-a100-40gb": "A100-SXM4-40GB | A100-SXM-40GB",
    "nvidia-a100-40gb-pcie": "A100-PCIE-40GB | NVIDIA A100-PCIE-40GB",
    "nvidia-l4": "L4-24GB",
    "nvidia-l40": "L40-48GB",
    "nvidia-l40s": "L40S-48GB",
    "nvidia-rtx-3090": "NVIDIA GeForce RTX 3090 | RTX3090 | 3090",
    "nvidia-rtx-4090": "NVIDIA GeForce RTX 4090 | RTX4090 | 4090 | RTX-4090-24GB",
    "nvidia-rtx-a6000": "RTX A6000 | A6000",
    "nvidia-rtx-6000-ada": "NVIDIA RTX 6000 Ada Generation | RTX 6000 Ada | 6000 Ada",
    "nvidia-rtx-pro-6000": (
        "NVIDIA RTX PRO 6000 Blackwell Server Edition | "
        "NVIDIA RTX PRO 6000 Blackwell Workstation Edition | "
        "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition | RTX-PRO-6000-96GB | "
        "RTX PRO 6000 Blackwell | PRO 6000"
    ),
    "nvidia-h100-80gb": (
        "NVIDIA H100 80GB HBM3 | H100-SXM | H100-SXM5 | H100-SXM5-80GB | H100-SXM-80GB | "
        "nvidia-h100-sxm | nvidia-h100-mega-80gb"
    ),
    "nvidia-h100-80gb-pcie": "NVIDIA H100 PCIe | H100-PCIE-80GB | H100 80GB PCIe",
    "nvidia-h100-94gb-nvl": "NVIDIA H100 NVL | H100-94GB | H100-NVL-94GB",
    "nvidia-h200-141gb": "NVIDIA H200 | H200-SXM | H200-SXM5-141GB | H200 NVL",
    "nvidia-gh200-96gb": "NVIDIA GH200 480GB | NVIDIA GH200 120GB | GH200 480GB | GH200-96GB",
    "nvidia-h20-96gb": "NVIDIA H20 | H20-SXM",
    "nvidia-h20-141gb": "NVIDIA H20-3e | H20-3e",
    "nvidia-b200": "B200-180GB | B200-SXM | B200-192GB",
    "nvidia-gb200": "GB200-186GB | GB200 NVL72",
    "intel-gaudi2": "Gaudi 2 | HL-225 | HL-225B | HL-225H | habana-gaudi2",
    "intel-gaudi3": "Gaudi 3 | HL-325 | HL-325L | HL-328 | habana-gaudi3",
    "amd-mi250x": "AMD Instinct MI250X | Instinct MI250X",
    "amd-mi300x": "AMD Instinct MI300X | Instinct MI300X | AMD-Instinct-MI300X-OAM | MI300X OAM",
    "openb-g2": "G2",
    "openb-g3": "G3",
}


def _nvidia(
    name: str,
    family: str,
    memory_mib: int,
    chip: tuple[str, tuple[int, int]],
    *,
    mig_slices: int = 0,
    nvlink: int = 0,
) -> GpuModel:
    """Return an NVIDIA model; `chip` is architecture and capability, `nvlink` the generation."""
    sources = ("cuda-gpus", "nvidia-smi", "datasheet")
    return GpuModel(
        name=name,
        family=family,
        vendor="nvidia",
        memory_mib=memory_mib,
        compute_capability=chip[1],
        architecture=chip[0],
        mig_slices=mig_slices,
        nvlink_generation=nvlink,
        aliases=tuple(_ALIASES[name].split(" | ")),
        sources=(*sources, "mig-guide") if mig_slices else sources,
    )


def _other(
    name: str,
    family: str,
    memory_mib: int,
    architecture: str,
    vendor: str,
    sources: tuple[str, ...],
) -> GpuModel:
    """Return a model without CUDA, MIG or NVLink, or one of which only the size is known."""
    return GpuModel(
        name=name,
        family=family,
        vendor=vendor,
        memory_mib=memory_mib,
        compute_capability=None,
        architecture=architecture,
        mig_slices=0,
        nvlink_generation=0,
        aliases=tuple(_ALIASES[name].split(" | ")),
        sources=sources,
    )


# Within a family the first model is the one that the bare family word means.
_MODELS = (
    _nvidia("nvidia-v100-16gb", "V100", 16160, _VOLTA, nvlink=2),
    _nvidia("nvidia-v100-32gb", "V100", 32510, _VOLTA, nvlink=2),
    _nvidia("nvidia-v100-16gb-pcie", "V100", 16160, _VOLTA),
    _nvidia("nvidia-v100-32gb-pcie", "V100", 32510, _VOLTA),
    _nvidia("nvidia-p100-16gb", "P100", 16280, _PASCAL),
    _nvidia("nvidia-t4", "T4", 15360, _TURING),
    _nvidia("nvidia-a10", "A10", 23028, _GA102),
    _nvidia("nvidia-a10g", "A10G", 23028, _GA102),
    _nvidia("nvidia-a30", "A30", 24576, _GA100, mig_slices=4, nvlink=3),
    _nvidia("nvidia-a40", "A40", 46068, _GA102, nvlink=3),
    _nvidia("nvidia-a100-80gb", "A100", 81920, _GA100, mig_slices=7, nvlink=3),
    _nvidia("nvidia-a100-80gb-pcie", "A100", 81920, _GA100, mig_slices=7, nvlink=3),
    _nvidia("nvidia-a100-40gb", "A100", 40960, _GA100, mig_slices=7, nvlink=3),
    _nvidia("nvidia-a100-40gb-pcie", "A100", 40960, _GA100, mig_slices=7, nvlink=3),
    _nvidia("nvidia-l4", "L4", 23034, _ADA),
    _nvidia("nvidia-l40", "L40", 46068, _ADA),
    _nvidia("nvidia-l40s", "L40S", 46068, _ADA),
    _nvidia("nvidia-rtx-3090", "RTX3090", 24576, _GA102, nvlink=3),
    _nvidia("nvidia-rtx-4090", "RTX4090", 24564, _ADA),
    _nvidia("nvidia-rtx-a6000", "RTXA6000", 49140, _GA102, nvlink=3),
    _nvidia("nvidia-rtx-6000-ada", "RTX6000ADA", 49140, _ADA),
    _nvidia("nvidia-rtx-pro-6000", "RTXPRO6000", 97887, _GB202, mig_slices=4),
    _nvidia("nvidia-h100-80gb", "H100", 81559, _HOPPER, mig_slices=7, nvlink=4),
    _nvidia("nvidia-h100-80gb-pcie", "H100", 81559, _HOPPER, mig_slices=7, nvlink=4),
    _nvidia("nvidia-h100-94gb-nvl", "H100", 95830, _HOPPER, mig_slices=7, nvlink=4),
    _nvidia("nvidia-h200-141gb", "H200", 143771, _HOPPER, mig_slices=7, nvlink=4),
    # The GPU inside has 96 GB; 120GB and 480GB in the NVML name are the CPU's own memory.
    _nvidia("nvidia-gh200-96gb", "GH200", 97871, _HOPPER, mig_slices=7, nvlink=4),
    _nvidia("nvidia-h20-96gb", "H20", 97871, _HOPPER, mig_slices=7, nvlink=4),
    # NVIDIA's list of MIG products names the H20 with 96 GB and not this one.
    _nvidia("nvidia-h20-141gb", "H20", 143771, _HOPPER, nvlink=4),
    _nvidia("nvidia-b200", "B200", 183359, _GB100, mig_slices=7, nvlink=5),
    _nvidia("nvidia-gb200", "GB200", 189471, _GB100, mig_slices=7, nvlink=5),
    _other("intel-gaudi2", "GAUDI2", 98304, "gaudi2", "intel", ("hl-smi", "datasheet")),
    _other("intel-gaudi3", "GAUDI3", 131072, "gaudi3", "intel", ("hl-smi", "datasheet")),
    # One module is two devices of 64 GiB to its driver; this is the module.
    _other("amd-mi250x", "MI250X", 131072, "cdna2", "amd", ("datasheet",)),
    _other("amd-mi300x", "MI300X", 196592, "cdna3", "amd", ("rocm-smi", "datasheet")),
    # Alibaba's 2023 trace hides two models behind letters; its authors' simulator gives a size.
    _other("openb-g2", "G2", 20000, "unknown", "unknown", ("fgd",)),
    _other("openb-g3", "G3", 30000, "unknown", "unknown", ("fgd",)),
)

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


@lru_cache(maxsize=1_024)
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
