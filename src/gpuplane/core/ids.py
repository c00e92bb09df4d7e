"""The typed ids of the product. Names the types only; values are made at the edge (`kit.ids`)."""

from typing import NewType
from uuid import UUID

TenantId = NewType("TenantId", UUID)
ProjectId = NewType("ProjectId", UUID)
UserId = NewType("UserId", UUID)
TokenId = NewType("TokenId", UUID)
ClusterId = NewType("ClusterId", UUID)
NodeId = NewType("NodeId", UUID)
JobId = NewType("JobId", UUID)
AttemptId = NewType("AttemptId", UUID)
ReplicaId = NewType("ReplicaId", UUID)
AllocationId = NewType("AllocationId", UUID)
ReservationId = NewType("ReservationId", UUID)
EventId = NewType("EventId", UUID)
WebhookId = NewType("WebhookId", UUID)
SecretId = NewType("SecretId", UUID)

GpuId = NewType("GpuId", str)
"""The NVML UUID of a GPU (`GPU-…`), never its index: indices change with a reboot."""
