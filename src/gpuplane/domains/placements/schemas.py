"""API bodies of capacity: what a cluster has left, and reservations."""

from typing import Annotated
from uuid import UUID

from fastapi import Path
from pydantic import Field

from gpuplane.core.capacity import ReservationState
from gpuplane.kit.bodies import Body, Flag, InstantIn, InstantOut, Text

MAX_GPUS = 100_000
"""More GPUs than any cluster has."""
ClusterKey = Annotated[str, Path(min_length=1, max_length=63, description="Id or name.")]


class ReservationIn(Body):
    """GPUs to set aside for a project; without one it is the caller's."""

    cluster: Annotated[str, Field(min_length=1, max_length=63)]
    """Id or name."""
    model: Annotated[str, Field(min_length=1, max_length=100)]
    """Any name of a GPU model."""
    count: Annotated[int, Field(strict=True, ge=1, le=MAX_GPUS)]
    start: InstantIn
    end: InstantIn
    charge_unused: Flag = True
    """Whether reserved time that no job uses is paid for."""
    project_id: UUID | None = None
    name: Text = ""


class ReservationOut(Body):
    """One reservation and the GPUs it holds now."""

    id: UUID
    name: str
    cluster_id: UUID
    tenant_id: UUID
    project_id: UUID
    model: str
    count: int
    start: InstantOut
    end: InstantOut
    charge_unused: bool
    state: ReservationState
    gpu_ids: list[str]
    created_at: InstantOut
    ended_at: InstantOut | None


class ReservationsOut(Body):
    """Reservations by start."""

    items: list[ReservationOut]


class ModelCapacityOut(Body):
    """The GPUs of one model: each is in exactly one of the counts but `partly_free_milli`."""

    model: str
    total: int
    free: int
    reserved: int
    in_use: int
    down: int
    partly_free_milli: int
    """What is left of shared GPUs that are in use."""


class AmountOut(Body):
    """A total of all nodes and what is left of it."""

    total: int
    free: int


class CapacityOut(Body):
    """What a cluster has and what is left of it now."""

    cluster_id: UUID
    cluster: str
    simulated: bool
    at: InstantOut
    node_count: int
    models: list[ModelCapacityOut]
    cpu_milli: AmountOut
    memory_mib: AmountOut
    ephemeral_mib: AmountOut
