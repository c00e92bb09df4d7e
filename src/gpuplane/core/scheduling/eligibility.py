"""Which clusters a job may run on at all, and in which order they are asked.

Owns the filters over clusters, in the one order in which they are applied and counted, with the
same shape as the filters over nodes: a condition and the word for those that fail it. Never looks
inside a cluster.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from gpuplane.core.ids import ClusterId
from gpuplane.core.reasons import Reason, Word

RESTRICTED = "restricted"
"""The data classification that may leave its tenant's own clusters never (scenario 9.3)."""

MAX_NAMED = 3
"""Clusters of which each is told why it takes no work; of more, that none does."""


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """What decides whether a cluster may be used.

    Args:
        is_granted: It is open to the tenant, or to everyone.
        dedicated_to: The only tenant that may use it, or None.
        closed: Why it takes no new work just now; empty where it does.
    """

    cluster_id: ClusterId
    name: str
    simulated: bool = False
    is_granted: bool = True
    dedicated_to: UUID | None = None
    closed: str = ""


@dataclass(frozen=True, slots=True)
class ClusterRequest:
    """What a job and its project ask of a cluster.

    Args:
        named: The cluster the job names: then it is the only one, and a simulated one may be.
        required: If any, no others. `preferred` come first; `excluded` never.
        data_classification: `restricted` data stays on clusters dedicated to the tenant.
    """

    tenant_id: UUID
    named: ClusterId | None = None
    required: frozenset[ClusterId] = frozenset()
    preferred: frozenset[ClusterId] = frozenset()
    excluded: frozenset[ClusterId] = frozenset()
    data_classification: str = ""


class ClusterFilter(NamedTuple):
    """A condition on one cluster, the word for a refusal, and how people are told."""

    word: Word
    passes: Callable[[ClusterRequest, ClusterFacts], bool]
    sentence: str
    fix: str


def is_the_named_one(request: ClusterRequest, cluster: ClusterFacts) -> bool:
    """Pass the cluster that the job names; without a name every real one."""
    if request.named is not None:
        return cluster.cluster_id == request.named
    return not cluster.simulated


def is_granted(request: ClusterRequest, cluster: ClusterFacts) -> bool:
    """Pass clusters that the tenant may use; a named one was checked when it was named."""
    return cluster.is_granted or request.named is not None


def is_not_excluded(request: ClusterRequest, cluster: ClusterFacts) -> bool:
    """Pass clusters that the project does not exclude."""
    return cluster.cluster_id not in request.excluded


def is_required(request: ClusterRequest, cluster: ClusterFacts) -> bool:
    """Pass clusters that the project requires, without requirements every one.

    A simulated cluster runs nothing and holds no data, so nothing has to be kept away from it.
    """
    return not request.required or cluster.simulated or cluster.cluster_id in request.required


def is_not_dedicated_to_others(request: ClusterRequest, cluster: ClusterFacts) -> bool:
    """Pass clusters that are dedicated to nobody, or to this tenant."""
    return cluster.dedicated_to in (None, request.tenant_id)


def may_hold_the_data(request: ClusterRequest, cluster: ClusterFacts) -> bool:
    """Pass every cluster, with restricted data only those dedicated to the tenant."""
    is_restricted = request.data_classification.lower() == RESTRICTED
    return not is_restricted or cluster.simulated or cluster.dedicated_to == request.tenant_id


def takes_work(request: ClusterRequest, cluster: ClusterFacts) -> bool:
    """Pass clusters that answer and are neither being registered nor given up."""
    return not cluster.closed


CLUSTER_FILTERS = (
    ClusterFilter(
        Word.NO_CLUSTER,
        is_the_named_one,
        "No cluster that it may use is available.",
        "Name a cluster, or have one granted to the tenant.",
    ),
    ClusterFilter(
        Word.NO_CLUSTER,
        is_granted,
        "No cluster that it may use is available.",
        "Name a cluster, or have one granted to the tenant.",
    ),
    ClusterFilter(
        Word.NO_CLUSTER,
        is_not_excluded,
        "Its project excludes every cluster that is available.",
        "Have the project's cluster affinities changed.",
    ),
    ClusterFilter(
        Word.NO_CLUSTER,
        is_required,
        "No cluster that its project requires is available.",
        "Wait for it, or have the project's cluster affinities changed.",
    ),
    ClusterFilter(
        Word.DEDICATED_CLUSTER,
        is_not_dedicated_to_others,
        "The clusters left are dedicated to other tenants.",
        "Have another cluster added, or this one dedicated to its tenant.",
    ),
    ClusterFilter(
        Word.DEDICATED_CLUSTER,
        may_hold_the_data,
        "Its data is restricted, and no cluster left is dedicated to its tenant.",
        "Have a cluster dedicated to the tenant, or correct the data classification.",
    ),
    ClusterFilter(
        Word.CLUSTER_NOT_AVAILABLE,
        takes_work,
        "None of the clusters that it may use takes work now.",
        "Wait until one does: see `gpuplane clusters health CLUSTER`; or name another cluster.",
    ),
)


def rank_clusters(
    request: ClusterRequest, clusters: Iterable[ClusterFacts]
) -> tuple[tuple[ClusterId, ...], Reason]:
    """Return the clusters to ask, best first, and the reason to tell if there are none.

    Preferred ones come first, then those dedicated to the tenant, then by name. The reason is
    that of the last filter that refused one: those clusters came closest.
    """
    left = list(clusters)
    last, sentence = CLUSTER_FILTERS[0], CLUSTER_FILTERS[0].sentence
    for each in CLUSTER_FILTERS:
        passing = [cluster for cluster in left if each.passes(request, cluster)]
        if len(passing) < len(left):
            last, sentence = each, each.sentence
            if each.passes is takes_work:
                sentence = _describe_closed(left, each.sentence)
        left = passing
    left.sort(key=lambda cluster: _rank(request.preferred, cluster))
    return tuple(each.cluster_id for each in left), Reason(last.word, sentence, last.fix)


def _describe_closed(clusters: Iterable[ClusterFacts], sentence: str) -> str:
    """Return why the clusters that it may use take no work: each of a few, else that none does."""
    closed = sorted(each.closed for each in clusters if each.closed)
    return " ".join(closed) if len(closed) <= MAX_NAMED else sentence


def _rank(preferred: Collection[ClusterId], cluster: ClusterFacts) -> tuple[bool, bool, str, int]:
    is_others = cluster.dedicated_to is None
    return cluster.cluster_id not in preferred, is_others, cluster.name, cluster.cluster_id.int
