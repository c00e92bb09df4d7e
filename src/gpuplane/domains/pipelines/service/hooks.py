"""Calls from outside that start runs: who signed them, and what they fire.

Two forms of proof: our own signature, of the time and the body; and, for notifications of a
bucket, the secret itself as the token of the call, which is what MinIO can send. A notification
that is sent again fires nothing anew, for an object is fired for once.
"""

import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.domains.pipelines import repository
from gpuplane.domains.pipelines.documents.arrivals import read_notification
from gpuplane.domains.pipelines.errors import BadSignature
from gpuplane.domains.pipelines.rules import TriggerRecord
from gpuplane.domains.pipelines.service.firing import Fired, fire
from gpuplane.domains.runs.service import RunPolicy
from gpuplane.kit.errors import InvalidInput
from gpuplane.kit.signatures import is_signed

SIGNATURE = "gpuplane-signature"
AUTHORIZATION = "authorization"


@dataclass(frozen=True, slots=True)
class Proof:
    """What a call brings to show who sent it: a signature of an instant, or a token."""

    secret_name: str
    at_s: int
    signature: str
    token: str


def hook_of(session: ReadSession, trigger_id: UUID) -> TriggerRecord | None:
    """Return a trigger that is called from outside, or None."""
    found = repository.find_trigger(session, trigger_id)
    return found if found is not None and find_caller(found) is not None else None


def find_caller(trigger: TriggerRecord) -> Mapping[str, Any] | None:
    """Return the part of a trigger that names the secret of its calls; None if it has no calls."""
    if trigger.kind == "webhook":
        part: Mapping[str, Any] = trigger.spec["webhook"]
        return part
    found: Mapping[str, Any] | None = trigger.spec.get("bucket", {}).get("notifications")
    return found if trigger.kind == "bucket" else None


def read_proof(trigger: TriggerRecord, headers: Mapping[str, str], now: int) -> Proof:
    """Return the proof of a call; BadSignature if it brings none, or an old one."""
    part = find_caller(trigger)
    assert part is not None, "only triggers that are called are asked"
    given = headers.get(SIGNATURE, "")
    token = headers.get(AUTHORIZATION, "").removeprefix("Bearer ").strip()
    if trigger.kind == "bucket" and not given and token:
        return Proof(part["secret"], 0, "", token)
    fields = dict(field.partition("=")[::2] for field in given.split(","))
    at_text, signature = fields.get("t", ""), fields.get("v1", "")
    if not (at_text.isascii() and at_text.isdigit()) or len(at_text) > 12 or len(signature) != 64:
        raise BadSignature(
            "The call is not signed.",
            fix="Send Gpuplane-Signature: t=<seconds>,v1=<HMAC-SHA256 of t.body>.",
        )
    if abs(now // 1000 - int(at_text)) > part["tolerance_seconds"]:
        raise BadSignature("The signature is too old, or from the future.", fix="Sign it anew.")
    return Proof(part["secret"], int(at_text), signature, "")


def check_proof(proof: Proof, secret: str, body: bytes) -> None:
    """Raise BadSignature unless the holder of the secret sent this body."""
    if proof.token:
        is_good = hmac.compare_digest(proof.token.encode(), secret.encode())
    else:
        is_good = is_signed(secret.encode(), proof.at_s, body, proof.signature)
    if not is_good:
        raise BadSignature("The signature is not that of the trigger's secret.", fix="Check it.")


def fire_call(
    session: WriteSession,
    trigger: TriggerRecord,
    proof: Proof,
    names: Mapping[str, Any],
    policy: RunPolicy,
    now: int,
) -> Sequence[Fired]:
    """Start what a call asks for: one run, or one for each new object it tells of.

    Args:
        session: The transaction.
        trigger: The trigger.
        proof: Of the call, checked.
        names: Its `body` and `headers`.
        policy: Limits of runs.
        now: The instant.

    Raises:
        InvalidInput: If it is to be a bucket's notification and is none.
    """
    if trigger.kind == "webhook":
        data = {"body": names["body"]}
        return [fire(session, trigger, proof.signature, names, data, policy, now)]
    found = read_notification(names["body"], trigger.spec["bucket"])
    return [
        fire(session, trigger, each.fire_key, shown, shown, policy, now)
        for each in found
        for shown in ({"object": each.shown},)
    ]


def read_body(body: bytes) -> Any:
    """Return the JSON value of a call's body; None of an empty one.

    Raises:
        InvalidInput: If it is no JSON.
    """
    try:
        return json.loads(body) if body else None
    except (ValueError, RecursionError) as error:
        raise InvalidInput("The body is no JSON.", fix="Send JSON, or nothing.") from error
