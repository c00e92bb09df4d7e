"""What the parts of a supervisor may ask of the loop that owns them, as types.

Read by the type checker alone: nothing imports this at run time, for `typing` would take longer
to load than a supervisor takes to start.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from gpuplane.backends.local.supervisor.plan import Plan, ReplicaTask


class Ranked(Protocol):
    """One rank of the attempt, as far as others than its owner know it."""

    task: ReplicaTask
    rank: int
    env: dict[str, str]

    @property
    def is_running(self) -> bool: ...


class Watcher(Protocol):
    """Tells time and calls back when a descriptor is ready."""

    def now(self) -> float: ...

    def watch(self, handle: int, handler: Callable[[int], object], events: int = ...) -> None: ...

    def unwatch(self, handle: int) -> None: ...


class Owner(Watcher, Protocol):
    """Owns the plan, the replicas and the state record; `dirty` asks it to write that soon."""

    plan: Plan
    dirty: bool
    is_alone: bool

    @property
    def replicas(self) -> Sequence[Ranked]: ...

    def now_ms(self) -> int: ...

    def is_watched(self, handle: int) -> bool: ...

    def folder_of(self, replica: Ranked) -> str: ...

    def cgroup_of(self, replica: Ranked) -> str: ...
