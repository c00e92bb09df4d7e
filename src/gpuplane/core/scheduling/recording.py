"""What a decision was made from, as bytes: kept, sent, and decided on again to the same bytes.

Owns the written form of a snapshot with its policy, instant and seed. Fleets are written as facts
and what is free of them, quotas as declarations and what is used: both are built anew when read.
"""

import json
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from gpuplane.core.amounts import WHOLE_GPU_MILLI
from gpuplane.core.fleet.columns import Fleet, Take
from gpuplane.core.fleet.facts import NodeFacts
from gpuplane.core.ids import ClusterId
from gpuplane.core.quota.specs import (
    AdmissionMode,
    ClusterQueueSpec,
    CohortSpec,
    FlavorResource,
    LocalQueueSpec,
)
from gpuplane.core.quota.tree import QuotaTree
from gpuplane.core.scheduling.codec import Codec
from gpuplane.core.scheduling.cycle import decide
from gpuplane.core.scheduling.decisions import Decision
from gpuplane.core.scheduling.policy import Policy, Snapshot
from gpuplane.core.topology.matrix import LinkMatrix

FORMAT = 1
_SHOWN = 40
"""The number of this written form; a reader refuses what it does not know."""


class RecordingFormatError(ValueError):
    """Bytes are no recording, or one of another format; the text says what was found."""


class Recording(NamedTuple):
    """Everything that one decision depends on."""

    snapshot: Snapshot
    policy: Policy
    now: int
    seed: int

    def replay(self) -> Decision:
        """Decide again."""
        return decide(self.snapshot, self.policy, self.now, self.seed)


@dataclass(frozen=True, slots=True)
class _WrittenFleet:
    """A fleet's facts, and by node what is taken there.

    Args:
        taken: (CPU, memory, ephemeral storage) by node.
        gpus: (node, GPU, milli) of every GPU of which something is taken.
        instances: (node, GPU, profile, first slice) of every MIG instance that is taken.
    """

    cluster_id: ClusterId
    nodes: tuple[NodeFacts, ...]
    taken: tuple[tuple[int, int, int], ...]
    gpus: tuple[tuple[int, int, int], ...]
    instances: tuple[tuple[int, int, str, int], ...]


@dataclass(frozen=True, slots=True)
class _WrittenQuotas:
    mode: AdmissionMode
    queues: tuple[ClusterQueueSpec, ...]
    cohorts: tuple[CohortSpec, ...]
    doors: tuple[LocalQueueSpec, ...]
    usage: tuple[tuple[str, dict[FlavorResource, int]], ...]
    door_usage: tuple[tuple[str, dict[FlavorResource, int]], ...]


def encode_recording(recording: Recording) -> bytes:
    """Return a recording as JSON: equal recordings give equal bytes.

    The order of workloads, fleets and nodes is part of the bytes; no decision depends on it.
    """
    codec = Codec(shared=(LinkMatrix,))
    body = {
        each.name: codec.encode(getattr(recording.snapshot, each.name))
        for each in fields(Snapshot)
        if each.name not in ("fleets", "quotas")
    }
    body["fleets"] = [codec.encode(_write_fleet(fleet)) for fleet in recording.snapshot.fleets]
    body["quotas"] = codec.encode(_write_quotas(recording.snapshot.quotas))
    written = {
        "format": FORMAT,
        "now": recording.now,
        "seed": recording.seed,
        "policy": codec.encode(recording.policy),
        "snapshot": body,
        "shared": codec.pool,
    }
    text = json.dumps(written, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode()


def decode_recording(data: bytes) -> Recording:
    """Return the recording that bytes stand for.

    Raises:
        RecordingFormatError: If they are no recording of this format.
    """
    written = _read_fields(data)
    field = "shared"
    try:
        codec = Codec(shared=(LinkMatrix,), pool=written[field])
        codec.load_pool({LinkMatrix.__name__: LinkMatrix})
        field = "snapshot"
        snapshot = _read_snapshot(codec, written[field])
        field = "policy"
        policy = codec.decode(Policy, written[field])
        field = "now"
        now = int(written[field])
        field = "seed"
        return Recording(snapshot, policy, now, int(written[field]))
    except KeyError as error:
        raise _no_recording(f"field {field}: {error.args[0]!r} is missing or unknown") from error
    except (AttributeError, TypeError, IndexError, ValueError) as error:
        raise _no_recording(f"field {field}: it is not as it is written ({error})") from error


def _no_recording(found: str) -> RecordingFormatError:
    return RecordingFormatError(f"this is no recording of a decision: {found}.")


def _read_fields(data: bytes) -> dict[str, Any]:
    """Return the outermost fields, all of them there and of this format."""
    try:
        written = json.loads(data)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise _no_recording(f"{place}: {error.msg}; expected JSON") from error
    except (UnicodeDecodeError, RecursionError) as error:
        raise _no_recording("line 1 is no text in UTF-8; expected JSON") from error
    if not isinstance(written, dict):
        raise _no_recording("line 1 is JSON, but expected was an object with the field format")
    for name in ("format", "shared", "snapshot", "policy", "now", "seed"):
        if name not in written:
            raise _no_recording(f"the field {name} is missing; expected was a recorded input")
        if name == "format" and written[name] != FORMAT:
            found = repr(written[name])[:_SHOWN]
            raise _no_recording(f"field format: {found} stands there; expected {FORMAT}")
    return written


def _read_snapshot(codec: Codec, body: dict[str, Any]) -> Snapshot:
    unknown = sorted(body.keys() - {each.name for each in fields(Snapshot)})
    if unknown:
        raise ValueError(f"a snapshot has no {', '.join(unknown)}")
    plain = codec.decode_fields(
        Snapshot, {name: body[name] for name in body if name not in ("fleets", "quotas")}
    )
    fleets = tuple(_read_fleet(codec.decode(_WrittenFleet, each)) for each in body["fleets"])
    quotas = _read_quotas(codec.decode(_WrittenQuotas, body["quotas"]))
    return Snapshot(**plain, fleets=fleets, quotas=quotas)


def _write_fleet(fleet: Fleet) -> _WrittenFleet:
    totals = zip(
        (fleet.cpu_total - fleet.cpu_free).tolist(),
        (fleet.memory_total - fleet.memory_free).tolist(),
        (fleet.ephemeral_total - fleet.ephemeral_free).tolist(),
        strict=True,
    )
    gpus = []
    for place in range(len(fleet)):
        for gpu in range(fleet.gpu_count_max):
            if fleet.usable_mask[place] >> gpu & 1:
                left = int(fleet.gpu_free_milli[gpu, place])
                if left < WHOLE_GPU_MILLI:
                    gpus.append((place, gpu, WHOLE_GPU_MILLI - left))
    return _WrittenFleet(
        fleet.cluster_id, fleet.nodes, tuple(totals), tuple(gpus), tuple(_taken_instances(fleet))
    )


def _taken_instances(fleet: Fleet) -> list[tuple[int, int, str, int]]:
    return [
        (place, gpu.index, slot.profile, slot.start)
        for place, node in enumerate(fleet.nodes)
        for gpu in node.gpus
        if gpu.mig_enabled and gpu.healthy
        for slot in gpu.mig_instances
        if not fleet.mig_free[slot.profile][gpu.index, place] >> slot.start & 1
    ]


def _read_fleet(written: _WrittenFleet) -> Fleet:
    fleet = Fleet(written.cluster_id, written.nodes)
    for place, (cpu, memory, ephemeral) in enumerate(written.taken):
        if cpu or memory or ephemeral:
            fleet.allocate(Take(place, 0, 0, cpu, memory, ephemeral))
    for place, gpu, milli in written.gpus:
        fleet.allocate(Take(place, 1 << gpu, milli, 0, 0, 0))
    for place, gpu, profile, start in written.instances:
        fleet.allocate(Take(place, 0, 0, 0, 0, 0, (gpu, profile, start)))
    fleet.settle()
    return fleet


def _write_quotas(tree: QuotaTree) -> _WrittenQuotas:
    mode, queues, cohorts, doors = tree.declared
    return _WrittenQuotas(
        mode,
        queues,
        cohorts,
        doors,
        tuple((each.name, tree.usage_of(each.name)) for each in queues),
        tuple((each.key, tree.local_usage_of(each.key)) for each in doors),
    )


def _read_quotas(written: _WrittenQuotas) -> QuotaTree:
    return QuotaTree(
        written.queues,
        written.cohorts,
        written.doors,
        usage=dict(written.usage),
        local_usage=dict(written.door_usage),
        mode=written.mode,
    )
