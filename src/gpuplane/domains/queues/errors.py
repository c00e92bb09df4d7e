"""What can be refused about queues."""

from gpuplane.kit.errors import Conflict, NotFound, Unprocessable


class QueueNotFound(NotFound):
    """No queue of that name on the cluster."""

    code = "queue_not_found"


class QueueChanged(Conflict):
    """The queue was changed by somebody else meanwhile."""

    code = "queue_changed"


class QueueExists(Conflict):
    """The cluster has an object of that kind and name."""

    code = "queue_exists"


class QueueInUse(Conflict):
    """The queue still holds or awaits work."""

    code = "queue_in_use"


class QueueInConflict(Conflict):
    """The cluster has something else than was declared, by somebody else, and keeps it."""

    code = "queue_in_conflict"


class QueueLeadsElsewhere(Conflict):
    """The cluster has the LocalQueue, leading elsewhere, and Kueue lets nobody change that."""

    code = "queue_leads_elsewhere"


class ClusterLeaves(Conflict):
    """The cluster is being deleted, so nothing is declared on it any more."""

    code = "cluster_leaves"


class BadQueue(Unprocessable):
    """A declaration that Kueue's rules refuse."""

    code = "queue_invalid"
