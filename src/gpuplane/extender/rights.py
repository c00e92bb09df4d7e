"""Every call that the extender makes to the API server; the chart grants these and no others."""

from gpuplane.kube.kinds import NODE, POD, Kind
from gpuplane.kube.rights import Right

BINDING = Kind("", "v1", "bindings", "Binding")

RIGHTS: tuple[Right, ...] = (
    Right(NODE, ("get", "list", "watch", "patch")),
    Right(POD, ("list", "watch", "patch")),
    Right(BINDING, ("create",), option="bind"),
)
