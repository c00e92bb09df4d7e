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
    HeldResources,
    RunningJob,
    allocations_of,
    count_recent_preemptions,
    list_holding_versions,
    list_queued_versions,
    load_running,
    running_of,
    sum_held,
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
from gpuplane.domains.jobs.service.planning import Surroundings, load_plans, store_manifests
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
    "HeldResources",
    "Job",
    "Replica",
    "RunningJob",
    "Submission",
    "SubmitLimits",
    "Surroundings",
    "admit",
    "allocations_of",
    "check_submission",
    "count_recent_preemptions",
    "end_never_started",
    "end_without_attempt",
    "has_new_reasons",
    "list_holding_versions",
    "list_open",
    "list_queued_versions",
    "list_to_ensure",
    "list_to_evict",
    "load_jobs",
    "load_plans",
    "load_running",
    "note_ensured",
    "note_evict_sent",
    "note_start_failed",
    "note_waiting",
    "preempt",
    "request_stop",
    "running_of",
    "store_manifests",
    "submit",
    "sum_held",
    "take_in",
    "workload_of",
]
