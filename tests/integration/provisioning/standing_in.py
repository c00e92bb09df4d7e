"""Runs the real binary on resources that need no cloud, in the place of those of a cloud.

    python -m tests.integration.provisioning.standing_in AUTHORITY BINARY COMMAND ...

Each resource of the configuration becomes one of the provider that is built into the binary, so
that the plan, the state and the outputs are the binary's own. AUTHORITY is the certificate that
the cluster is said to have.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

MAIN = Path("main.tf.json")


def without_cloud(text: str, authority: str) -> str:
    document = json.loads(text)
    if "required_providers" not in document["terraform"]:
        return text
    resources = {
        f"{kind}_{name}": {"input": kind}
        for kind, blocks in document["resource"].items()
        for name in blocks
    }
    some = min(resources)
    outputs = {
        "server": {"value": "https://203.0.113.5:6443"},
        "certificate_authority_data": {"value": authority},
        "token": {"value": f"${{terraform_data.{some}.id}}", "sensitive": True},
    }
    terraform = {"backend": document["terraform"]["backend"]}
    return json.dumps(
        {
            "terraform": terraform,
            "resource": {"terraform_data": resources},
            "output": {name: outputs[name] for name in document["output"] if name in outputs},
        }
    )


if __name__ == "__main__":
    authority, *words = sys.argv[1:]
    if MAIN.exists():
        MAIN.write_text(without_cloud(MAIN.read_text(), authority))
    os.execvp(words[0], words)
