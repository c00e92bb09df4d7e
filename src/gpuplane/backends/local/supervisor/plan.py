"""The attempt as the supervisor gets it: plain values that travel through a pipe once.

The payload holds secret values, so it is never written to disk. It is `marshal` data: both ends
are the same interpreter at the same moment, and reading it costs no import.
"""

from __future__ import annotations

import marshal
import os

VERSION = 1
_HEADER_BYTES = 8


class ReplicaTask:
    """One rank: its environment (secrets included) and where it lies."""

    __slots__ = ("env", "folder", "rank")

    def __init__(self, rank: int, env: dict[str, str], folder: str) -> None:
        self.rank = rank
        self.env = env
        self.folder = folder


class Plan:
    """Everything a supervisor knows. Paths are absolute, durations in seconds, sizes in bytes."""

    __slots__ = (
        "artifacts",
        "attempt_id",
        "cgroup",
        "changes",
        "command",
        "cpu_milli",
        "epoch",
        "folder",
        "grace_s",
        "has_gpu_lock",
        "health",
        "max_artifact_bytes",
        "max_duration_s",
        "max_log_bytes",
        "max_workspace_bytes",
        "memory_mib",
        "mounts",
        "port",
        "replicas",
        "restart",
        "restart_delay_s",
        "restart_max_delay_s",
        "segment_bytes",
        "working_dir",
        "workspace",
    )

    def __init__(self, values: dict[str, object]) -> None:
        for name in self.__slots__:
            if name != "replicas":
                setattr(self, name, values[name])
        self.attempt_id: str
        self.epoch: int
        self.folder: str
        self.changes: str
        self.command: list[str]
        self.working_dir: str
        self.workspace: str | None
        self.mounts: list[tuple[str, str]]
        self.artifacts: list[str]
        self.port: int | None
        self.health: dict[str, float | int | str] | None
        self.restart: str
        self.restart_delay_s: float
        self.restart_max_delay_s: float
        self.grace_s: float
        self.has_gpu_lock: bool
        self.max_duration_s: float | None
        self.cgroup: str | None
        self.cpu_milli: int
        self.memory_mib: int
        self.segment_bytes: int
        self.max_log_bytes: int
        self.max_artifact_bytes: int
        self.max_workspace_bytes: int
        raw = values["replicas"]
        assert isinstance(raw, list)
        self.replicas = [ReplicaTask(rank, env, folder) for rank, env, folder in raw]


def pack(values: dict[str, object]) -> bytes:
    """Return the bytes that carry a payload; a prefix gives the length, so half is detected."""
    data = marshal.dumps({"version": VERSION, **values})
    return len(data).to_bytes(_HEADER_BYTES, "little") + data


def read_plan(handle: int) -> Plan | None:
    """Return the plan read from a pipe, or None when the writer died before it was complete."""
    data = b""
    while chunk := os.read(handle, 1 << 20):
        data += chunk
    size = int.from_bytes(data[:_HEADER_BYTES], "little")
    if len(data) < _HEADER_BYTES or len(data) != _HEADER_BYTES + size:
        return None
    values = marshal.loads(data[_HEADER_BYTES:])
    return Plan(values) if values.get("version") == VERSION else None
