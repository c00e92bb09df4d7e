"""What can be refused about nodes."""

from gpuplane.kit.errors import Conflict, NotFound


class NodeNotFound(NotFound):
    """No node of that id or name."""

    code = "node_not_found"


class NodeChanged(Conflict):
    """The node was changed by somebody else meanwhile."""

    code = "node_changed"
