"""Why a cluster takes no work, as sentences for the jobs and nodes that it is told of."""

from gpuplane.domains.clusters.rules import Cluster, ClusterState
from gpuplane.kit.clock import instant_to_text


def describe_closed(cluster: Cluster) -> str:
    """Return why a cluster takes no new work just now; empty for one that does."""
    if cluster.state is ClusterState.AVAILABLE:
        return ""
    name = cluster.name
    if cluster.state is ClusterState.REGISTERING:
        return f"Cluster {name} is still being registered."
    if cluster.state is ClusterState.DRAINING:
        return f"Cluster {name} is being drained and takes no new work."
    if cluster.state is ClusterState.DELETING:
        return f"Cluster {name} is being deleted and takes no work any more."
    if cluster.not_available_since is None:
        return f"Cluster {name} could not be registered."
    return describe_silence(cluster)


def describe_silence(cluster: Cluster) -> str:
    """Return since when a cluster has not answered; empty for one that does."""
    since = cluster.not_available_since
    return (
        ""
        if since is None
        else (f"Cluster {cluster.name} has not answered since {instant_to_text(since)}.")
    )
