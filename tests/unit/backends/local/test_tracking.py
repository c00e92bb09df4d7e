from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpuplane.backends.interface import Phase
from gpuplane.backends.local.folders import AttemptFolder, clean_up
from gpuplane.backends.local.supervisor import records
from gpuplane.backends.local.tracking import AttemptTracker
from gpuplane.core.reasons import Word
from tests.contract.builders import a_ref
from tests.unit.backends.local.test_gpus import FakeClock

BOOT = "this-boot"


@pytest.fixture
def tracker(tmp_path: Path) -> AttemptTracker:
    for name in ("attempts", "changes"):
        (tmp_path / name).mkdir()
    return AttemptTracker(tmp_path, BOOT, FakeClock(), 1000)


def an_attempt(root: Path, phase: Phase = Phase.EXITED, **fields: Any) -> AttemptFolder:
    """Return the folder of an attempt with one rank, as a supervisor would leave it."""
    ref = a_ref()
    folder = AttemptFolder(root, ref.attempt_id)
    folder.accept(ref)
    head = {"format": records.FORMAT, "epoch": 1, "boot_id": BOOT, "ranks": [0]}
    fate = {**head, "fate": records.START}
    records.write_record(str(folder.path / records.FATE), fate)
    replica = {"rank": 0, "phase": phase.value, "reason": Word.COMPLETED.value, **fields}
    state = {**head, "is_over": phase is Phase.EXITED, "replicas": [replica]}
    records.write_record(str(folder.path / records.STATE), state)
    return folder


def test_every_attempt_is_new_to_an_empty_cursor(tracker: AttemptTracker, tmp_path: Path) -> None:
    first, second = an_attempt(tmp_path), an_attempt(tmp_path)
    _, replicas = tracker.changed_since("")
    assert [r.ref.attempt_id for r in replicas] == [first.attempt_id, second.attempt_id]


def test_only_what_changed_is_told(tracker: AttemptTracker, tmp_path: Path) -> None:
    an_attempt(tmp_path)
    cursor, _ = tracker.changed_since("")
    assert tracker.changed_since(cursor) == (cursor, [])
    added = an_attempt(tmp_path)
    later, replicas = tracker.changed_since(cursor)
    assert [r.ref.attempt_id for r in replicas] == [added.attempt_id]
    assert tracker.changed_since(later)[1] == []
    assert len(tracker.changed_since(cursor)[1]) == 1


def test_a_cursor_of_another_life_gets_everything(tracker: AttemptTracker, tmp_path: Path) -> None:
    an_attempt(tmp_path)
    cursor, _ = tracker.changed_since("")
    reopened = AttemptTracker(tmp_path, BOOT, FakeClock(), 1000)
    assert len(reopened.changed_since(cursor)[1]) == 1
    assert len(reopened.changed_since("nonsense")[1]) == 1


def test_progress_alone_is_no_change(tracker: AttemptTracker, tmp_path: Path) -> None:
    folder = an_attempt(tmp_path, Phase.RUNNING)
    handle = records.take_lock(str(folder.path / records.LOCK))
    assert handle is not None
    cursor, [replica] = tracker.changed_since("")
    assert replica.phase is Phase.RUNNING
    report = folder.replica(0) / "report"
    report.mkdir(parents=True)
    (report / "progress").write_text("0.5\n")
    assert tracker.changed_since(cursor)[1] == []
    (report / "checkpoints").write_text("/c/1\n")
    [changed] = tracker.changed_since(cursor)[1]
    assert (changed.checkpoint, changed.progress_ratio) == ("/c/1", 0.5)


def test_a_forgotten_attempt_is_gone_from_all(tracker: AttemptTracker, tmp_path: Path) -> None:
    folder = an_attempt(tmp_path)
    tracker.look_at_all()
    folder.forget()
    tracker.drop(folder.attempt_id)
    assert tracker.look_at_all() == []
    assert folder.was_forgotten()
    assert not folder.exists()


def test_records_of_a_later_version_are_not_guessed_at(
    tracker: AttemptTracker, tmp_path: Path
) -> None:
    folder = an_attempt(tmp_path)
    fate = folder.fate()
    assert fate is not None
    records.write_record(str(folder.path / records.FATE), {**fate, "format": records.FORMAT + 1})
    [replica] = tracker.look_at_all()
    assert replica.phase is Phase.UNREACHABLE
    assert "format 2" in replica.message


def test_an_attempt_of_another_boot_is_lost(tracker: AttemptTracker, tmp_path: Path) -> None:
    folder = an_attempt(tmp_path, Phase.RUNNING, started_at=5)
    fate = folder.fate()
    assert fate is not None
    records.write_record(str(folder.path / records.FATE), {**fate, "boot_id": "before"})
    [replica] = tracker.look_at_all()
    assert (replica.phase, replica.reason) == (Phase.LOST, Word.SUPERVISOR_LOST)
    assert (replica.started_at, replica.ended_at) == (5, 1_000_000)


def test_a_folder_in_which_nothing_was_started_is_not_seen(
    tracker: AttemptTracker, tmp_path: Path
) -> None:
    AttemptFolder(tmp_path, a_ref().attempt_id).make()
    (tmp_path / "attempts" / "no-id").mkdir()
    assert tracker.look_at_all() == []


def test_old_ids_and_interrupted_removals_are_cleaned_up(tmp_path: Path) -> None:
    (tmp_path / "changes").mkdir()
    folder = an_attempt(tmp_path)
    folder.forget()
    (tmp_path / "trash" / "left").mkdir(parents=True)
    now_s = (tmp_path / "forgotten" / str(folder.attempt_id)).stat().st_mtime
    clean_up(tmp_path, 100.0, now_s + 50)
    assert folder.was_forgotten()
    assert not (tmp_path / "trash").exists()
    clean_up(tmp_path, 100.0, now_s + 101)
    assert not folder.was_forgotten()


def test_to_ask_again_for_an_end_never_gives_more_time(tmp_path: Path) -> None:
    (tmp_path / "changes").mkdir()
    folder = an_attempt(tmp_path)
    stop = folder.path / records.STOP
    assert folder.ask_to_stop(30.0, "Preempted", now_ms=1_000) == 0.0
    assert folder.ask_to_stop(60.0, "Cancelled", now_ms=2_000) < 0
    assert stop.read_text() == "30000 31000 Preempted\n"
    assert folder.ask_to_stop(5.0, "Cancelled", now_ms=2_000) == 0.0
    assert stop.read_text() == "5000 7000 Preempted\n"
    assert folder.ask_to_stop(0.0, "Cancelled", now_ms=9_000) == 2.0
