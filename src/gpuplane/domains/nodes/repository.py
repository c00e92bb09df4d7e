"""Every query on the tables of nodes and GPUs."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import RowMapping, func, insert, select, update

from gpuplane.core.ids import ClusterId, GpuId, NodeId
from gpuplane.core.mig.profiles import decode_table, encode_table
from gpuplane.core.nodedetails import NodeDetails
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.db.types import table_of
from gpuplane.domains.nodes.rules import FACTS, GPU_FACTS, Gpu, Node
from gpuplane.domains.nodes.tables import GpuRow, NodeRow

_nodes = table_of(NodeRow)
_gpus = table_of(GpuRow)

CHUNK = 500
"""Ids per IN list: SQLite's oldest limit on variables is 999."""


def list_nodes(session: ReadSession, cluster_id: ClusterId | None = None) -> tuple[Node, ...]:
    """Return the nodes of a cluster (or of all) by name, each with its GPUs by index."""
    nodes, gpus = select(_nodes).order_by(_nodes.c.name), select(_gpus).order_by(_gpus.c.gpu_index)
    if cluster_id is not None:
        nodes = nodes.where(_nodes.c.cluster_id == cluster_id)
        gpus = gpus.where(_gpus.c.cluster_id == cluster_id)
    by_node: dict[UUID, list[Gpu]] = defaultdict(list)
    for row in session.rows(gpus):
        by_node[row["node_id"]].append(_gpu(row))
    return tuple(_node(row, by_node[row["id"]]) for row in session.rows(nodes))


def list_draining(session: ReadSession) -> tuple[Node, ...]:
    """Return nodes that are being drained, without their GPUs."""
    query = select(_nodes).where(_nodes.c.drain_started_at.is_not(None)).order_by(_nodes.c.name)
    return tuple(_node(row, []) for row in session.rows(query))


def list_cordoned(session: ReadSession, cluster_id: ClusterId) -> frozenset[str]:
    """Return the names of a cluster's nodes that are marked as cordoned."""
    query = select(_nodes.c.name).where(
        _nodes.c.cluster_id == cluster_id, _nodes.c.cordoned.is_(True)
    )
    return frozenset(row["name"] for row in session.rows(query))


def find_node(session: ReadSession, cluster_id: ClusterId, key: UUID | str) -> Node | None:
    """Return the node of an id or name within a cluster, or None."""
    column = _nodes.c.id if isinstance(key, UUID) else _nodes.c.name
    row = session.row(select(_nodes).where(column == key, _nodes.c.cluster_id == cluster_id))
    if row is None:
        return None
    gpus = session.rows(
        select(_gpus).where(_gpus.c.node_id == row["id"]).order_by(_gpus.c.gpu_index)
    )
    return _node(row, [_gpu(gpu) for gpu in gpus])


def lock_node(session: WriteSession, node_id: NodeId) -> None:
    """Let no other unit change a node before this one commits.

    On SQLite there is one writer. On PostgreSQL what was read before the lock may be old by now:
    read the node again.
    """
    if session.dialect == "postgresql":
        session.rows(select(_nodes.c.id).where(_nodes.c.id == node_id).with_for_update())


def insert_nodes(session: WriteSession, nodes: Sequence[Node]) -> None:
    """Store new nodes, without their GPUs."""
    session.execute(
        insert(_nodes),
        [
            {
                **_facts(node, FACTS),
                "id": node.id,
                "cluster_id": node.cluster_id,
                "name": node.name,
                "cordoned": node.cordoned,
                "created_at": node.created_at,
                "updated_at": node.updated_at,
                "status_sync_at": node.status_sync_at,
                "version": node.version,
            }
            for node in nodes
        ],
    )


def insert_gpus(session: WriteSession, gpus: Sequence[Gpu], now: int) -> None:
    """Store GPUs that are new on their node; one that was known elsewhere has moved there."""
    moved = models_of(session, [gpu.gpu_id for gpu in gpus])
    fresh = [_gpu_values(gpu, now) for gpu in gpus if gpu.gpu_id not in moved]
    if fresh:
        session.execute(insert(_gpus), fresh)
    update_gpus(session, [gpu for gpu in gpus if gpu.gpu_id in moved], now)


def update_facts(session: WriteSession, nodes: Iterable[Node], now: int) -> None:
    """Store what was seen of nodes; the operator's marks stay as they are."""
    for node in nodes:
        session.execute(
            update(_nodes)
            .where(_nodes.c.id == node.id)
            .values(
                **_facts(node, FACTS),
                updated_at=now,
                status_sync_at=now,
                version=_nodes.c.version + 1,
            )
        )


def touch_synced(session: WriteSession, cluster_id: ClusterId, now: int) -> None:
    """Store when the nodes that are there were last compared."""
    session.execute(
        update(_nodes)
        .where(_nodes.c.cluster_id == cluster_id, _nodes.c.present.is_(True))
        .values(status_sync_at=now)
    )


def update_gpus(session: WriteSession, gpus: Iterable[Gpu], now: int) -> None:
    """Store what was seen of GPUs."""
    for gpu in gpus:
        values = _gpu_values(gpu, now)
        session.execute(update(_gpus).where(_gpus.c.gpu_id == gpu.gpu_id).values(**values))


def update_used(
    session: WriteSession, cluster_id: ClusterId, used: Mapping[str, int], now: int
) -> None:
    """Store how much of each device of a cluster is given away; the others are not told of."""
    ours = (_gpus.c.cluster_id == cluster_id, _gpus.c.used_at.is_not(None))
    session.execute(update(_gpus).where(*ours).values(used_percent=None, used_at=None))
    by_percent: dict[int, list[str]] = defaultdict(list)
    for gpu_id, percent in used.items():
        by_percent[percent].append(gpu_id)
    for percent, gpu_ids in sorted(by_percent.items()):
        for start in range(0, len(gpu_ids), CHUNK):
            chunk = gpu_ids[start : start + CHUNK]
            session.execute(
                update(_gpus)
                .where(_gpus.c.cluster_id == cluster_id, _gpus.c.gpu_id.in_(chunk))
                .values(used_percent=percent, used_at=now)
            )


def update_marks(
    session: WriteSession, node_id: NodeId, version: int, now: int, **values: Any
) -> bool:
    """Set the operator's marks if the node is as it was read; False when it is stale."""
    touched = session.execute(
        update(_nodes)
        .where(_nodes.c.id == node_id, _nodes.c.version == version)
        .values(version=version + 1, updated_at=now, **values)
    )
    return touched == 1


def find_gpu_owner(session: ReadSession, gpu_id: GpuId) -> ClusterId | None:
    """Return the cluster a GPU is registered with, or None."""
    found = session.scalar(select(_gpus.c.cluster_id).where(_gpus.c.gpu_id == gpu_id))
    return None if found is None else ClusterId(found)


def models_of(session: ReadSession, gpu_ids: Collection[str]) -> dict[str, str]:
    """Return the model of each GPU that is known."""
    wanted = sorted(gpu_ids)
    found: dict[str, str] = {}
    for start in range(0, len(wanted), CHUNK):
        query = select(_gpus.c.gpu_id, _gpus.c.model).where(
            _gpus.c.gpu_id.in_(wanted[start : start + CHUNK])
        )
        found.update({row["gpu_id"]: row["model"] for row in session.rows(query)})
    return found


def owners_of(
    session: ReadSession, gpu_ids: Collection[str]
) -> dict[GpuId, tuple[ClusterId, bool]]:
    """Return the cluster of each GPU that is known, and whether it is present there."""
    wanted = sorted(gpu_ids)
    found: dict[GpuId, tuple[ClusterId, bool]] = {}
    for start in range(0, len(wanted), CHUNK):
        query = select(_gpus.c.gpu_id, _gpus.c.cluster_id, _gpus.c.present).where(
            _gpus.c.gpu_id.in_(wanted[start : start + CHUNK])
        )
        for row in session.rows(query):
            found[GpuId(row["gpu_id"])] = (ClusterId(row["cluster_id"]), row["present"])
    return found


def count_models(session: ReadSession, cluster_ids: Sequence[ClusterId]) -> dict[str, int]:
    """Return GPUs present per model over some clusters."""
    query = (
        select(_gpus.c.model, func.count())
        .where(_gpus.c.cluster_id.in_(cluster_ids), _gpus.c.present)
        .group_by(_gpus.c.model)
    )
    return {row["model"]: int(row["count"]) for row in session.rows(query)}


def largest_node(session: ReadSession, cluster_id: ClusterId) -> tuple[int, int]:
    """Return the most milli-CPU and the most MiB of memory that a node of a cluster has."""
    query = select(
        func.max(_nodes.c.cpu_milli).label("cpu"), func.max(_nodes.c.memory_mib).label("memory")
    ).where(_nodes.c.cluster_id == cluster_id, _nodes.c.present)
    row = session.row(query)
    return (0, 0) if row is None else (int(row["cpu"] or 0), int(row["memory"] or 0))


def largest_gpus(session: ReadSession, cluster_id: ClusterId) -> dict[str, int]:
    """Return the most MiB of memory that a GPU of each model on a cluster has."""
    query = (
        select(_gpus.c.model, func.max(_gpus.c.memory_mib).label("memory"))
        .where(_gpus.c.cluster_id == cluster_id, _gpus.c.present)
        .group_by(_gpus.c.model)
    )
    return {row["model"]: int(row["memory"]) for row in session.rows(query)}


def _facts(value: object, names: Sequence[str]) -> dict[str, Any]:
    facts = {name: getattr(value, name) for name in names}
    if "taints" in facts:
        facts["taints"] = [list(taint) for taint in facts["taints"]]
    if "details" in facts:
        facts.update(_detail_values(facts.pop("details")))
    if "mig_instances" in facts:
        facts["mig_instances"] = [list(instance) for instance in facts["mig_instances"]]
    if facts.get("mig_table") is not None:
        facts["mig_table"] = encode_table(facts["mig_table"])
    return facts


_RENAMED = {"hardware": "hardware_info", "kernel": "kernel_info", "driver": "driver_info"}
"""Fields of details whose columns have the names of the cluster design document."""
_DETAILS = tuple((name, _RENAMED.get(name, name)) for name in NodeDetails.__slots__)


def _detail_values(details: NodeDetails) -> dict[str, Any]:
    values = {column: getattr(details, name) for name, column in _DETAILS}
    values["conditions"] = [list(condition) for condition in details.conditions]
    return values


def _gpu_values(gpu: Gpu, now: int) -> dict[str, Any]:
    return {
        **_facts(gpu, GPU_FACTS),
        "gpu_id": gpu.gpu_id,
        "node_id": gpu.node_id,
        "cluster_id": gpu.cluster_id,
        "updated_at": now,
    }


def _node(row: RowMapping, gpus: Sequence[Gpu]) -> Node:
    values = dict(row)
    values["taints"] = tuple((key, value, effect) for key, value, effect in values["taints"])
    known = {name: values.pop(column) for name, column in _DETAILS}
    known["conditions"] = tuple(tuple(condition) for condition in known["conditions"])
    return Node(**values, gpus=tuple(gpus), details=NodeDetails(**known))


def _gpu(row: RowMapping) -> Gpu:
    values = dict(row)
    del values["updated_at"]
    values["mig_instances"] = tuple((name, start) for name, start in values["mig_instances"])
    if values["mig_table"] is not None:
        values["mig_table"] = decode_table(values["model"], values["mig_table"])
    return Gpu(**values)
