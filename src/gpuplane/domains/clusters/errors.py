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


class BadGrant(Unprocessable):
    """A grant to a tenant that does not exist."""

    code = "grant_invalid"


class BadWindow(Unprocessable):
    """A maintenance window that cannot hold."""

    code = "maintenance_window_invalid"
