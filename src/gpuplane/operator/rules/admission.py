"""What the webhooks answer: defaults that are filled in, and why an object is refused.

Owns the judgement of GPUWorkload and MIGLayout objects; never sees HTTP. The schema of the custom
resource has refused what no schema allows before an object is validated, and not before it is given
its defaults.
"""

import base64
import json
from collections.abc import Mapping
from typing import Any

import msgspec

from gpuplane.core.mig.profiles import KNOWN_TABLES
from gpuplane.operator.names import FINALIZER, Phase
from gpuplane.operator.rules.seen import read_instant_s

Json = Mapping[str, Any]
FIXED = ("modelName", "gpuCount", "vendor", "gpuMemoryMiB", "queueName", "schedulingStrategy")
"""Fields that say nothing any more once the Job is made."""
_UNMADE = ("", Phase.PENDING, Phase.SCHEDULING)


class _Meta(msgspec.Struct):
    finalizers: list[str] | None = None


class _Spec(msgspec.Struct, rename="camel"):
    model_name: str = ""
    retry_policy: dict[str, Any] | None = None
    reservation: dict[str, Any] | None = None
    instances: dict[str, int] | None = None
    shares: dict[str, int] | None = None


class _Object(msgspec.Struct):
    """What is looked at of either kind of object."""

    spec: _Spec
    metadata: _Meta | None = None
    status: dict[str, Any] | None = None


def find_shape_problem(item: Json) -> str | None:
    """Return the field of an object that is not of its schema's type, or None."""
    try:
        msgspec.convert(item, _Object)
    except msgspec.ValidationError as error:
        said, _, where = str(error).partition(" - at ")
        field = where.strip("`").removeprefix("$.")
        return f"{field}: {said}" if field else said
    return None


def list_defaults(workload: Json) -> list[dict[str, Any]]:
    """Return JSON patch operations that fill in what was left out, the finalizer among it.

    None for an object that its schema refuses: what is said of it is the API server's to say.
    """
    if find_shape_problem(workload) is not None:
        return []
    spec = workload["spec"]
    operations: list[dict[str, Any]] = []
    wanted = {"priority": "normal", "schedulingStrategy": "leastLoaded", "vendor": "nvidia"}
    for name, value in wanted.items():
        if name not in spec:
            operations.append({"op": "add", "path": f"/spec/{name}", "value": value})
    if spec.get("retryPolicy") is None:
        retries = {"maxRetries": 3, "backoffSeconds": 30}
        operations.append({"op": "add", "path": "/spec/retryPolicy", "value": retries})
    meta = workload.get("metadata") or {}
    finalizers = list(meta.get("finalizers") or [])
    if FINALIZER not in finalizers and "deletionTimestamp" not in meta:
        guarded = [*finalizers, FINALIZER]
        operations.append({"op": "add", "path": "/metadata/finalizers", "value": guarded})
    return operations


def find_workload_problem(
    workload: Json, before: Json | None, models: frozenset[str], *, any_model: bool, now_s: int
) -> str | None:
    """Return why a GPUWorkload is refused, naming the field, or None.

    Args:
        before: The object as it was, None where it is new.
        models: Names that the operator has an image for.
        any_model: Whether other names get a default image.
    """
    problem = find_shape_problem(workload)
    if problem is not None:
        return problem
    spec = workload["spec"]
    if "deletionTimestamp" in (workload.get("metadata") or {}):
        return None
    model = spec.get("modelName", "")
    if not any_model and model not in models:
        known = ", ".join(sorted(models)) or "none"
        return (
            f"spec.modelName: there is no image for {model!r}; known are {known}. "
            "Add it to the operator's models"
        )
    if before is not None and find_shape_problem(before) is not None:
        before = None  # of another version of the schema: there is nothing to compare with
    if before is not None:
        old = before.get("spec") or {}
        phase = (before.get("status") or {}).get("phase") or ""
        changed = [name for name in FIXED if spec.get(name) != old.get(name)]
        if changed and phase not in _UNMADE:
            return (
                f"spec.{changed[0]}: the Job is made and cannot follow a change any more; "
                "delete the GPUWorkload and create another"
            )
    start = (spec.get("reservation") or {}).get("startTime")
    is_new_start = before is None or start != (
        ((before.get("spec") or {}).get("reservation") or {}).get("startTime")
    )
    if start and is_new_start:
        try:
            start_s = read_instant_s(start)
        except ValueError:
            return (
                f"spec.reservation.startTime: {start!r} is no instant; write 2030-01-31T08:00:00Z"
            )
        if start_s <= now_s:
            return f"spec.reservation.startTime: {start} is past; leave it out to start now"
    return None


def find_layout_problem(layout: Json) -> str | None:
    """Return why a MIGLayout is refused, naming the field, or None."""
    problem = find_shape_problem(layout)
    if problem is not None:
        return problem
    spec = layout["spec"]
    for section in ("instances", "shares"):
        for profile in spec.get(section) or {}:
            if not any(table.find_profile(profile) for table in KNOWN_TABLES.values()):
                near = next(iter(KNOWN_TABLES["nvidia-a100-80gb"].nearest_profiles(profile)))
                return f"spec.{section}: no GPU has the MIG profile {profile!r}; near is {near}"
    shares = spec.get("shares")
    if shares and not any(shares.values()):
        return "spec.shares: no profile has a share above 0"
    return None


def answer_review(
    review: Json, problem: str | None, patch: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    """Return the AdmissionReview that answers another."""
    response: dict[str, Any] = {
        "uid": (review.get("request") or {}).get("uid", ""),
        "allowed": problem is None,
    }
    if problem is not None:
        response["status"] = {"code": 422, "reason": "Invalid", "message": problem}
    elif patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(json.dumps(patch).encode()).decode()
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
