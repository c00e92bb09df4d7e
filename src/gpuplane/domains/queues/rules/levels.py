"""Which node label stands for a rack or a block in the queues of a cluster's Kueue: pure.

Owns the way from a ClusterQueue over its flavors and their Topologies to a level. Never decides
where anything runs: Kueue lays pods out itself.
"""

from collections.abc import Iterable, Sequence

from gpuplane.domains.queues.rules.seen import Seen, SeenKind


def find_level(seen: Iterable[Seen], queue: str, labels: Sequence[str]) -> str | None:
    """Return the first of some node labels that is a level of a Topology of a queue's flavors.

    Args:
        seen: What the cluster shows of its Kueue.
        queue: The ClusterQueue.
        labels: The labels that mean what is asked, the best known first.
    """
    levels = set().union(*find_laid_out(seen, queue).values())
    return next((label for label in labels if label in levels), None)


def find_laid_out(seen: Iterable[Seen], queue: str) -> dict[str, frozenset[str]]:
    """Return the flavors of a queue that have a Topology, each with its levels."""
    known = {(each.kind, each.name): each for each in seen}
    found = known.get((SeenKind.CLUSTER_QUEUE, queue))
    laid_out: dict[str, frozenset[str]] = {}
    for group in () if found is None else found.spec.get("resourceGroups", ()):
        for name in (flavor["name"] for flavor in group["flavors"]):
            flavor = known.get((SeenKind.FLAVOR, name))
            topology = "" if flavor is None else flavor.spec.get("topologyName") or ""
            told = known.get((SeenKind.TOPOLOGY, topology))
            if told is not None:
                levels = told.spec.get("levels") or ()
                laid_out[name] = frozenset(each["nodeLabel"] for each in levels)
    return laid_out
