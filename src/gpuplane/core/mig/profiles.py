"""MIG profiles: the sizes in which a model can be cut and the places where each size may lie.

Owns the built-in tables by model. At run time the placements that NVML reports win over these
(build a `MigTable` from them); the built-in ones serve simulated fleets and plans made before a
GPU has been seen.

Sources:
    Fractions and counts: NVIDIA MIG user guide r580, "Supported MIG Profiles".
    Placements of A100 40 and 80 GB, H100 80 and 94 GB: public `nvidia-smi mig -lgipp` listings,
        identical for the four. NVIDIA's go-nvml mocks for H100 and later say otherwise (3g of
        size 3, 7g of size 7); the real listing contradicts them.
    Placements of A30: NVIDIA go-nvml, mock table of the A30.
    Profiles of GB200: NVIDIA gpu-operator, default mig-parted configuration, device 0x294110DE.
    Placements of GH200, H200, B200, GB200, RTX PRO 6000: no public listing exists. Fractions and
        counts equal those of the H100 (of the A30 for RTX PRO 6000), so its places are assumed.
"""

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from gpuplane.core.hardware import find_model, find_models

MIG_RESOURCE_PREFIX = "nvidia.com/mig-"


class PlacementSource(StrEnum):
    """How a table's placements are known."""

    LISTED = "listed"
    MOCKED = "mocked"
    ASSUMED = "assumed"
    DEVICE = "device"


@dataclass(frozen=True, slots=True)
class MigProfile:
    """One size of GPU instance.

    Attributes:
        name: NVIDIA's name, such as `1g.10gb` or `1g.10gb+me`.
        compute_slices: Compute slices that an instance takes.
        memory_slices: Memory slices that an instance takes.
        memory_gb: The number in the name; the device reports slightly less.
        max_instances: Most instances of this profile on one GPU.
        starts: First memory slice of each legal placement, ascending.
    """

    name: str
    compute_slices: int
    memory_slices: int
    memory_gb: int
    max_instances: int
    starts: tuple[int, ...]

    @property
    def has_media(self) -> bool:
        """Return whether an instance holds the GPU's only OFA and JPEG engine (`+me`)."""
        return "+me" in self.name

    @property
    def has_all_media(self) -> bool:
        """Return whether an instance holds every media engine (`+me.all`)."""
        return self.name.endswith("+me.all")

    @property
    def is_variant(self) -> bool:
        """Return whether the profile differs from another one in its engines only."""
        return "+" in self.name or self.name.endswith("-me")

    def mask_at(self, start: int) -> int:
        """Return the memory slices of an instance that starts at `start`, bit `i` for slice `i`."""
        return ((1 << self.memory_slices) - 1) << start


@dataclass(frozen=True, slots=True)
class MigTable:
    """The profiles of one model.

    Attributes:
        model: Canonical name of the model.
        memory_slices: Memory slices of the GPU.
        compute_slices: Compute slices of the GPU.
        profiles: Profiles in ascending size.
        placements: How the placements are known.

    Raises:
        ValueError: If a placement leaves the GPU, or a name or placement appears twice.
    """

    model: str
    memory_slices: int
    compute_slices: int
    profiles: tuple[MigProfile, ...]
    placements: PlacementSource

    def __post_init__(self) -> None:
        names = [profile.name for profile in self.profiles]
        if len(set(names)) != len(names):
            raise ValueError(f"a profile of {self.model} appears twice")
        for profile in self.profiles:
            if not profile.starts or list(profile.starts) != sorted(set(profile.starts)):
                raise ValueError(f"{profile.name}: starts must ascend and not be empty")
            if profile.starts[0] < 0 or (
                profile.starts[-1] + profile.memory_slices > self.memory_slices
            ):
                raise ValueError(f"{profile.name}: a placement leaves the GPU")

    @property
    def full_mask(self) -> int:
        """Return the mask of all memory slices."""
        return (1 << self.memory_slices) - 1

    def find_profile(self, name: str) -> MigProfile | None:
        """Return the profile of a name in any of its spellings, or None.

        Accepts NVIDIA's name, the Kubernetes resource (`nvidia.com/mig-1g.10gb.me`) and its
        short form (`mig-1g.10gb`).
        """
        wanted = _plain(name)
        for profile in self.profiles:
            if profile.name == wanted:
                return profile
        return None

    def nearest_profiles(self, name: str, limit: int = 3) -> list[str]:
        """Return the names of profiles most like one that was not found, best first.

        A name of the usual form is compared by its slices, then by its memory.
        """
        wanted = _plain(name)
        form = re.match(r"(\d+)g\.(\d+)gb", wanted)

        def distance(profile: MigProfile) -> tuple[int, int, float]:
            slices = abs(profile.compute_slices - int(form[1])) if form else 0
            memory = abs(profile.memory_gb - int(form[2])) if form else 0
            likeness = difflib.SequenceMatcher(None, wanted, profile.name).ratio()
            return slices, memory, -likeness

        return [profile.name for profile in sorted(self.profiles, key=distance)[:limit]]


def encode_table(table: MigTable) -> list[list[object]]:
    """Return the profiles of a table as JSON types; `decode_table` reads them back."""
    return [
        [p.name, p.compute_slices, p.memory_slices, p.memory_gb, p.max_instances, list(p.starts)]
        for p in table.profiles
    ]


def decode_table(model: str, rows: Sequence[Sequence[Any]]) -> MigTable:
    """Return the table that a device reported, from its encoded profiles.

    Raises:
        ValueError: If the rows are no profiles, or a placement is impossible.
    """
    try:
        profiles = tuple(
            MigProfile(
                str(name), int(compute), int(memory), int(gb), int(most), tuple(map(int, starts))
            )
            for name, compute, memory, gb, most, starts in rows
        )
    except TypeError as error:
        raise ValueError(f"the MIG profiles of {model} cannot be read: {error}") from error
    return device_table(model, profiles)


def device_table(model: str, profiles: tuple[MigProfile, ...]) -> MigTable:
    """Return the table of profiles that a device reports, the GPU as large as they need.

    Raises:
        ValueError: If there is none, a name appears twice or a placement is impossible.
    """
    if not profiles or any(not each.starts for each in profiles):
        raise ValueError(f"{model} reports no placement")
    return MigTable(
        model,
        max(each.starts[-1] + each.memory_slices for each in profiles),
        max(each.compute_slices for each in profiles),
        profiles,
        PlacementSource.DEVICE,
    )


def resource_of_profile(name: str) -> str:
    """Return the extended resource in which instances of a profile are counted.

    Source:
        NVIDIA k8s-device-plugin, MIG strategy `mixed`: names of resources hold no `+`.
    """
    return MIG_RESOURCE_PREFIX + _plain(name).replace("+", ".")


def find_table(model: str) -> MigTable | None:
    """Return the built-in table of a model in any spelling, or None where it has no MIG."""
    found = find_model(model)
    return None if found is None else _TABLES.get(found.name)


def find_profile(model: str, name: str) -> MigProfile | None:
    """Return a model's profile, or None if the model has no such profile."""
    table = find_table(model)
    return None if table is None else table.find_profile(name)


def find_models_with_profile(name: str, model: str | None = None) -> tuple[str, ...]:
    """Return the canonical names of the models that offer a profile, in table order.

    Args:
        name: The profile in any spelling.
        model: Only this model or family, or None for all.
    """
    allowed = None if model is None else {entry.name for entry in find_models(model)}
    return tuple(
        table.model
        for table in _TABLES.values()
        if (allowed is None or table.model in allowed) and table.find_profile(name) is not None
    )


@lru_cache(maxsize=1024)
def find_compute_share(name: str, model: str | None = None) -> tuple[int, int] | None:
    """Return (its compute slices, those of the whole GPU) of a profile, or None if none has it.

    Args:
        name: The profile in any spelling.
        model: The model or family it is on, where that is known: a name may be on several.
    """
    known = find_models_with_profile(name, model) or find_models_with_profile(name)
    if not known:
        return None
    table = _TABLES[known[0]]
    profile = table.find_profile(name)
    return None if profile is None else (profile.compute_slices, table.compute_slices)


def nearest_profiles(model: str, name: str, limit: int = 3) -> list[str]:
    """Return names of the model's profiles most like one that was not found, best first."""
    table = find_table(model)
    return [] if table is None else table.nearest_profiles(name, limit)


def _plain(name: str) -> str:
    """Return NVIDIA's spelling of a profile name."""
    text = name.strip().lower()
    for prefix in ("nvidia.com/", "mig-", "mig "):
        text = text.removeprefix(prefix)
    # Resource names cannot hold `+`: the device plugin writes `.me` for `+me`.
    for tail in ("me.all", "me", "gfx"):
        if text.endswith(f"gb.{tail}"):
            return f"{text.removesuffix(f'.{tail}')}+{tail}"
    return text


# Starts on eight memory slices. Slice 7 is reached only by 3g at 4, double memory at 6 and 7g.
_SINGLE = (0, 1, 2, 3, 4, 5, 6)
_DOUBLE = (0, 2, 4, 6)
_PAIR = (0, 2, 4)
_HALF = (0, 4)
_WHOLE = (0,)


def _eight(
    model: str, memory_gb: tuple[int, int, int, int], placements: PlacementSource
) -> MigTable:
    """Return the table of a GPU with seven compute and eight memory slices.

    Args:
        model: Canonical name.
        memory_gb: The numbers in the names: single, double, half, whole.
        placements: How the placements are known.
    """
    one, two, half, whole = memory_gb
    return MigTable(
        model,
        8,
        7,
        (
            MigProfile(f"1g.{one}gb", 1, 1, one, 7, _SINGLE),
            MigProfile(f"1g.{one}gb+me", 1, 1, one, 1, _SINGLE),
            MigProfile(f"1g.{two}gb", 1, 2, two, 4, _DOUBLE),
            MigProfile(f"2g.{two}gb", 2, 2, two, 3, _PAIR),
            MigProfile(f"3g.{half}gb", 3, 4, half, 2, _HALF),
            MigProfile(f"4g.{half}gb", 4, 4, half, 1, _WHOLE),
            MigProfile(f"7g.{whole}gb", 7, 8, whole, 1, _WHOLE),
        ),
        placements,
    )


def _a30() -> MigTable:
    return MigTable(
        "nvidia-a30",
        4,
        4,
        (
            MigProfile("1g.6gb", 1, 1, 6, 4, (0, 1, 2, 3)),
            MigProfile("1g.6gb+me", 1, 1, 6, 1, (0, 1, 2, 3)),
            MigProfile("2g.12gb", 2, 2, 12, 2, (0, 2)),
            MigProfile("2g.12gb+me", 2, 2, 12, 1, (0, 2)),
            MigProfile("4g.24gb", 4, 4, 24, 1, (0,)),
        ),
        PlacementSource.MOCKED,
    )


def _rtx_pro_6000() -> MigTable:
    """Return the table of the RTX PRO 6000, whose profiles also differ in engines and graphics."""
    single, pair = (0, 1, 2, 3), (0, 2)
    return MigTable(
        "nvidia-rtx-pro-6000",
        4,
        4,
        (
            MigProfile("1g.24gb", 1, 1, 24, 4, single),
            MigProfile("1g.24gb+me", 1, 1, 24, 1, single),
            MigProfile("1g.24gb+gfx", 1, 1, 24, 4, single),
            MigProfile("1g.24gb+me.all", 1, 1, 24, 1, single),
            MigProfile("1g.24gb-me", 1, 1, 24, 4, single),
            MigProfile("2g.48gb", 2, 2, 48, 2, pair),
            MigProfile("2g.48gb+gfx", 2, 2, 48, 2, pair),
            MigProfile("2g.48gb+me.all", 2, 2, 48, 1, pair),
            MigProfile("2g.48gb-me", 2, 2, 48, 2, pair),
            MigProfile("4g.96gb", 4, 4, 96, 1, (0,)),
            MigProfile("4g.96gb+gfx", 4, 4, 96, 1, (0,)),
        ),
        PlacementSource.ASSUMED,
    )


_LISTED, _ASSUMED = PlacementSource.LISTED, PlacementSource.ASSUMED
_ALL = (
    _a30(),
    _eight("nvidia-a100-40gb", (5, 10, 20, 40), _LISTED),
    _eight("nvidia-a100-40gb-pcie", (5, 10, 20, 40), _LISTED),
    _eight("nvidia-a100-80gb", (10, 20, 40, 80), _LISTED),
    _eight("nvidia-a100-80gb-pcie", (10, 20, 40, 80), _LISTED),
    _eight("nvidia-h100-80gb", (10, 20, 40, 80), _LISTED),
    _eight("nvidia-h100-80gb-pcie", (10, 20, 40, 80), _LISTED),
    _eight("nvidia-h100-94gb-nvl", (12, 24, 47, 94), _LISTED),
    _eight("nvidia-gh200-96gb", (12, 24, 48, 96), _ASSUMED),
    _eight("nvidia-h200-141gb", (18, 35, 71, 141), _ASSUMED),
    _eight("nvidia-b200", (23, 45, 90, 180), _ASSUMED),
    _eight("nvidia-gb200", (23, 47, 93, 186), _ASSUMED),
    _rtx_pro_6000(),
)
_TABLES: Mapping[str, MigTable] = MappingProxyType({table.model: table for table in _ALL})
KNOWN_TABLES: Mapping[str, MigTable] = _TABLES
"""Every built-in table by the model's canonical name."""
