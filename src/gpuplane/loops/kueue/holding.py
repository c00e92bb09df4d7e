"""What our AdmissionCheck says of a Workload: it is let go, or gives its quota back and waits.

Owns the state of the check and when what is held stands in Kueue's line again. Never decides
whether a job may start: that is read as its standing.

Kueue evicts by a `Retry` only once its `requeueAfterSeconds` are over and keeps the quota until
then; without them it requeues at once, and what is held would take and give quota in circles. So
one write says `Evicted` and the seconds: Kueue frees the quota and keeps the seconds as the instant
of requeueing, which is taken away again when the hold ends sooner.

Source: kubernetes-sigs/kueue v0.15.0, pkg/controller/core/workload_controller.go (Reconcile),
pkg/controller/jobframework/reconciler.go (ReconcileGenericJob), pkg/workload/admissionchecks.go.
"""

from collections.abc import Mapping, Set
from typing import Any

from gpuplane.core.ids import AttemptId
from gpuplane.domains.jobs.service import OfferStanding
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.kinds import WORKLOAD
from gpuplane.kube.kueue.names import HOLD_CHECK, ApiVersion, WorkloadCondition
from gpuplane.kube.kueue.states import instant_of
from gpuplane.loops.kueue.workloads import BY_CHECK, HOLD_MARK, Followed, find_age, instant_text

MAX_RETRY_S = 3_600
"""When Kueue tries a held Workload again by itself, where nothing is heard from here before."""
EXTEND_MS = 300_000
"""How long before that the hold is extended: what has no quota takes nobody's place."""
GAIN_MS = 5_000
"""An extension by less is not worth a write."""
MAX_MESSAGE = 1_000
SECONDS = "requeueAfterSeconds"


async def give_hold(
    client: KubeClient,
    version: ApiVersion,
    each: Followed,
    standing: OfferStanding | None,
    settled: Set[AttemptId],
    now: int,
) -> None:
    """Write what our AdmissionCheck says of a Workload, if that is not what it says."""
    status = plan_hold(each, standing, settled, now)
    if status is None:
        return
    kind = WORKLOAD.at(str(version))
    if "conditions" in status:
        found = await client.find(kind, each.state.name, each.state.namespace)
        if found is None or found["metadata"].get("resourceVersion", "") != each.version:
            return  # it moved on meanwhile: the next turn sees how
        told = (found.get("status") or {}).get("conditions") or ()
        written = {one["type"] for one in status["conditions"]}
        others = [one for one in told if one["type"] not in written]
        status = {**status, "conditions": [*others, *status["conditions"]]}
    patch = {"metadata": {"resourceVersion": each.version}, "status": status}
    await client.patch(kind, each.state.name, patch, each.state.namespace, subresource="status")


def plan_hold(
    each: Followed, standing: OfferStanding | None, settled: Set[AttemptId], now: int
) -> dict[str, Any] | None:
    """Return what is to be merged into the status of a Workload, None where nothing is.

    Of `conditions` it names those that change; the others stay as they are.
    """
    hold = each.hold
    if hold is None:
        return None
    # A manager admits what its worker may have started already.
    is_admitted = each.state.admitted_at is not None or bool(each.state.cluster_name)
    state, message, retry_s = decide_hold(
        each.attempt_id, standing, settled, now, is_admitted=is_admitted
    )
    message = message[:MAX_MESSAGE]
    if each.state.find(WorkloadCondition.QUOTA_RESERVED) is None:
        if each.attempt_id is None or hold.get(SECONDS) is None:
            return None  # it stands in line for quota, and nothing of ours keeps it out
        return _plan_waiting(each, hold, state, message, retry_s, now)
    if each.is_dispatched and state == "Retry":
        state, retry_s = "Pending", None  # its manager takes it back
    if hold.get("state") == "Ready" and each.state.admitted_at is not None:
        return None  # it runs or is about to: what stops it now is an eviction, not a check
    if each.attempt_id is not None and each.state.find(WorkloadCondition.EVICTED) is not None:
        return None  # its quota is on the way back already
    if retry_s is not None:
        return _evict(each, message, retry_s, standing, now)
    if (hold.get("state"), hold.get("message", ""), hold.get(SECONDS)) == (state, message, None):
        return None
    return _say(each, hold, state, message, None, now)


def _plan_waiting(
    each: Followed,
    hold: Mapping[str, Any],
    state: str,
    message: str,
    retry_s: int | None,
    now: int,
) -> dict[str, Any] | None:
    """Return what changes for a Workload that gave its quota back because it was held."""
    if state == "Ready":
        return _say(each, hold, "Pending", message, None, now)  # and with it back into the line
    if retry_s is None:
        return None  # it is not offered any more and goes
    until = (instant_of(hold.get("lastTransitionTime")) or 0) + hold[SECONDS] * 1000
    if hold.get("state") == "Retry" and until > now:
        if each.requeue_at is None or each.requeue_at < until:
            return None  # Kueue is about to take the instant over
        # The check may not stay at Retry: Kueue would evict it as soon as it has quota again.
        return _say(each, hold, "Pending", message, hold[SECONDS], now)
    left = (each.requeue_at or 0) - now
    if left < EXTEND_MS and retry_s * 1000 > max(0, left) + GAIN_MS:
        return _say(each, hold, "Retry", message, retry_s, now)
    return None


def _say(
    each: Followed,
    hold: Mapping[str, Any],
    state: str,
    message: str,
    seconds: int | None,
    now: int,
) -> dict[str, Any]:
    """Return a status by which our check says so; without seconds nothing is waited for."""
    told = {
        **{name: value for name, value in hold.items() if name != SECONDS},
        "state": state,
        "message": message,
        "lastTransitionTime": instant_text(now),
    }
    if seconds is not None:
        told[SECONDS] = seconds
    others = [check for check in each.checks if check.get("name") != HOLD_CHECK]
    status: dict[str, Any] = {"admissionChecks": [*others, told]}
    if seconds is None and hold.get(SECONDS) is not None and each.requeue_at is not None:
        status["requeueState"] = {"requeueAt": None}
    return status


def _evict(
    each: Followed, message: str, retry_s: int, standing: OfferStanding | None, now: int
) -> dict[str, Any] | None:
    """Return a status by which Kueue takes the quota of what is held back at once.

    It says what an eviction by Kueue itself says, with the age at which it stands in line: who
    was held goes behind nobody.
    """
    others = [check for check in each.checks if check.get("name") != HOLD_CHECK]
    if any(check.get("state") in ("Retry", "Rejected") for check in others):
        return None  # another check takes its quota back
    ages = [find_age(each), None if standing is None else standing.in_line_since]
    evicted = {
        "type": str(WorkloadCondition.EVICTED),
        "status": "True",
        "reason": BY_CHECK,
        "message": f"{HOLD_MARK} {message}"[:MAX_MESSAGE],
        "lastTransitionTime": instant_text(min((age for age in ages if age), default=now)),
    }
    held = {
        **(each.hold or {}),
        "state": "Retry",
        "message": message,
        "lastTransitionTime": instant_text(now),
        SECONDS: retry_s,
    }
    status: dict[str, Any] = {
        "conditions": [evicted],
        "admissionChecks": [*(_reset(check, now) for check in others), held],
    }
    if each.state.cluster_name:
        status["clusterName"] = None
    if each.state.nominated:
        status["nominatedClusterNames"] = None
    return status


def _reset(check: Mapping[str, Any], now: int) -> Mapping[str, Any]:
    """Return the state of another check once the quota is gone that it was answered for."""
    if check.get("state") == "Pending":
        return check
    return {
        "name": check["name"],
        "state": "Pending",
        "message": f"It was {check.get('state')} when the quota was given back.",
        "lastTransitionTime": instant_text(now),
    }


def decide_hold(
    attempt_id: AttemptId | None,
    standing: OfferStanding | None,
    settled: Set[AttemptId],
    now: int,
    *,
    is_admitted: bool,
) -> tuple[str, str, int | None]:
    """Return (state, message, seconds until it is tried again) of our AdmissionCheck.

    Work that is not ours is never held. Ours is held until its offer is known here, so that
    nothing starts that was taken back; what must wait gives its quota back meanwhile.
    """
    if attempt_id is None:
        return "Ready", "It was not submitted through gpuplane.", None
    if attempt_id in settled and is_admitted:
        return "Ready", "It was started.", None
    if attempt_id in settled:
        # It was let go once, or it would not have been bound: what asks again was taken back.
        return "Pending", "It was started once and is not started again.", None
    if standing is None:
        return "Pending", "gpuplane does not offer it any more.", None
    if standing.may_start:
        return "Ready", standing.sentence, None
    # What an event opens is let go at that event: the seconds are for a control plane that is down.
    wait = MAX_RETRY_S if standing.retry_at is None else (standing.retry_at - now) // 1000 + 1
    return "Retry", standing.sentence, min(max(1, wait), MAX_RETRY_S)
