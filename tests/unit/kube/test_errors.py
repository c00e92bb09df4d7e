"""What an API server's refusal means."""

from __future__ import annotations

import pytest

from gpuplane.kube import errors


def status(reason: str, message: str = "", **details: object) -> dict[str, object]:
    return {"kind": "Status", "reason": reason, "message": message, "details": details}


@pytest.mark.parametrize(
    ("code", "reason", "expected"),
    [
        (400, "BadRequest", errors.BadRequest),
        (401, "Unauthorized", errors.Unauthorized),
        (403, "Forbidden", errors.Forbidden),
        (404, "NotFound", errors.NotThere),
        (409, "AlreadyExists", errors.AlreadyThere),
        (409, "Conflict", errors.Conflict),
        (410, "Expired", errors.Gone),
        (422, "Invalid", errors.Invalid),
        (429, "TooManyRequests", errors.TooManyRequests),
        (500, "InternalError", errors.ServerTrouble),
        (503, "ServiceUnavailable", errors.ServerTrouble),
        (418, "Teapot", errors.KubeError),
    ],
)
def test_each_status_has_its_own_error(
    code: int, reason: str, expected: type[errors.KubeError]
) -> None:
    found = errors.error_of(code, status(reason, "so it is"))
    assert type(found) is expected
    assert (found.status, found.reason, str(found)) == (code, reason, f"{reason}: so it is")


def test_a_conflict_of_fields_names_each_field_and_its_manager() -> None:
    causes = [
        {
            "reason": "FieldManagerConflict",
            "message": 'conflict with "kubectl-edit" using v1 at 2026-01-01',
            "field": ".spec.replicas",
        },
        {
            "reason": "FieldManagerConflict",
            "message": 'conflict with "kueue" with subresource "status" using batch/v1',
            "field": ".spec.suspend",
        },
    ]
    found = errors.error_of(409, status("Conflict", "Apply failed", causes=causes))
    assert isinstance(found, errors.FieldConflict)
    assert found.owners[0] == errors.FieldOwner(".spec.replicas", "kubectl-edit")
    assert found.managers == ("kubectl-edit", "kueue")


def test_an_invalid_object_names_the_fields() -> None:
    causes = [
        {"reason": "FieldValueRequired", "message": "Required value", "field": "spec.containers"}
    ]
    found = errors.error_of(422, status("Invalid", "Pod is invalid", causes=causes))
    assert isinstance(found, errors.Invalid)
    expected = errors.InvalidField("spec.containers", "FieldValueRequired", "Required value")
    assert found.fields == (expected,)


def test_the_wait_of_the_header_goes_before_that_of_the_body() -> None:
    body = status("TooManyRequests", retryAfterSeconds=10)
    asked, told = errors.error_of(429, body, 2.0), errors.error_of(429, body)
    assert isinstance(asked, errors.TooManyRequests)
    assert isinstance(told, errors.TooManyRequests)
    assert (asked.retry_after_s, told.retry_after_s) == (2.0, 10.0)


@pytest.mark.parametrize(
    "body", [None, {}, {"reason": 5, "message": [], "details": "x"}, {"details": {"causes": [1]}}]
)
def test_an_answer_without_a_readable_status_still_says_what_it_is(
    body: dict[str, object] | None,
) -> None:
    found = errors.error_of(409, body)
    assert type(found) is errors.Conflict
    assert str(found) == "Conflict: The API server answered 409."


def test_a_message_of_any_length_is_cut() -> None:
    found = errors.error_of(500, status("InternalError", "x" * 100_000))
    assert len(found.message) == errors.MAX_MESSAGE_CHARS
