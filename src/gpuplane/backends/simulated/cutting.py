"""Cutting a simulated GPU anew: what it has meanwhile and afterwards.

Owns the value and its arithmetic over fleet time. Whether instances can exist together is the
decision core's to say (`core.mig`).
"""

import msgspec

from gpuplane.backends.interface import BackendError, MigOrder
from gpuplane.backends.simulated.fleet import Gpu
from gpuplane.backends.simulated.timeline import LABEL
from gpuplane.core.mig.layouts import MigLayoutError, layout_of
from gpuplane.core.mig.profiles import find_table
from gpuplane.core.reasons import Word

CUT_MS = 3_000
"""From the order to the new instances. An assumption of the order of seconds: drivers create an
instance within about a second, and the device plugin has to find it."""


class Cut(msgspec.Struct, frozen=True):
    """How one GPU is cut, other than its fleet file says.

    Args:
        base: Its instances in the fleet file, as (profile, first memory slice).
        kept: What it has at once.
        created: What it has besides from `ready_at` on, in fleet milliseconds.
    """

    gpu_id: str
    node: str
    base: tuple[tuple[str, int], ...]
    kept: tuple[tuple[str, int], ...]
    created: tuple[tuple[str, int], ...]
    ready_at: int

    @property
    def instances(self) -> tuple[tuple[str, int], ...]:
        """Return what it has in the end, by first slice."""
        return tuple(sorted((*self.kept, *self.created), key=lambda one: one[1]))

    def instances_at(self, at: int) -> tuple[tuple[str, int], ...]:
        """Return what it has at a fleet instant, by first slice."""
        return self.instances if at >= self.ready_at else self.kept


def mig_device_name(gpu_id: str, instance: tuple[str, int]) -> str:
    """Return how a plan names an instance of a GPU."""
    profile, start = instance
    return f"{gpu_id}/{profile}@{start}"


def cut_gpu(order: MigOrder, gpu: Gpu, before: tuple[tuple[str, int], ...], at: int) -> Cut:
    """Return the cut that an order makes of a GPU's instances.

    Raises:
        BackendError: If the GPU is not in MIG mode, lacks an instance that is to be destroyed, or
            the instances cannot exist together.
    """
    table = find_table(gpu.model)
    if table is None or not gpu.mig:
        raise _refusal(f"GPU {gpu.index} of {order.node_name} is not in MIG mode")
    missing = sorted(set(order.destroy) - set(before))
    if missing:
        name, start = missing[0]
        raise _refusal(f"GPU {gpu.index} of {order.node_name} has no {name} at {start}")
    kept = tuple(one for one in before if one not in order.destroy)
    try:
        layout_of(table, (*kept, *order.create))
    except MigLayoutError as error:
        raise _refusal(f"GPU {gpu.index} of {order.node_name} cannot be cut so: {error}") from error
    return Cut(order.gpu_id, order.node_name, gpu.mig, kept, tuple(order.create), at + CUT_MS)


def _refusal(message: str) -> BackendError:
    return BackendError(Word.MIG_UNAVAILABLE, f"{LABEL} {message}")
