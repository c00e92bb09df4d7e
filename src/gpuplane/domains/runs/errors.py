"""What can be wrong with a request about runs."""

from gpuplane.kit.errors import Conflict, NotFound, TooManyRequests, Unprocessable


class RunNotFound(NotFound):
    """No run of that id, or not the caller's to see."""

    code = "run_not_found"


class StepNotFound(NotFound):
    """The run has no step of that key or id."""

    code = "step_not_found"


class PlanRefused(Unprocessable):
    """A plan that cannot be run; `errors` tells each place."""

    code = "plan_refused"


class RunInTheWay(Conflict):
    """The run is in another state than the verb needs."""

    code = "run_state"


class TooManyRuns(TooManyRequests):
    """A project has as many open runs as it may."""

    code = "too_many_runs"


class EventRefused(Unprocessable):
    """An event that nobody can be given."""

    code = "event_refused"
