"""Sentences for people: why a workload waits, where it goes and why there.

Owns the words of scheduling and nothing else; every sentence follows from values given.
"""

from collections.abc import Sequence

from gpuplane.core.amounts import WHOLE_GPU_MILLI
from gpuplane.core.fleet.columns import Fleet, Take, bits_of
from gpuplane.core.reasons import Reason, Word
from gpuplane.core.scheduling.needs import DATA_AT_HAND, DATA_LABEL_PREFIX
from gpuplane.core.scheduling.network import Level
from gpuplane.core.scheduling.placement import Spots, needed_replicas
from gpuplane.core.scheduling.workload import Workload
from gpuplane.core.topology.matrix import LinkPreference
from gpuplane.core.workloads import ReplicaRequest, ResourceRequest

_SENTENCES: dict[Word, tuple[str, str]] = {
    Word.NOT_READY: ("no node is ready", "Wait for a node to come back."),
    Word.CORDONED: ("the nodes left are cordoned", "Uncordon a node, or wait."),
    Word.MAINTENANCE: (
        "on the nodes left a maintenance starts before it would end",
        "Shorten the estimated duration, or wait for the maintenance to pass.",
    ),
    Word.UNTOLERATED_TAINT: (
        "the nodes left have taints that it does not tolerate",
        "Add a toleration.",
    ),
    Word.SELECTOR: ("no node left carries the labels of its selector", "Change the selector."),
    Word.GPU_MODEL: ("no node left has the GPU model", "Ask for another model, or for any."),
    Word.GPU_MEMORY: ("no GPU left has that much memory", "Ask for less GPU memory."),
    Word.GPU_ARCHITECTURE: (
        "no GPU left has the architecture",
        "Ask for another architecture, or for any.",
    ),
    Word.RDMA: ("no node left is on the RDMA fabric", "Ask for another fabric, or for none."),
    Word.NODE_TOO_SMALL: (
        "no node left is large enough even when it is empty",
        (
            "Ask for less per replica, or use more replicas; GPUs that are down, or that pods of "
            "others have, do not count (gpuplane fleet)."
        ),
    ),
    Word.MIG_UNAVAILABLE: (
        "no free instance of the MIG profile is left",
        "Wait, ask for another profile, or have a GPU partitioned.",
    ),
    Word.CPU: ("the nodes left have too little free CPU", "Wait, or ask for less CPU."),
    Word.MEMORY: ("the nodes left have too little free memory", "Wait, or ask for less memory."),
    Word.EPHEMERAL_STORAGE: (
        "the nodes left have too little free ephemeral storage",
        "Wait, or ask for less ephemeral storage.",
    ),
    Word.GPU_COUNT: ("the nodes left have too few GPUs free", "Wait, or ask for fewer GPUs."),
    Word.TOPOLOGY: (
        "no node left has free GPUs joined as required",
        "Make the link preference preferred instead of required, or wait.",
    ),
    Word.AFFINITY: (
        "the nodes left are ruled out by replicas that it must be near to or apart from",
        "Wait, or loosen the affinity or the spreading.",
    ),
    Word.RESERVED: ("what is free is reserved for others", "Wait, or make a reservation."),
    Word.NETWORK: (
        "no rack or block that it may use has room for all of it",
        "Wait, or make the network level preferred instead of required.",
    ),
    Word.GANG: ("not all replicas fit at once", "Wait, or lower the minimum of replicas."),
    Word.BEHIND_HEAD: (
        "what is free is kept for work that stands before it",
        "Wait, or state a duration that ends before that work can start.",
    ),
    Word.QUOTA_EXCEEDED: (
        "the flavors with quota left have no node for it",
        "Wait, or ask for a model that the queue has quota for.",
    ),
}


def describe_request(resources: ResourceRequest) -> str:
    """Return what one replica asks for, as people say it."""
    if resources.mig_profile is not None:
        return f"a MIG instance {resources.mig_profile}"
    model = f" of {resources.gpu_model}" if resources.gpu_model else ""
    if resources.gpu_count == 0:
        return f"{resources.cpu_milli / 1000:g} CPU and {resources.memory_mib} MiB"
    if resources.gpu_milli < WHOLE_GPU_MILLI:
        return f"{resources.gpu_milli / 10:g} % of a GPU{model}"
    plural = "" if resources.gpu_count == 1 else "s"
    return f"{resources.gpu_count} GPU{plural}{model}"


def describe_refusal(
    workload: Workload, word: Word, counts: Sequence[tuple[Word, int]], nodes: int, placeable: int
) -> Reason:
    """Return the dominant reason as a value.

    Args:
        workload: What is refused.
        word: The dominant word.
        counts: Nodes refused per filter.
        nodes: Nodes looked at in all.
        placeable: Replicas that would fit now in one cluster.
    """
    what, fix = _SENTENCES[word]
    asked = describe_request(workload.resources)
    refused = dict(counts).get(word)
    tail = f" ({refused} of {nodes} node{'' if nodes == 1 else 's'})" if refused else ""
    if nodes == 0:
        return Reason(Word.NO_CLUSTER, "There is no node in the clusters it may use.", "Add one.")
    if workload.replicas.count > 1 and word in (Word.GANG, Word.QUOTA_EXCEEDED):
        many = f"Needs {_describe_replicas(workload.replicas)} of {asked} at once"
        if word is Word.GANG:
            return Reason(word, f"{many}; {placeable} fit now.", _fix_of_gang(workload.replicas))
        return Reason(word, f"{many}; no flavor with quota left has room for that many.", fix)
    return Reason(word, f"Needs {asked}; {what}{tail}.", fix)


def describe_cut(reason: Reason, nodes: int) -> Reason:
    """Return a refusal of nodes as too small with what is true of those whose GPUs are cut."""
    which = "1 node" if nodes == 1 else f"{nodes} nodes"
    return Reason(
        reason.word,
        f"{reason.sentence} On {which} GPUs are cut by MIG and cannot be had whole.",
        f"{reason.fix.removesuffix('.')}, or have the MIG mode of GPUs there switched off.",
    )


def describe_late_neighbour(workload: Workload) -> Reason:
    """Return why work waits that is to be near a job which got its place after its turn."""
    asked = describe_request(workload.resources)
    return Reason(
        Word.AFFINITY,
        f"Needs {asked} near a job that got its own place only after its turn; it waits for that.",
        "Wait: it is looked at again once the job that it is to be near is placed.",
    )


def _describe_replicas(replicas: ReplicaRequest) -> str:
    """Return how many replicas have to start together."""
    count, needed = replicas.count, needed_replicas(replicas)
    return f"{count} replicas" if needed == count else f"at least {needed} of {count} replicas"


def _fix_of_gang(replicas: ReplicaRequest) -> str:
    """Return what its owner can change; a gang whose minimum is not above 1 needs all."""
    least = 2 if replicas.gang else 1
    if replicas.minimum > least:
        return "Wait, or lower the minimum of replicas."
    if replicas.gang and replicas.minimum < least < replicas.count:
        return "Wait, ask for fewer replicas, or state a minimum of at least 2."
    return "Wait, or ask for less per replica."


def explain_placement(
    workload: Workload, fleet: Fleet, spots: Spots, policy: str, notes: Sequence[str]
) -> tuple[str, ...]:
    """Return why it goes there: order, nodes, devices."""
    first = spots.takes[0]
    name = fleet.nodes[first.node].name
    lines = [*notes]
    if len(spots.takes) == 1:
        lines.append(f"Node {name} is the best by policy {policy}: {spots.score} of 100.")
    else:
        nodes = len({take.node for take in spots.takes})
        inside = {
            Level.NODE: f"node {name}",
            Level.CLIQUE: f"{nodes} nodes in NVLink clique {fleet.nodes[first.node].clique}",
            Level.RACK: f"{nodes} nodes in rack {fleet.nodes[first.node].rack}",
            Level.BLOCK: f"{nodes} nodes in block {fleet.nodes[first.node].block}",
            Level.CLUSTER: f"{nodes} nodes across the cluster",
        }[spots.level if nodes > 1 else Level.NODE]
        lines.append(
            f"{len(spots.takes)} replicas on {inside}, {spots.score} of 100 by policy {policy}."
        )
    links = workload.placement.links
    if first.gpu_mask and links is not LinkPreference.NONE:
        gpus = ", ".join(str(bit) for bit in bits_of(first.gpu_mask))
        how = "required" if workload.placement.links_required else "preferred"
        lines.append(f"GPUs {gpus}: the best free set for {links.value} ({how}).")
    names = dict.fromkeys(workload.placement.data)
    if names:
        labels = fleet.nodes[first.node].labels
        there = [name for name in names if labels.get(DATA_LABEL_PREFIX + name) == DATA_AT_HAND]
        lines.append(f"{len(there)} of {len(names)} data sets are at hand on {name}.")
    if workload.reservation_id is not None and _is_reserved(workload, fleet, first):
        lines.append("It runs on GPUs of its reservation.")
    return tuple(lines)


def _is_reserved(workload: Workload, fleet: Fleet, take: Take) -> bool:
    held = take.gpu_mask if take.mig is None else 1 << take.mig[0]
    return workload.reservation_id in fleet.reservations and any(
        fleet.reservations[place] == workload.reservation_id
        for gpu in bits_of(held)
        if (place := int(fleet.reserved[gpu, take.node])) >= 0
    )
