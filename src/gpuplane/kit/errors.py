"""The one tree of errors that reach a person.

    ProductError
    ├── InvalidInput        400  what was sent cannot be meant
    ├── Unauthenticated     401  nobody is known behind the call
    ├── Forbidden           403  somebody is, and may not
    ├── NotFound            404  nothing of that name here, or not yours to see
    ├── Conflict            409  the thing is in another state than the verb needs
    ├── Gone                410  it was there; it is not kept any more
    ├── TooLarge            413  over a named limit
    ├── Unprocessable       422  a well-formed request with a field that cannot hold
    ├── TooManyRequests     429  later, see Retry-After
    └── Unavailable         503  a part behind is away, see Retry-After

Each has a stable `code`, a public sentence and, where one exists, the fix. Private detail goes to
the log through `__cause__`, never into the answer.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FieldError:
    """One field that cannot hold: its path, the reason and the fix."""

    field: str
    reason: str
    fix: str = ""


class ProductError(Exception):
    """An error with a stable code, a sentence and the fix."""

    status = 500
    code = "internal"

    def __init__(
        self,
        detail: str,
        *,
        code: str | None = None,
        fix: str = "",
        field: str | None = None,
        errors: tuple[FieldError, ...] = (),
        retry_after_s: int | None = None,
        extra: dict[str, object] | None = None,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.code = code or type(self).code
        self.fix = fix
        self.field = field
        self.errors = errors
        self.retry_after_s = retry_after_s
        self.extra = extra or {}


class InvalidInput(ProductError):
    """What was sent cannot be meant."""

    status, code = 400, "invalid_input"


class Unauthenticated(ProductError):
    """Nobody is known behind the call."""

    status, code = 401, "unauthenticated"


class Forbidden(ProductError):
    """Somebody is known, and may not."""

    status, code = 403, "forbidden"


class NotFound(ProductError):
    """Nothing of that name here, or it is not the caller's to see."""

    status, code = 404, "not_found"


class Conflict(ProductError):
    """The thing is in another state than the verb needs."""

    status, code = 409, "conflict"


class Gone(ProductError):
    """It was there and is not kept any more."""

    status, code = 410, "gone"


class TooLarge(ProductError):
    """Over a named limit."""

    status, code = 413, "too_large"


class WrongMediaType(ProductError):
    """A body of a kind that is not read here."""

    status = 415
    code = "wrong_media_type"


class Unprocessable(ProductError):
    """Well-formed, with a field that cannot hold."""

    status, code = 422, "unprocessable"


class TooManyRequests(ProductError):
    """Later; Retry-After says when."""

    status, code = 429, "too_many_requests"


class Unavailable(ProductError):
    """A part behind is away; Retry-After says when to come back."""

    status, code = 503, "unavailable"
