"""Runs the real binary on resources that need no cloud, in the place of those of a cloud.

    python -m tests.integration.provisioning.standing_in OUTPUTS BINARY COMMAND ...

Each resource of the configuration becomes one of the provider that is built into the binary, so
that the plan, the state and the outputs are the binary's own. OUTPUTS is JSON: `server` and
`certificate_authority_data` of the cluster that is said to be made, and `token`, which is made by
the binary where there is none.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
MAIN = Path("main.tf.json")


def without_cloud(text: str, given: dict[str, str]) -> str:
    document = json.loads(text)
    if "required_providers" not in document["terraform"]:
        return text
    resources = {
        f"{kind}_{name}": {"input": kind}
        for kind, blocks in document["resource"].items()
        for name in blocks
    }
    some = min(resources)
    token = given.get("token", f"${{terraform_data.{some}.id}}")
    outputs = {
        "server": {"value": given["server"]},
        "certificate_authority_data": {"value": given["certificate_authority_data"]},
        "token": {"value": token, "sensitive": True},
    }
    terraform = {"backend": document["terraform"]["backend"]}
    return json.dumps(
        {
            "terraform": terraform,
            "resource": {"terraform_data": resources},
            "output": {name: outputs[name] for name in document["output"] if name in outputs},
        }
    )


def write_program(path: Path, binary: str, outputs: dict[str, str]) -> Path:
    """Write the program that stands in for a binary: what it is called with comes last."""
    words = [sys.executable, "-m", "tests.integration.provisioning.standing_in"]
    command = shlex.join([*words, json.dumps(outputs), binary])
    path.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {command} "$@"\n')
    path.chmod(0o755)
    return path


if __name__ == "__main__":
    given, *words = sys.argv[1:]
    if MAIN.exists():
        MAIN.write_text(without_cloud(MAIN.read_text(), json.loads(given)))
    os.execvp(words[0], words)
