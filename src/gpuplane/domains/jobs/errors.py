"""What can be refused about jobs."""

from gpuplane.kit.errors import (
    Conflict,
    Gone,
    NotFound,
    ProductError,
    TooManyRequests,
    Unprocessable,
)


class JobNotFound(NotFound):
    """No job of that id, or the caller may not see it."""

    code = "job_not_found"


class AttemptNotFound(NotFound):
    """The job has no such attempt."""

    code = "attempt_not_found"


class TooManyFollowers(TooManyRequests):
    """As many readers follow logs as this server serves."""

    code = "too_many_followers"


class JobUnreadable(ProductError):
    """The job's row is damaged; a loop sets it aside with an alarm."""

    code = "job_unreadable"


class JobChanged(Conflict):
    """The job moved on while the call was on its way."""

    code = "job_changed"


class WrongStatus(Conflict):
    """The job's status does not allow the verb."""

    code = "job_wrong_status"


class NotScalable(Conflict):
    """The number of replicas of the job is fixed, or an autoscaler decides it."""

    code = "job_not_scalable"


class BadScale(Unprocessable):
    """So many replicas were not among those that the job was submitted with."""

    code = "job_scale_invalid"


class NotPartOfProduct(Unprocessable):
    """A kind of work that no part stands behind here."""

    code = "not_supported"


class BadJob(Unprocessable):
    """A field of the job cannot hold."""

    code = "job_invalid"


class QuotaExceeded(TooManyRequests):
    """The caller asked to be refused rather than queued, and it would have been queued."""

    code = "quota_exceeded"


class LogsGone(Gone):
    """The log was pruned or rotated away."""

    code = "logs_gone"
