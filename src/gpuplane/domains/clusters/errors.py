"""What can be refused about clusters."""

from gpuplane.kit.errors import Conflict, NotFound, Unavailable, Unprocessable


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


class PolicyNotInForce(Conflict):
    """The cluster's own Kueue preempts, by its ClusterQueues; the policy here does not count."""

    code = "preemption_policy_not_in_force"


class BadAddon(Unprocessable):
    """An add-on was named that there is none of."""

    code = "addon_unknown"


class BadGrant(Unprocessable):
    """A grant to a tenant that does not exist."""

    code = "grant_invalid"


class BadWindow(Unprocessable):
    """A maintenance window that cannot hold."""

    code = "maintenance_window_invalid"


class ClusterExists(Conflict):
    """A cluster of that name is there."""

    code = "cluster_exists"


class ClusterBusy(Conflict):
    """The cluster is in a state that does not allow it."""

    code = "cluster_busy"


class CredentialsGone(Unavailable):
    """No credentials are kept for the cluster."""

    code = "cluster_credentials_gone"


class KeyNotFound(NotFound):
    """The cluster has no such key, or it was revoked."""

    code = "cluster_key_not_found"


class AddonNotFound(NotFound):
    """The list of add-ons has none of that name."""

    code = "cluster_addon_not_found"


class KubeconfigRefused(Unprocessable):
    """A kubeconfig that is not taken; names the field, the reason and the fix."""

    code = "kubeconfig_invalid"


class ClusterRefused(Unprocessable):
    """A cluster that cannot be registered: not reached, too old, or rights are missing."""

    code = "cluster_refused"
