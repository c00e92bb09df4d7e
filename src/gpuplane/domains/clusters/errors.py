"""What can be refused about clusters."""

from gpuplane.kit.errors import Conflict, NotFound, Unprocessable


class ClusterNotFound(NotFound):
    """No cluster of that id or name, or the caller's project may not see it."""

    code = "cluster_not_found"


class WindowNotFound(NotFound):
    """No maintenance window of that id."""

    code = "maintenance_window_not_found"


class ClusterChanged(Conflict):
    """The cluster was changed by somebody else meanwhile."""

    code = "cluster_changed"


class BadPolicy(Unprocessable):
    """A preemption policy value is out of its limits."""

    code = "preemption_policy_invalid"
