"""Every call that the operator makes to the API server; the chart grants these and no others."""

from gpuplane.kube.kinds import (
    EVENT,
    GPU_WORKLOAD,
    JOB,
    LEASE,
    NODE,
    POD,
    PROVISIONING_REQUEST,
    Kind,
)
from gpuplane.kube.rights import Right
from gpuplane.operator.migs import MIG_LAYOUT

LEASE_NAME = "gpuplane-operator"
POD_TEMPLATE = Kind("", "v1", "podtemplates", "PodTemplate")
READS = ("list", "watch")

RIGHTS: tuple[Right, ...] = (
    Right(NODE, READS),
    Right(NODE, ("patch",), option="migLayouts"),
    Right(POD, READS),
    Right(EVENT, ("create",)),
    Right(JOB, ("get", *READS, "create", "delete")),
    Right(GPU_WORKLOAD, (*READS, "patch")),
    Right(GPU_WORKLOAD, ("patch",), "status"),
    # Asked for by the admission plug-in OwnerReferencesPermissionEnforcement, not by a call.
    Right(GPU_WORKLOAD, ("update",), "finalizers"),
    Right(MIG_LAYOUT, READS, option="migLayouts"),
    Right(MIG_LAYOUT, ("patch",), "status", option="migLayouts"),
    Right(LEASE, ("create",), is_own=True),
    Right(LEASE, ("get", "update"), is_own=True, names=(LEASE_NAME,)),
    Right(PROVISIONING_REQUEST, (*READS, "create"), option="provisioningClass"),
    Right(POD_TEMPLATE, ("create",), option="provisioningClass"),
)
