"""API bodies of events, webhooks and deliveries."""

from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import AfterValidator, Field

from gpuplane.kit.bodies import Body, InstantOut, SecretBody, Text, refusal

_KIND_CHARS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_.-*")


def _check_kind(value: str) -> str:
    star = value.find("*")
    if not value or not set(value) <= _KIND_CHARS or star not in (-1, len(value) - 1):
        raise refusal(
            "A kind is lower-case words joined by dots; a trailing '*' or '.' means a prefix.",
            "For example job.completed or job.*",
        )
    return value


Kind = Annotated[str, Field(min_length=1, max_length=80), AfterValidator(_check_kind)]
Kinds = Annotated[list[Kind], Field(max_length=50)]
Url = Annotated[str, Field(min_length=8, max_length=2_000)]


class EventOut(Body):
    """One event."""

    id: UUID
    position: int | None
    """Its place in the stream; absent for a moment after it happened."""
    at: InstantOut
    kind: str
    tenant_id: UUID | None
    project_id: UUID | None
    cluster_id: UUID | None
    subject_kind: str
    subject_id: str
    actor: str
    reason: str
    message: str
    data: dict[str, Any]
    audit: bool


class WebhookIn(Body):
    """A webhook to create; without kinds it gets every event of the tenant."""

    url: Url
    kinds: Kinds = Field(default_factory=list)
    """Kinds or prefixes, such as `job.completed` and `job.failed` for a completion callback."""
    tenant_id: UUID | None = None
    subject_id: Annotated[str, Field(max_length=120)] | None = None
    """Only events of this one thing, such as one job."""


class ClusterWebhookIn(Body):
    """A webhook for the events of one cluster."""

    url: Url
    kinds: Kinds = Field(default_factory=list)


class WebhookChangeIn(Body):
    """What to change of a webhook; what is absent stays."""

    url: Url | None = None
    kinds: Kinds | None = None
    state: Literal["active", "disabled"] | None = None


class WebhookOut(Body):
    """One webhook."""

    id: UUID
    tenant_id: UUID | None
    """Absent for webhooks of the platform, which get the events of every tenant."""
    cluster_id: UUID | None
    subject_id: str | None
    url: Text
    kinds: list[str]
    state: str
    state_reason: str
    failures_in_a_row: int
    position: int
    created_by: str
    created_at: InstantOut


class WebhookCreatedOut(SecretBody):
    """The new webhook with its signing secret, shown this once."""

    webhook: WebhookOut
    secret: str
    signature: str = "Gpuplane-Signature: t=<unix seconds>,v1=HMAC-SHA256(secret, t + '.' + body)"
    """How the receiver checks a delivery."""


class DeliveryOut(Body):
    """One delivery of an event to a webhook."""

    id: int
    webhook_id: UUID
    event_position: int
    event_kind: str
    state: str
    tries: int
    next_at: InstantOut | None
    last_status: int | None
    last_error: str
    created_at: InstantOut
    finished_at: InstantOut | None
