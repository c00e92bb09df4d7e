"""Starts a pipeline of a gpuplane control plane and waits for it: the standard library alone."""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

OVER = ("completed", "partial", "failed", "cancelled")
POLL_S = 5.0
TRIES = 5
"""How often a call is tried that gets no answer, or one of a server that cannot answer now."""


class RunFailed(Exception):
    """The run ended otherwise than completed."""


def call(method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    """Return the answer of the API.

    Raises:
        RunFailed: If it refuses the call; the message is its own.
        OSError: If it cannot be reached.
    """
    request = urllib.request.Request(
        os.environ["GPUPLANE_URL"].rstrip("/") + path,
        data=None if body is None else json.dumps(body).encode(),
        method=method,
        headers={
            "Authorization": f"Bearer {os.environ['GPUPLANE_TOKEN']}",
            "Content-Type": "application/json",
        },
    )
    for left in reversed(range(TRIES)):
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code not in (429, 503) or not left:
                raise RunFailed(error.read().decode(errors="replace")) from error
            time.sleep(float(error.headers.get("Retry-After") or POLL_S))
        except OSError:
            if not left:
                raise
            time.sleep(POLL_S)
    raise AssertionError("the last try returns or raises")


def run_pipeline(name: str, parameters: dict[str, Any], dedup_id: str) -> dict[str, Any]:
    """Start a pipeline by its name, wait for the end of the run, and return its outputs.

    Args:
        name: Of the pipeline, in the project of the token.
        parameters: Of the run.
        dedup_id: Names this start: the same again finds the same run.

    Raises:
        RunFailed: If there is no such pipeline, or the run does not complete.
    """
    query = urllib.parse.urlencode({"name": name})
    found = [each for each in call("GET", f"/api/v1/pipelines?{query}")["items"]
             if each["name"] == name]  # fmt: skip
    if not found:
        raise RunFailed(f"There is no pipeline {name!r}.")
    run = call(
        "POST",
        f"/api/v1/pipelines/{found[0]['id']}/runs",
        {"parameters": parameters, "dedup_id": dedup_id},
    )
    while run["status"] not in OVER:
        time.sleep(POLL_S)
        run = call("GET", f"/api/v1/runs/{run['id']}")
    if run["status"] != "completed":
        raise RunFailed(f"The run {run['id']} {run['status']}: {run['message']}")
    steps = call("GET", f"/api/v1/runs/{run['id']}/steps?limit=500")["items"]
    outputs = [each["output"] for each in steps if each["key"] == "pipeline-outputs"]
    return dict(outputs[0]) if outputs else {}
