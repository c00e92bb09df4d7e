"""What is seen of an attempt, read from its folder alone: the records, never memory.

That is how a control plane that was started again finds everything. Blocking; called off the
event loop.
"""

import contextlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpuplane.backends.interface import AttemptRef, Phase, ReplicaObservation
from gpuplane.backends.local.folders import AttemptFolder, read_json
from gpuplane.backends.local.reports import read_reports
from gpuplane.backends.local.supervisor import cgroup, records
from gpuplane.backends.local.sweeping import sweep
from gpuplane.core.reasons import Word

OLDEST_FORMAT = max(1, records.FORMAT - 1)


@dataclass(frozen=True, slots=True)
class AttemptView:
    """All replicas of one attempt, and whether that can still change."""

    replicas: tuple[ReplicaObservation, ...]
    is_over: bool


def observe_attempt(
    folder: AttemptFolder, now_ms: int, boot_id: str, max_report_bytes: int
) -> AttemptView | None:
    """Return what is seen of an attempt, or None when nothing of it was ever started."""
    fate = folder.fate()
    if fate is None:
        return _view_before_start(folder)
    if fate.get("fate") == records.NEVER:
        return _view_of_forbidden(folder, fate)
    if not OLDEST_FORMAT <= int(fate.get("format", 0)) <= records.FORMAT:
        return _view_of_foreign(folder, fate)
    # Asked before the record is read: a supervisor that ends in between has written its last.
    is_held = folder.is_held()
    state = read_json(folder.path / records.STATE)
    if state is not None and state.get("is_over"):
        return _view_of_state(folder, state, max_report_bytes)
    if is_held:
        if state is None:
            return AttemptView(_blank(folder, folder.ranks(), Phase.STARTING), is_over=False)
        return _view_of_state(folder, state, max_report_bytes)
    return _view_of_lost(folder, fate, state, now_ms, boot_id, max_report_bytes)


def _view_before_start(folder: AttemptFolder) -> AttemptView | None:
    if not folder.is_held():
        return None
    return AttemptView(_blank(folder, folder.ranks(), Phase.STARTING), is_over=False)


def _view_of_forbidden(folder: AttemptFolder, fate: dict[str, Any]) -> AttemptView:
    replicas = _blank(
        folder,
        folder.ranks(),
        Phase.EXITED,
        ended_at=_whole(fate.get("at")),
        reason=str(fate.get("reason") or Word.CANCELLED),
        message="was evicted before it started; it may never start",
    )
    return AttemptView(tuple(replace(each, forbids=True) for each in replicas), is_over=True)


def _view_of_foreign(folder: AttemptFolder, fate: dict[str, Any]) -> AttemptView:
    text = f"its records have format {fate.get('format')}, which this version does not read"
    replicas = _blank(folder, folder.ranks(), Phase.UNREACHABLE, message=text)
    return AttemptView(replicas, is_over=False)


def _view_of_state(
    folder: AttemptFolder, state: dict[str, Any], max_report_bytes: int
) -> AttemptView:
    ref = _ref(folder, state)
    replicas = tuple(
        _replica(folder, ref, record, max_report_bytes, str(state.get("cgroup") or ""))
        for record in state.get("replicas", ())
    )
    return AttemptView(replicas, is_over=bool(state.get("is_over")))


def _view_of_lost(
    folder: AttemptFolder,
    fate: dict[str, Any],
    state: dict[str, Any] | None,
    now_ms: int,
    boot_id: str,
    max_report_bytes: int,
) -> AttemptView:
    """Return the attempt of a dead supervisor: LOST once nothing of it can run any more."""
    rebooted = fate.get("boot_id") != boot_id
    left = [] if rebooted else sweep(folder, state or fate)
    ranks = folder.ranks()
    if left:
        text = f"its supervisor is gone and processes {left} do not end"
        return AttemptView(_blank(folder, ranks, Phase.UNREACHABLE, message=text), is_over=False)
    path = str(folder.path / records.LOST)
    with contextlib.suppress(OSError):
        records.create_once(path, {"format": records.FORMAT, "at": now_ms})
    lost = read_json(Path(path)) or {}
    ended_at = _whole(lost.get("at")) or now_ms
    text = "the machine was restarted" if rebooted else "its supervisor was killed"
    known = {int(record["rank"]): record for record in (state or {}).get("replicas", ())}
    ref = _ref(folder, fate)
    replicas = []
    for rank in ranks:
        record = known.get(rank, {"rank": rank, "phase": "starting"})
        if record["phase"] != Phase.EXITED:
            end = {"phase": "lost", "ended_at": ended_at, "message": text, "ready": None}
            record = {**record, **end, "reason": str(Word.SUPERVISOR_LOST)}
        replicas.append(_replica(folder, ref, record, max_report_bytes))
    return AttemptView(tuple(replicas), is_over=True)


def _replica(
    folder: AttemptFolder,
    ref: AttemptRef,
    record: dict[str, Any],
    max_report_bytes: int,
    limits: str = "",
) -> ReplicaObservation:
    rank = int(record["rank"])
    reports = read_reports(folder.replica(rank) / "report", max_report_bytes)
    port = _whole(record.get("port"))
    cpu_ms = _whole(record.get("cpu_ms"))
    if limits and record["phase"] in (Phase.RUNNING, Phase.STOPPING):
        cpu_ms = cgroup.cpu_ms(f"{limits}/{rank}") or cpu_ms
    message = "; ".join(filter(None, (str(record.get("message") or ""), *reports.complaints)))
    return ReplicaObservation(
        ref=ref,
        rank=rank,
        phase=Phase(record["phase"]),
        started_at=_whole(record.get("started_at")),
        ended_at=_whole(record.get("ended_at")),
        exit_code=_whole(record.get("exit_code")),
        signal=_whole(record.get("signal")),
        reason=str(record.get("reason") or ""),
        message=message,
        ready=record.get("ready"),
        port=port,
        url=f"http://127.0.0.1:{port}" if port else None,
        restart_count=int(record.get("restart_count") or 0),
        progress_ratio=reports.progress_ratio,
        checkpoint=reports.checkpoint,
        checkpoint_at=reports.checkpoint_at,
        outputs=reports.outputs,
        cpu_ms=cpu_ms,
        memory_peak_mib=_whole(record.get("memory_peak_mib")),
    )


def _blank(
    folder: AttemptFolder,
    ranks: list[int],
    phase: Phase,
    *,
    ended_at: int | None = None,
    reason: str = "",
    message: str = "",
) -> tuple[ReplicaObservation, ...]:
    ref = _ref(folder, {})
    return tuple(
        ReplicaObservation(ref, rank, phase, ended_at=ended_at, reason=reason, message=message)
        for rank in ranks
    )


def _ref(folder: AttemptFolder, record: dict[str, Any]) -> AttemptRef:
    return AttemptRef(folder.attempt_id, folder.epoch() or int(record.get("epoch") or 0))


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
