"""What a cluster answers when it does not do what was asked.

    KubeError
    ├── BadRequest         400  the request cannot be read
    ├── Unauthorized       401  the credentials are not known, or no longer
    ├── Forbidden          403  known, without the right
    ├── NotThere           404  no such object, or no such kind
    ├── AlreadyThere       409  an object of that name is there
    ├── Conflict           409  the object was changed since it was read
    │   └── FieldConflict  409  another manager owns fields that were to be applied
    ├── Gone               410  the resourceVersion is older than what the server remembers
    ├── Invalid            422  fields that cannot hold, named
    ├── TooManyRequests    429  later; also an eviction that a disruption budget forbids
    ├── ServerTrouble      5xx  the server failed, or a webhook of it did
    ├── Unreachable        no answer: no route, refused, time-out, certificate
    └── Unreadable         an answer that is none of Kubernetes, or too long

Messages come from the cluster, cut to a bounded length; none ever holds a credential, because
none is made from a request.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MAX_MESSAGE_CHARS = 2_000


@dataclass(frozen=True, slots=True)
class InvalidField:
    """A field of an object that cannot hold, as the API server says it."""

    field: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class FieldOwner:
    """A field of an object and the manager that owns it."""

    field: str
    manager: str


class KubeError(Exception):
    """An answer of a cluster that is not what was asked for.

    Attributes:
        status: Of HTTP; 0 where there was no answer.
        reason: The cluster's CamelCase word, such as `NotFound`.
        message: A sentence for people.
    """

    def __init__(self, status: int, reason: str, message: str) -> None:
        if len(message) > MAX_MESSAGE_CHARS:
            message = message[: MAX_MESSAGE_CHARS - 1] + "…"
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}" if self.reason else self.message


class BadRequest(KubeError):
    """The request cannot be read by the server."""


class Unauthorized(KubeError):
    """The credentials are not known, or no longer."""


class Forbidden(KubeError):
    """The credentials are known and have no right to this."""


class NotThere(KubeError):
    """There is no such object, or the server does not know the kind."""


class AlreadyThere(KubeError):
    """An object of that name is there."""


class Conflict(KubeError):
    """The object was changed since it was read, or a precondition does not hold."""


class FieldConflict(Conflict):
    """Another manager owns fields that were to be applied.

    Attributes:
        owners: Each field with its manager, in the order of the answer.
    """

    def __init__(
        self, status: int, reason: str, message: str, owners: Sequence[FieldOwner] = ()
    ) -> None:
        super().__init__(status, reason, message)
        self.owners = tuple(owners)

    @property
    def managers(self) -> tuple[str, ...]:
        """The other managers, each once, sorted."""
        return tuple(sorted({owner.manager for owner in self.owners}))


class Gone(KubeError):
    """The resourceVersion or the continue token is older than what the server remembers."""


class Invalid(KubeError):
    """Fields of the object cannot hold.

    Attributes:
        fields: What the server says of each.
    """

    def __init__(
        self, status: int, reason: str, message: str, fields: Sequence[InvalidField] = ()
    ) -> None:
        super().__init__(status, reason, message)
        self.fields = tuple(fields)


class TooManyRequests(KubeError):
    """Later, please.

    Attributes:
        retry_after_s: What the server asked for, None where it named nothing.
    """

    def __init__(
        self, status: int, reason: str, message: str, retry_after_s: float | None = None
    ) -> None:
        super().__init__(status, reason, message)
        self.retry_after_s = retry_after_s


class ServerTrouble(KubeError):
    """The server, or a webhook that it asked, failed.

    Attributes:
        retry_after_s: What the server asked for, None where it named nothing.
    """

    def __init__(
        self, status: int, reason: str, message: str, retry_after_s: float | None = None
    ) -> None:
        super().__init__(status, reason, message)
        self.retry_after_s = retry_after_s


class Unreachable(KubeError):
    """There was no answer: no route, refused, a time-out, a certificate that is not trusted."""

    def __init__(self, message: str, reason: str = "Unreachable") -> None:
        super().__init__(0, reason, message)


class Unreadable(KubeError):
    """The answer is none of a Kubernetes API server, or longer than is taken."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(status, "Unreadable", message)


_PLAIN: Mapping[int, type[KubeError]] = {
    400: BadRequest,
    401: Unauthorized,
    403: Forbidden,
    404: NotThere,
    410: Gone,
}


def error_of(
    status: int, body: Mapping[str, Any] | None, retry_after_s: float | None = None
) -> KubeError:
    """Return the error that an answer tells.

    Args:
        status: Of HTTP, 400 or more.
        body: The `Status` object of the answer, where there is one.
        retry_after_s: From the header or, failing that, the `Status`.

    Source:
        Kubernetes, apimachinery `metav1.Status`, `StatusReason` and `StatusDetails`.
    """
    body = body or {}
    reason = _text(body.get("reason")) or _REASONS.get(status, f"Http{status}")
    message = _text(body.get("message")) or f"The API server answered {status}."
    details = body.get("details")
    details = details if isinstance(details, Mapping) else {}
    if retry_after_s is None and isinstance(details.get("retryAfterSeconds"), int):
        retry_after_s = float(details["retryAfterSeconds"]) or None
    causes = [cause for cause in details.get("causes") or () if isinstance(cause, Mapping)]
    if status == 409:
        return _conflict(reason, message, causes)
    if status == 422:
        fields = [
            InvalidField(_text(c.get("field")), _text(c.get("reason")), _text(c.get("message")))
            for c in causes
        ]
        return Invalid(status, reason, message, fields)
    if status == 429:
        return TooManyRequests(status, reason, message, retry_after_s)
    if status >= 500:
        return ServerTrouble(status, reason, message, retry_after_s)
    return _PLAIN.get(status, KubeError)(status, reason, message)


_REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Gone",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


def _conflict(reason: str, message: str, causes: Sequence[Mapping[str, Any]]) -> KubeError:
    owners = [
        FieldOwner(_text(cause.get("field")), _manager_of(_text(cause.get("message"))))
        for cause in causes
        if cause.get("reason") == "FieldManagerConflict"
    ]
    if owners:
        return FieldConflict(409, reason, message, owners)
    if reason == "AlreadyExists":
        return AlreadyThere(409, reason, message)
    return Conflict(409, reason, message)


def _manager_of(message: str) -> str:
    """Return the manager in `conflict with "kubectl" using apps/v1`."""
    parts = message.split('"')
    return parts[1] if len(parts) >= 3 else message


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
