"""Log lines are JSON with ids, and never hold a credential."""

from __future__ import annotations

import json
import logging

import pytest

from gpuplane.kit.logs import JsonFormatter, log_context, masked


def a_line(message: str, **extra: object) -> dict[str, object]:
    record = logging.makeLogRecord(
        {"name": "gpuplane.test", "levelno": 20, "levelname": "INFO", "msg": message, **extra}
    )
    line: dict[str, object] = json.loads(JsonFormatter().format(record))
    return line


def test_a_line_carries_the_ids_of_its_context() -> None:
    with log_context(request_id="r1"), log_context(job_id="j1"):
        line = a_line("hello", duration_ms=3)
    assert (line["request_id"], line["job_id"], line["duration_ms"]) == ("r1", "j1", 3)
    assert "job_id" not in a_line("afterwards")


@pytest.mark.parametrize(
    "secret",
    [
        "gp_" + "a" * 43,
        "gpwh_" + "b" * 43,
        "Authorization: Bearer abcdefghijklmnopqrst.def",
        "postgresql://user:hunter2@host/db",
        "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJ4In0.c2ln",
    ],
)
def test_a_credential_is_masked_wherever_it_stands(secret: str) -> None:
    core = max(secret.replace("//", " ").replace("@", " ").split(), key=len)
    for text in (masked(f"before {secret} after"), str(a_line(secret)), str(a_line("x", y=secret))):
        assert core not in text
        assert "hunter2" not in text
        assert "[masked]" in text
