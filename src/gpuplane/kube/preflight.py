"""Looks at a cluster before it is registered: is it reached, new enough, and may we do our work.

Owns the list of rights that the product needs and why. Asks only; changes nothing in a cluster.
"""

import asyncio
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from gpuplane.kube import kinds
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.errors import Forbidden
from gpuplane.kube.kinds import Kind
from gpuplane.kube.kueue.multikueue import NAMESPACE, TOKEN_SECRET
from gpuplane.kube.kueue.names import ApiVersion, choose_version

OLDEST = (1, 29)
"""Kueue's own requirement, and the first with every field of Jobs that is used here."""
NEWEST = (1, 35)
"""The last that was looked at; what newer ones changed is not known here."""
REVIEWS_AT_ONCE = 10
OPENSHIFT_INGRESS = Kind("config.openshift.io", "v1", "ingresses", "Ingress", namespaced=False)
READ = ("get", "list", "watch")
WRITE = ("create", "patch", "delete")


@dataclass(frozen=True, slots=True)
class Right:
    """Verbs on a kind, and what they are needed for."""

    kind: Kind
    verbs: tuple[str, ...]
    reason: str
    subresource: str | None = None
    is_required: bool = True

    @property
    def resource(self) -> str:
        """Return the resource as RBAC names it."""
        name = (
            self.kind.plural
            if self.subresource is None
            else f"{self.kind.plural}/{self.subresource}"
        )
        return f"{name}.{self.kind.group}" if self.kind.group else name


RIGHTS: tuple[Right, ...] = (
    Right(kinds.NODE, READ, "nodes and their GPUs are read"),
    Right(kinds.POD, (*READ, *WRITE), "jobs run in pods"),
    Right(kinds.POD, ("get",), "output of jobs is read", "log"),
    Right(kinds.POD, ("create",), "commands run beside a job", "exec"),
    Right(kinds.POD, ("create",), "work is moved away by eviction", "eviction"),
    Right(kinds.NAMESPACE, (*READ, *WRITE), "each tenant has a namespace"),
    Right(kinds.CONFIG_MAP, (*READ, *WRITE, "update"), "each attempt has its record"),
    Right(kinds.SECRET, (*READ, *WRITE), "secrets of jobs are handed over"),
    Right(kinds.SERVICE, (*READ, *WRITE), "services and gangs have addresses"),
    Right(kinds.SERVICE_ACCOUNT, (*READ, *WRITE), "tenants' jobs have an identity of their own"),
    Right(kinds.PERSISTENT_VOLUME_CLAIM, (*READ, *WRITE), "jobs have volumes"),
    Right(kinds.STORAGE_CLASS, ("list",), "the class of a volume is checked"),
    Right(kinds.EVENT, ("list", "watch"), "why a pod does not start is told"),
    Right(kinds.JOB, (*READ, *WRITE), "batch and training jobs are Jobs"),
    Right(kinds.DEPLOYMENT, (*READ, *WRITE), "services are Deployments"),
    Right(kinds.NETWORK_POLICY, (*READ, *WRITE), "tenants are kept apart"),
    Right(kinds.RESOURCE_QUOTA, (*READ, *WRITE), "tenants have limits"),
    Right(kinds.LIMIT_RANGE, (*READ, *WRITE), "tenants have limits"),
    Right(
        kinds.HORIZONTAL_POD_AUTOSCALER, (*READ, *WRITE), "services scale", is_required=False
    ),
    Right(kinds.SERVICE, ("get",), "HAMi's metrics are read", "proxy", is_required=False),
    Right(kinds.JOB_SET, (*READ, *WRITE), "gangs are JobSets", is_required=False),
    Right(kinds.SCALED_OBJECT, (*READ, *WRITE), "services scale by KEDA", is_required=False),
    Right(kinds.NODE, ("patch",), "nodes are cordoned in the cluster too", is_required=False),
    Right(kinds.STATEFUL_SET, (*READ, *WRITE), "charts of jobs bring them", is_required=False),
    Right(kinds.REPLICA_SET, (*READ, *WRITE), "charts of jobs bring them", is_required=False),
    Right(kinds.CRON_JOB, (*READ, *WRITE), "charts of jobs bring them", is_required=False),
    Right(
        kinds.POD_DISRUPTION_BUDGET, (*READ, *WRITE), "charts of jobs bring them",
        is_required=False,
    ),
    Right(kinds.INGRESS, (*READ, *WRITE), "charts of jobs bring them", is_required=False),
)  # fmt: skip
ADDON_RIGHTS: tuple[Right, ...] = tuple(
    Right(kind, verbs, "add-ons are installed", is_required=False)
    for kind, verbs in (
        (kinds.CUSTOM_RESOURCE_DEFINITION, ("get", "create")),
        (kinds.CLUSTER_ROLE, ("create", "bind", "escalate")),
        (kinds.CLUSTER_ROLE_BINDING, ("create",)),
        (kinds.DAEMON_SET, ("create",)),
    )
)
"""What charts of add-ons make besides. Asked for where add-ons are to be brought in, and granted to
no account of ours, which could take every right by them: `gpuplane clusters access --for-addons`
binds an administrator's for as long as it takes."""
OPENSHIFT_RIGHTS: tuple[Right, ...] = (
    Right(kinds.ROUTE, (*READ, *WRITE), "services are reached from outside", is_required=False),
)
KUEUE_RIGHTS: tuple[Right, ...] = (
    Right(kinds.RESOURCE_FLAVOR, (*READ, *WRITE), "quotas are written", is_required=False),
    Right(kinds.CLUSTER_QUEUE, (*READ, *WRITE), "quotas are written", is_required=False),
    Right(kinds.LOCAL_QUEUE, (*READ, *WRITE), "quotas are written", is_required=False),
    Right(kinds.COHORT, (*READ, *WRITE), "quotas are written", is_required=False),
    Right(kinds.TOPOLOGY, (*READ, *WRITE), "topologies are written", is_required=False),
    Right(
        kinds.WORKLOAD_PRIORITY_CLASS, (*READ, *WRITE), "classes are written", is_required=False
    ),
    Right(
        kinds.ADMISSION_CHECK, (*READ, *WRITE), "work is held by budget and window",
        is_required=False,
    ),
    Right(
        kinds.ADMISSION_CHECK, ("patch",), "work is held by budget and window", "status",
        is_required=False,
    ),
    Right(kinds.MULTIKUEUE_CLUSTER, (*READ, *WRITE), "workers are known", is_required=False),
    Right(kinds.MULTIKUEUE_CONFIG, (*READ, *WRITE), "workers are known", is_required=False),
    Right(
        kinds.VALIDATING_POLICY, ("get", *WRITE), "logs of dispatched work are kept",
        is_required=False,
    ),
    Right(
        kinds.VALIDATING_POLICY_BINDING, ("get", *WRITE), "logs of dispatched work are kept",
        is_required=False,
    ),
    Right(kinds.WORKLOAD, (*READ, "patch"), "admission is seen", is_required=False),
    Right(
        kinds.JOB, ("patch",), "the quota of a chart is given back with its pods", "status",
        is_required=False,
    ),
    Right(
        kinds.WORKLOAD, ("patch",), "work is held by budget and window", "status",
        is_required=False,
    ),
)  # fmt: skip

_FOR_MANAGERS = (
    "a manager of MultiKueue gets an account there; or its administrator makes it with "
    "`gpuplane clusters access --for-multikueue`"
)
WORKER_RIGHTS: tuple[Right, ...] = (
    Right(kinds.CLUSTER_ROLE, ("create", "patch", "bind", "escalate"), _FOR_MANAGERS,
          is_required=False),
    Right(kinds.CLUSTER_ROLE_BINDING, ("create", "patch"), _FOR_MANAGERS, is_required=False),
)  # fmt: skip
"""What a worker is asked for in addition, unless the account is there already: never granted to
the account of a control plane, which could take every right by them."""


@dataclass(frozen=True, slots=True)
class AccessRule:
    """What the account of a control plane may do with one resource, and what for."""

    group: str
    resource: str
    verbs: tuple[str, ...]
    reasons: tuple[str, ...]


def list_access_rules() -> tuple[AccessRule, ...]:
    """Return the rules of an account with every right that is asked for, one a resource."""
    verbs: dict[tuple[str, str], dict[str, None]] = {}
    reasons: dict[tuple[str, str], dict[str, None]] = {}
    for right in (*RIGHTS, *KUEUE_RIGHTS, *OPENSHIFT_RIGHTS):
        part = "" if right.subresource is None else f"/{right.subresource}"
        key = (right.kind.group, right.kind.plural + part)
        verbs.setdefault(key, {}).update(dict.fromkeys(right.verbs))
        reasons.setdefault(key, {})[right.reason] = None
    return tuple(
        AccessRule(group, resource, tuple(allowed), tuple(reasons[group, resource]))
        for (group, resource), allowed in verbs.items()
    )


@dataclass(frozen=True, slots=True)
class MissingRight:
    """A right that the credentials do not have."""

    verbs: tuple[str, ...]
    resource: str
    reason: str
    is_required: bool

    @property
    def sentence(self) -> str:
        """Return what is missing and what for."""
        return f"{', '.join(self.verbs)} on {self.resource} ({self.reason})"


@dataclass(frozen=True, slots=True)
class ClusterLook:
    """What a look at a cluster found.

    Attributes:
        version: Such as `v1.34.4`.
        number: (major, minor).
        distribution: `kubernetes`, `openshift`, `eks`, `aks`, `gke`, `k3s`, `rke2`.
        platform: `ON_PREM`, `EKS`, `AKS`, `GKE`.
        kueue: The newest version of Kueue's API that is served, empty without Kueue.
        missing: Rights that the credentials do not have, required ones first.
    """

    version: str
    number: tuple[int, int]
    distribution: str
    platform: str
    kueue: str
    missing: tuple[MissingRight, ...]
    uid: str = ""
    """Of its `kube-system` namespace, which no other cluster has; empty if it may not be read."""
    domain: str = ""
    """Below which OpenShift makes routes; empty elsewhere."""
    kueue_versions: tuple[str, ...] = ()
    """Every version of Kueue's API that is served."""

    @property
    def is_too_old(self) -> bool:
        """Return whether it is older than what is supported."""
        return self.number < OLDEST

    @property
    def speaks_kueue(self) -> bool:
        """Return whether a version of Kueue's API is served that is spoken here."""
        return choose_version(self.kueue, self.kueue_versions) is not None

    @property
    def age_warnings(self) -> tuple[str, ...]:
        """Return what its versions will soon cost, a sentence each; nothing where they are well."""
        said = []
        if self.number == OLDEST:
            said.append(
                f"It runs Kubernetes {self.version}, the oldest that is supported: upgrade it "
                "before gpuplane."
            )
        if self.number > NEWEST:
            newest = ".".join(map(str, NEWEST))
            said.append(
                f"It runs Kubernetes {self.version}; {newest} is the newest that gpuplane was "
                "made for."
            )
        if self.kueue and not self.speaks_kueue:
            said.append(
                f"Its Kueue serves {', '.join(self.kueue_versions)} and none of "
                f"{' and '.join(ApiVersion)}: work is admitted here until it is upgraded."
            )
        elif self.kueue_versions and ApiVersion.V1BETA2 not in self.kueue_versions:
            said.append(
                f"Its Kueue serves no {ApiVersion.V1BETA2} (since 0.15); {ApiVersion.V1BETA1} is "
                "deprecated: upgrade it."
            )
        return tuple(said)

    @property
    def blockers(self) -> tuple[MissingRight, ...]:
        """Return the missing rights without which nothing works."""
        return tuple(right for right in self.missing if right.is_required)


async def look_at(
    client: KubeClient, server: str, *, is_worker: bool = False, brings_addons: bool = False
) -> ClusterLook:
    """Return what a cluster is and what the credentials may not do there.

    Args:
        client: The cluster.
        server: Its address.
        is_worker: Whether managers of MultiKueue are to dispatch to it.
        brings_addons: Whether add-ons are to be brought in.

    Raises:
        KubeError: If it does not answer or does not know the credentials.
    """
    version = await client.version()
    is_openshift = await client.served("security.openshift.io") is not None
    kueue = await client.served("kueue.x-k8s.io")
    wanted = (*RIGHTS, *KUEUE_RIGHTS) if kueue is not None else RIGHTS
    if await client.served(kinds.ROUTE.group) is not None:
        wanted = (*wanted, *OPENSHIFT_RIGHTS)
    if brings_addons:
        wanted = (*wanted, *ADDON_RIGHTS)
    if is_worker and kueue is not None and not await _has_managers_account(client):
        wanted = (*wanted, *WORKER_RIGHTS)
    distribution = "openshift" if is_openshift else distribution_of(version.text, server)
    return ClusterLook(
        version=version.text,
        number=(version.major, version.minor),
        distribution=distribution,
        platform=_PLATFORMS.get(distribution, "ON_PREM"),
        kueue="" if kueue is None else kueue.preferred,
        kueue_versions=() if kueue is None else kueue.versions,
        missing=await find_missing(client, wanted),
        uid=await _find_uid(client),
        domain=await _find_domain(client) if is_openshift else "",
    )


async def _has_managers_account(client: KubeClient) -> bool:
    try:
        return await client.find(kinds.SECRET, TOKEN_SECRET, NAMESPACE) is not None
    except Forbidden:
        return False


async def _find_uid(client: KubeClient) -> str:
    try:
        found = await client.find(kinds.NAMESPACE, "kube-system")
    except Forbidden:
        return ""
    return "" if found is None else str(found["metadata"].get("uid", ""))


async def _find_domain(client: KubeClient) -> str:
    """Return the domain of OpenShift's routes, which its configuration names."""
    try:
        found = await client.find(OPENSHIFT_INGRESS, "cluster")
    except Forbidden:
        return ""
    return "" if found is None else str((found.get("spec") or {}).get("domain", ""))


_PLATFORMS = {"eks": "EKS", "aks": "AKS", "gke": "GKE"}
_VERSION_MARKS = (("-eks-", "eks"), ("-gke.", "gke"), ("+k3s", "k3s"), ("+rke2", "rke2"))
_HOSTS = (
    (re.compile(r"\.eks\.amazonaws\.com(\.cn)?$"), "eks"),
    (re.compile(r"\.azmk8s\.io$"), "aks"),
)


def distribution_of(version: str, server: str) -> str:
    """Return who built a cluster, by its version's suffix, else by its server's name."""
    for mark, name in _VERSION_MARKS:
        if mark in version:
            return name
    host = urlsplit(server).hostname or ""
    return next((name for pattern, name in _HOSTS if pattern.search(host)), "kubernetes")


async def find_missing(client: KubeClient, wanted: Sequence[Right]) -> tuple[MissingRight, ...]:
    """Return the rights that the credentials do not have in all namespaces, required ones first."""
    gate = asyncio.Semaphore(REVIEWS_AT_ONCE)

    async def denied(right: Right, verb: str) -> bool:
        async with gate:
            return not await client.can_i(verb, right.kind, subresource=right.subresource)

    asked = [(right, verb) for right in wanted for verb in right.verbs]
    answers = await asyncio.gather(*(denied(right, verb) for right, verb in asked))
    found = [
        MissingRight(tuple(verbs), right.resource, right.reason, right.is_required)
        for right in wanted
        if (verbs := list(_denied_verbs(right, asked, answers)))
    ]
    return tuple(sorted(found, key=lambda each: not each.is_required))


def _denied_verbs(
    right: Right, asked: Sequence[tuple[Right, str]], answers: Sequence[bool]
) -> Iterable[str]:
    for (one, verb), is_denied in zip(asked, answers, strict=True):
        if one is right and is_denied:
            yield verb
