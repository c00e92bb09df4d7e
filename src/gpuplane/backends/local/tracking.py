"""All attempts of a home as last seen, so that a turn reads only what can still change.

A cache and nothing else: an empty tracker gives the same answers, more slowly. Blocking; called
off the event loop, by several threads at once.
"""

import threading
import uuid
from dataclasses import replace
from pathlib import Path

from gpuplane.backends.interface import ReplicaObservation
from gpuplane.backends.local.folders import AttemptFolder, list_attempts
from gpuplane.backends.local.observing import AttemptView, observe_attempt
from gpuplane.core.ids import AttemptId
from gpuplane.kit.clock import Clock


class AttemptTracker:
    """Looks at the attempt folders and numbers what changes."""

    def __init__(self, root: Path, boot_id: str, clock: Clock, max_report_bytes: int) -> None:
        self._root = root
        self._boot_id = boot_id
        self._clock = clock
        self._max_report_bytes = max_report_bytes
        self._lock = threading.Lock()
        self._over: dict[AttemptId, AttemptView] = {}
        self._life = uuid.uuid4().hex[:12]
        self._number = 0
        self._last: dict[tuple[AttemptId, int], tuple[int, ReplicaObservation]] = {}

    def look(self, folder: AttemptFolder) -> AttemptView | None:
        """Return what is seen of one attempt, None when nothing of it was ever started."""
        known = self._over.get(folder.attempt_id)
        if known is not None:
            return known
        view = observe_attempt(folder, self._clock.now_ms(), self._boot_id, self._max_report_bytes)
        if view is not None and view.is_over:
            self._over[folder.attempt_id] = view
        return view

    def look_at_all(self) -> list[ReplicaObservation]:
        """Return every replica of every attempt not yet forgotten."""
        found: list[ReplicaObservation] = []
        for folder in list_attempts(self._root):
            view = self.look(folder)
            if view is not None:
                found += view.replicas
        return found

    def changed_since(self, cursor: str) -> tuple[str, list[ReplicaObservation]]:
        """Return a new cursor and the replicas that changed since an older one, in that order."""
        with self._lock:
            seen = {(r.ref.attempt_id, r.rank): r for r in self.look_at_all()}
            for gone in self._last.keys() - seen.keys():
                del self._last[gone]
            for key, replica in seen.items():
                before = self._last.get(key)
                if before is None or _essence(before[1]) != _essence(replica):
                    self._number += 1
                    self._last[key] = (self._number, replica)
            after = self._position(cursor)
            changed = sorted(
                (entry for entry in self._last.values() if entry[0] > after),
                key=lambda entry: entry[0],
            )
            return f"{self._life}:{self._number}", [replica for _, replica in changed]

    def last_seen(self) -> list[ReplicaObservation]:
        """Return every replica as `changed_since` saw it last."""
        with self._lock:
            return [replica for _, replica in self._last.values()]

    def drop(self, attempt_id: AttemptId) -> None:
        """Look anew at an attempt that was thought over: its epoch changed, or it was forgotten."""
        self._over.pop(attempt_id, None)

    def _position(self, cursor: str) -> int:
        life, _, number = cursor.partition(":")
        return int(number) if life == self._life and number.isdigit() else 0


def _essence(replica: ReplicaObservation) -> ReplicaObservation:
    """Return an observation without what moves all the time."""
    return replace(replica, progress_ratio=None, cpu_ms=None, memory_peak_mib=None)
