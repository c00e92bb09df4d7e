"""Finds what the binary said it had made and its state does not know.

Owns comparing the two. OpenTofu writes a local state down every 20 s and at its end, so a binary
that is killed outright (its process, or the machine) leaves things in the cloud that nobody knows.
Its output was written at once: what it names is told until the state knows it too.
"""

import json
from collections.abc import Mapping
from typing import Any


def list_unrecorded(
    output: bytes, before: Mapping[str, str], state: Mapping[str, Any] | None
) -> dict[str, str]:
    """Return what was made and is in no state, the cloud's id by address.

    Args:
        output: Lines of `apply -json`; the last may be cut off.
        before: What was known to be missing already.
        state: The newest whole state.
    """
    made = dict(before)
    for line in output.splitlines():
        hook = _completed(line)
        if hook is None:
            continue
        address = str(hook.get("resource", {}).get("addr", ""))
        if hook.get("action") == "create":
            made[address] = str(hook.get("id_value") or "")
        elif hook.get("action") == "delete":
            made.pop(address, None)
    known = {
        f"{each['type']}.{each['name']}"
        for each in (state or {}).get("resources", [])
        if each["mode"] == "managed" and each["instances"]
    }
    return {address: made[address] for address in sorted(made) if address not in known}


def _completed(line: bytes) -> dict[str, Any] | None:
    try:
        message = json.loads(line)
    except ValueError:
        return None
    if not isinstance(message, dict) or message.get("type") != "apply_complete":
        return None
    hook = message.get("hook")
    return hook if isinstance(hook, dict) else None
