"""Follows the stream of events: wakes steps whose job changed, fires triggers of ended runs.

The place in the stream is stored with what was done, so that nothing is missed over a restart.
"""

from uuid import UUID

from gpuplane.core.lifecycle.runs import RUN_OVER
from gpuplane.core.workloads import SourceType
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.domains.events import service as events
from gpuplane.domains.events.service import Event
from gpuplane.domains.pipelines import repository
from gpuplane.domains.pipelines.documents.compiling import OUTPUTS_KEY, RUN_KIND
from gpuplane.domains.pipelines.service.firing import fire_for_run, list_waiting
from gpuplane.domains.runs import service as runs
from gpuplane.domains.runs.service import RunPolicy
from gpuplane.kit.errors import ProductError

CURSOR = "triggers"
BATCH = 500
_OVER = frozenset(f"run.{status}" for status in RUN_OVER)
_JOB_MOVED = frozenset({"job.running", "job.completed", "job.failed", "job.cancelled"})
_KINDS = tuple(sorted(_OVER | _JOB_MOVED))


def has_news(session: ReadSession) -> bool:
    """Return whether events wait to be followed."""
    position = repository.find_cursor(session, CURSOR)
    return position is None or events.last_position(session) > position


def follow(session: WriteSession, policy: RunPolicy, now: int) -> bool:
    """Follow one batch of events; True when there are more."""
    position = repository.find_cursor(session, CURSOR)
    if position is None:
        repository.store_cursor(session, CURSOR, events.last_position(session))
        return False
    last = events.last_position(session)
    found = events.load_relayed(session, position, _KINDS, BATCH)
    for event in found:
        if event.kind in _JOB_MOVED:
            _wake_step(session, event, policy, now)
        elif event.kind in _OVER:
            _end_of_run(session, event, policy, now)
    if len(found) < BATCH:
        repository.store_cursor(session, CURSOR, last)
        return False
    repository.store_cursor(session, CURSOR, found[-1].position or position)
    return True


def _wake_step(session: WriteSession, event: Event, policy: RunPolicy, now: int) -> None:
    if event.data.get("source_type") == str(SourceType.PIPELINE):
        runs.deliver(session, f"job:{event.subject_id}", {"kind": event.kind}, now, policy)


def _end_of_run(session: WriteSession, event: Event, policy: RunPolicy, now: int) -> None:
    if event.data.get("run_kind") != RUN_KIND:
        return
    run = runs.find_run(session, UUID(event.subject_id))
    if run is None:
        return
    if not list_waiting(session, run):
        return
    try:
        outputs = runs.get_step(session, run.id, OUTPUTS_KEY).output
    except ProductError:  # a pipeline without outputs
        outputs = None
    fire_for_run(session, run, outputs, policy, now)
