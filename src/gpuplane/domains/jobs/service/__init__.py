"""Use cases of jobs, one file a phase of their life; other packages import from here."""

from gpuplane.domains.jobs.rules import Attempt, Job, Replica
from gpuplane.domains.jobs.service.admitting import (
    AdmissionReport,
    Doors,
    admit,
    has_new_reasons,
    note_waiting,
    preempt,
)
from gpuplane.domains.jobs.service.loading import (
    Door,
    RunningJob,
    count_recent_preemptions,
    list_holding,
    list_queued,
    running_of,
    workload_of,
)
from gpuplane.domains.jobs.service.observing import (
    end_never_started,
    list_open,
    list_to_ensure,
    list_to_evict,
    load_jobs,
    note_ensured,
    note_evict_sent,
    note_start_failed,
    take_in,
)
from gpuplane.domains.jobs.service.planning import Surroundings, plan_of, refresh, store_manifest
from gpuplane.domains.jobs.service.stopping import end_without_attempt, request_stop
from gpuplane.domains.jobs.service.submitting import (
    Submission,
    SubmitLimits,
    check_submission,
    submit,
)

__all__ = [
    "AdmissionReport",
    "Attempt",
    "Door",
    "Doors",
    "Job",
    "Replica",
    "RunningJob",
    "Submission",
    "SubmitLimits",
    "Surroundings",
    "admit",
    "check_submission",
    "count_recent_preemptions",
    "end_never_started",
    "end_without_attempt",
    "has_new_reasons",
    "list_holding",
    "list_open",
    "list_queued",
    "list_to_ensure",
    "list_to_evict",
    "load_jobs",
    "note_ensured",
    "note_evict_sent",
    "note_start_failed",
    "note_waiting",
    "plan_of",
    "preempt",
    "refresh",
    "request_stop",
    "running_of",
    "store_manifest",
    "submit",
    "take_in",
    "workload_of",
]
