"""The pinned list of add-ons, and which of them fit a cluster: pure but for reading the file.

Owns the decision to install, adopt, leave alone or leave out; never talks to a cluster.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib.resources import files
from typing import Any, Literal

import msgspec
import yaml

from gpuplane.kube.helm import Release

When = Literal["always", "nvidia", "receiver"]
Ready = Literal["workload", "labels"]
_NUMBER = re.compile(r"v?(\d+)\.(\d+)")


@dataclass(frozen=True, slots=True)
class Workload:
    """What of an add-on runs, by which its health is told."""

    kind: str
    labels: dict[str, str]


@dataclass(frozen=True, slots=True)
class OpenShift:
    """What OpenShift makes of an add-on: why it is refused, or which accounts need which SCC."""

    refuse: str = ""
    scc: dict[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pin:
    """One version of a chart, and the first and last version of Kubernetes that it is made for."""

    version: str
    kubernetes: tuple[str, str]

    def fits(self, kubernetes_version: str) -> bool:
        """Return whether it is made for a version of Kubernetes."""
        found = number_of(kubernetes_version)
        first, last = number_of(self.kubernetes[0]), number_of(self.kubernetes[1])
        return (
            found is not None
            and first is not None
            and last is not None
            and (first <= found <= last)
        )


@dataclass(frozen=True, slots=True)
class Addon:
    """One add-on as it is pinned; the file says what each field means."""

    name: str
    step: str
    chart: str
    version: str
    release: str
    namespace: str
    kubernetes: tuple[str, str]
    source: str
    repo: str = ""
    file: str = ""
    older: tuple[Pin, ...] = ()
    needs: tuple[str, ...] = ()
    ready: Ready = "workload"
    when: When = "always"
    unless: tuple[str, ...] = ()
    served: str = ""
    workload: Workload | None = None
    openshift: OpenShift = field(default_factory=OpenShift)
    values: dict[str, Any] = field(default_factory=dict)
    set: dict[str, str] = field(default_factory=dict)
    of_role: dict[str, dict[str, Any]] = field(default_factory=dict)
    beside: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def chart_name(self) -> str:
        """Return the chart's own name, as releases tell it."""
        return self.chart.rpartition("/")[2]

    @property
    def file_names(self) -> tuple[str, ...]:
        """Return what its chart's file may be called: by the chart, or as it is published."""
        names = (self.chart_name, self.file) if self.file else (self.chart_name,)
        return tuple(f"{name}-{self.version}.tgz" for name in names)

    def is_chart_of(self, release: Release) -> bool:
        """Return whether a release is one of this chart, of whatever version."""
        name, _, version = release.chart.rpartition("-")
        return name == self.chart_name and bool(version)

    @property
    def pins(self) -> tuple[Pin, ...]:
        """Return its versions, newest first: the row of the compatibility matrix."""
        return (Pin(self.version, self.kubernetes), *self.older)

    def for_kubernetes(self, kubernetes_version: str) -> "Addon":
        """Return it in the newest version made for one of Kubernetes, as it is where none is."""
        for pin in self.pins:
            if pin.fits(kubernetes_version):
                return replace(self, version=pin.version, kubernetes=pin.kubernetes)
        return self

    def fits(self, kubernetes_version: str) -> bool:
        """Return whether its pinned version is made for a version of Kubernetes."""
        return Pin(self.version, self.kubernetes).fits(kubernetes_version)


class _File(msgspec.Struct, forbid_unknown_fields=True):
    format: Literal[1]
    addons: tuple[Addon, ...]


@dataclass(frozen=True, slots=True)
class Situation:
    """What is known of a cluster when an add-on is decided on.

    Attributes:
        vendors: Whose devices its nodes have.
        served: Groups that the list names and its API serves.
        releases: Every Helm release there.
        wanted: Names that were asked for; None for all.
        in_place: Names of add-ons that are in, by whomever.
        has_receiver: Whether metrics have somewhere to go.
    """

    kubernetes_version: str
    distribution: str
    vendors: frozenset[str] = frozenset()
    served: frozenset[str] = frozenset()
    releases: tuple[Release, ...] = ()
    wanted: frozenset[str] | None = None
    in_place: frozenset[str] = frozenset()
    has_receiver: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do about an add-on.

    Attributes:
        verb: `install`, `keep` (ours, as it should be), `present` (another's), `leave_out`.
        reason: A sentence, empty where it is installed.
        release: The release that is there, of whoever.
    """

    verb: Literal["install", "keep", "present", "leave_out"]
    reason: str = ""
    release: Release | None = None


@lru_cache(maxsize=1)
def load_addons() -> tuple[Addon, ...]:
    """Return the pinned add-ons in the order in which they are installed."""
    text = files("gpuplane").joinpath("data", "addons.yaml").read_text(encoding="utf-8")
    return msgspec.convert(yaml.safe_load(text), _File).addons


def addons_of(step: str) -> tuple[Addon, ...]:
    """Return the add-ons of a step of the registration."""
    return tuple(addon for addon in load_addons() if addon.step == step)


def find_addon(name: str) -> Addon | None:
    """Return an add-on by its name, or None."""
    return next((addon for addon in load_addons() if addon.name == name), None)


def number_of(version: str) -> tuple[int, int] | None:
    """Return (major, minor) of a version such as `v1.34.4`, None where it is none."""
    match = _NUMBER.match(version)
    return None if match is None else (int(match.group(1)), int(match.group(2)))


def decide(addon: Addon, seen: Situation, adopted: Collection[str] = ()) -> Decision:
    """Return what to do about an add-on, the first reason that holds.

    Args:
        addon: Which.
        seen: The cluster.
        adopted: `namespace/name` of releases that were adopted: they are ours.
    """
    if seen.wanted is not None and addon.name not in seen.wanted:
        return Decision("leave_out", "It was not asked for.")
    if addon.when == "nvidia" and "nvidia" not in seen.vendors:
        return Decision("leave_out", "No node has NVIDIA devices.")
    if addon.when == "receiver" and not seen.has_receiver:
        return Decision("leave_out", "No receiver of metrics is set.")
    for release in seen.releases:
        if addon.is_chart_of(release):
            return _decide_release(addon, release, seen, adopted)
    if addon.served and addon.served in seen.served:
        return Decision("present", f"{addon.served} is served: it was installed without Helm.")
    return _decide_install(addon, seen)


def _decide_release(
    addon: Addon, release: Release, seen: Situation, adopted: Collection[str]
) -> Decision:
    ours = (release.namespace, release.name) == (addon.namespace, addon.release)
    if not ours and f"{release.namespace}/{release.name}" not in adopted:
        said = f"Release {release.name} in {release.namespace} is somebody's: {release.chart}."
        return Decision("present", said, release)
    if release.chart == f"{addon.chart_name}-{addon.version}" and release.status == "deployed":
        return Decision("keep", "", release)
    refused = _decide_install(addon, seen)
    return refused if refused.verb == "leave_out" else Decision("install", "", release)


def _decide_install(addon: Addon, seen: Situation) -> Decision:
    others = sorted(set(addon.unless) & seen.in_place)
    if others:
        return Decision("leave_out", f"{', '.join(others)} brings the same.")
    if not addon.fits(seen.kubernetes_version):
        made = ", ".join(
            f"version {pin.version} for Kubernetes {pin.kubernetes[0]} to {pin.kubernetes[1]}"
            for pin in addon.pins
        )
        return Decision(
            "leave_out",
            f"{made[:1].upper()}{made[1:]} is known; the cluster runs {seen.kubernetes_version}.",
        )
    if seen.distribution == "openshift" and addon.openshift.refuse:
        return Decision("leave_out", f"OpenShift: {addon.openshift.refuse}")
    absent = [group for group in addon.needs if group not in seen.served]
    if absent:
        return Decision("leave_out", f"It needs {' and '.join(absent)}, which is not served there.")
    return Decision("install")


def compute_company(addon: Addon, seen: Situation, adopted: Collection[str] = ()) -> frozenset[str]:
    """Return which other add-ons are in, or come in after this one by the same registration.

    Args:
        addon: Which has the company.
        seen: The cluster, as this one is decided on.
        adopted: As for `decide`.
    """
    listed = load_addons()
    names = [each.name for each in listed]
    after = listed[names.index(addon.name) + 1 :] if addon.name in names else ()
    coming = {
        each.name
        for each in after
        if decide(each.for_kubernetes(seen.kubernetes_version), seen, adopted).verb == "install"
    }
    return (seen.in_place | coming) - {addon.name}


def compute_values(
    addon: Addon,
    settings: Mapping[str, Any],
    role: str = "",
    company: Collection[str] = (),
) -> dict[str, Any]:
    """Return the values of an add-on's chart for a cluster, with what settings fill in.

    Args:
        addon: Which.
        settings: By name, for its `set`.
        role: The cluster's.
        company: Names of other add-ons there, as `compute_company` tells.
    """
    values = merge_values(addon.values, addon.of_role.get(role, {}))
    for name, more in addon.beside.items():
        if name in company:
            values = merge_values(values, more)
    for path, name in addon.set.items():
        _put(values, path.split("."), settings[name])
    return values


def merge_values(values: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Return values with others put over them as Helm does it: maps are merged, lists replaced.

    A null takes away what the first has; what they have not it leaves null, for Helm to take the
    chart's own away.
    """
    found = deepcopy(dict(values))
    for key, each in more.items():
        own = found.get(key)
        if isinstance(own, Mapping) and isinstance(each, Mapping):
            found[key] = merge_values(own, each)
        elif each is None and own is not None:
            del found[key]
        else:
            found[key] = deepcopy(each)
    return found


def _put(values: dict[str, Any], path: Sequence[str], value: Any) -> None:
    for part in path[:-1]:
        values = values.setdefault(part, {})
    values[path[-1]] = value
