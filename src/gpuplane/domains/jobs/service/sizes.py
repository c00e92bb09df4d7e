"""Refuses what no node there is could ever give one replica: CPU, memory, memory of a GPU."""

from collections.abc import Sequence

from gpuplane.core.amounts import MIB_PER_GIB
from gpuplane.core.workloads import JobSpec
from gpuplane.domains.clusters.service import Cluster
from gpuplane.domains.jobs.errors import BadJob
from gpuplane.domains.jobs.service.lookups import Lookups
from gpuplane.domains.nodes import service as nodes


def require_room(lookups: Lookups, spec: JobSpec, candidates: Sequence[Cluster]) -> None:
    """Raise unless some node of the clusters is large enough when nothing runs on it.

    A cluster of which no node was seen yet is given the benefit of the doubt.

    Raises:
        BadJob: Names the field, the largest there is, and what to ask at most.
    """
    where = ", ".join(cluster.name for cluster in candidates)
    largest = [lookups.largest_node(cluster.id) for cluster in candidates]
    if (0, 0) not in largest:
        cpu_milli = max(each[0] for each in largest)
        memory_mib = max(each[1] for each in largest)
        if spec.resources.cpu_milli > cpu_milli:
            raise _too_much(
                "cpu_cores", f"No node of {where} has", spec.resources.cpu_milli / 1000,
                cpu_milli / 1000, "cores",
            )  # fmt: skip
        if spec.resources.memory_mib > memory_mib:
            raise _too_much(
                "memory_gb", f"No node of {where} has", spec.resources.memory_mib / MIB_PER_GIB,
                memory_mib / MIB_PER_GIB, "GiB of memory",
            )  # fmt: skip
    _require_gpu_memory(lookups, spec, candidates, where)


def _require_gpu_memory(
    lookups: Lookups, spec: JobSpec, candidates: Sequence[Cluster], where: str
) -> None:
    asked = spec.resources.gpu_memory_mib
    if asked is None:
        return
    model = spec.resources.gpu_model
    found = [
        memory_mib
        for cluster in candidates
        for name, memory_mib in nodes.largest_gpus(lookups.session, cluster.id).items()
        if model in (None, name)
    ]
    if found and asked > max(found):
        raise _too_much(
            "resources.gpu_memory_gb", f"No {model or 'GPU'} of {where} has", asked / MIB_PER_GIB,
            max(found) / MIB_PER_GIB, "GiB of memory",
        )  # fmt: skip


def _too_much(field: str, who: str, asked: float, largest: float, unit: str) -> BadJob:
    most = int(largest * 100) / 100  # rounded down: what is named must be there
    return BadJob(
        f"{who} {asked:g} {unit}; the largest has {most:g}.",
        field=field,
        fix=f"Ask at most {most:g} a replica, and more replicas for more.",
    )
